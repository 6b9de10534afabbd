"""What the chat notebooks talk about: Python's language reference, which comes with every Python as `help()`'s topics.

The questions in questions.jsonl were written for these notebooks before any system was asked. A passage answers one if
it holds the question's phrase, whatever its quotes and line breaks.

Where the environment has CDE_RAG_SHORT, the notebooks do little of everything: so do tests see that they run.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from cde_rag.evaluation.baselines import MiniLM
from cde_rag.evaluation.bm25 import BM25

DEPTHS = (1, 3, 5)  # of the hit rates
SHORT = "CDE_RAG_SHORT" in os.environ
SHORT_TOPICS = ("assert", "binary", "comparisons", "global", "nonlocal", "power", "raise", "typesmapping")
Search = Callable[[str, int], Sequence[str]]  # question and k to the texts of passages, best first


@dataclass(frozen=True)
class PhraseQuestion:
    """One question.

    Attributes:
        text: As a user would ask it.
        phrase: Words that a passage which answers it has in a row.
    """

    text: str
    phrase: str

    def is_answered_by(self, passage: str) -> bool:
        """Whether the passage has the phrase."""
        return f" {_words(self.phrase)} " in f" {_words(passage)} "


def documents() -> dict[str, str]:
    """The longer documents: topic to text, without the topics that are part of another."""
    given = {topic: topics[topic] for topic in SHORT_TOPICS} if SHORT else topics
    words = {topic: _words(text) for topic, text in given.items()}
    whole = [one for one in given if not any(words[one] in words[other] for other in given if other != one)]
    return {topic: topics[topic] for topic in sorted(whole)}


def questions(passages: Sequence[str]) -> list[PhraseQuestion]:
    """The questions that one of these passages answers; another Python or splitter may lose a few."""
    lines = (Path(__file__).parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [PhraseQuestion(row["question"], row["phrase"]) for row in map(json.loads, lines)]
    return [question for question in asked if any(map(question.is_answered_by, passages))]


def bm25(passages: Sequence[str]) -> Search:
    """Search by words."""
    index = BM25(passages)
    return lambda question, k: [passages[position] for position, _ in index.search(question, k)]


def plain(passages: Sequence[str]) -> Search:
    """Search by an ordinary embedder, all-MiniLM-L6-v2, from which the bundled model started."""
    model = MiniLM()
    vectors = model(passages)

    def search(question: str, k: int) -> list[str]:
        return [passages[position] for position in np.argsort(-(vectors @ model([question])[0]), kind="stable")[:k]]

    return search


def hit_rates(systems: Mapping[str, Search], asked: Sequence[PhraseQuestion]) -> str:
    """A table: the share of questions of which one of the first k passages is an answer."""
    lines = [f"{len(asked)} questions{'':13}" + "".join(f"  in first {k}" for k in DEPTHS)]
    for name, search in systems.items():
        found = [[question.is_answered_by(text) for text in search(question.text, max(DEPTHS))] for question in asked]
        lines.append(f"{name:25}" + "".join(f"{np.mean([any(row[:k]) for row in found]):12.2f}" for k in DEPTHS))
    return "\n".join(lines)


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
