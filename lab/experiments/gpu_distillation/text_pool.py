"""Texts of a distillation: documents, queries, headings, sentences and random parts of pairs."""

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Int64

from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.data.alternative_queries import without_parent

SENTENCES: Final = 3  # of a document, at most
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n{2,}")


@dataclass
class TextPool:
    """Texts of the distillation, and pairs as rows of them.

    Attributes:
        texts: Different in text or role.
        roles: Of each text.
        pairs: Rows of query, query without its parent's name, document, document headed by parent and query
            (or the plain document); numbers of corpus and parent (−1: none).
        trained: Number of texts at the beginning that the student is trained on; the headed documents follow.
    """

    texts: list[str]
    roles: Int64[np.ndarray, " texts"]
    pairs: Int64[np.ndarray, "pairs 6"]
    trained: int


def pool(pairs: Iterable[dict[str, Any]], seed: int = 0) -> TextPool:
    """Collect documents, queries, headings, sentences and beginnings of pairs."""
    random = np.random.default_rng(seed)
    places: dict[tuple[str, int], int] = {}

    def place(text: str, role: int) -> int:
        return places.setdefault((text.strip(), role), len(places))

    corpora: dict[tuple[str, str], int] = {}
    parents: dict[tuple[str, str, str], int] = {}
    rows: list[list[int]] = []
    heads: list[tuple[str, int]] = []
    for pair in pairs:
        query, document, parent = pair["query"].strip(), pair["document"].strip(), (pair.get("parent") or "").strip()
        if not query or not document:
            continue
        asked, answer = place(query, QUERY), place(document, DOCUMENT)
        short = place(without_parent(query, parent), QUERY)
        if parent:
            place(parent, QUERY)
        corpus = corpora.setdefault((pair["source"], pair["domain"]), len(corpora))
        page = parents.setdefault((pair["source"], pair["domain"], parent), len(parents)) if parent else -1
        rows.append([asked, short, answer, answer, corpus, page])
        if parent:
            heads.append((f"{query}\n{document}", len(rows) - 1))
        sentences = [part.strip() for part in _SENTENCE.split(document) if 4 <= len(part.split()) <= 60]
        if len(sentences) > 1:
            for number in random.permutation(len(sentences))[:SENTENCES].tolist():
                place(sentences[number], DOCUMENT if random.random() < 0.75 else QUERY)
        words = document.split(" ")
        if len(words) > 24:
            size = int(random.integers(12, len(words) * 2 // 3))
            start = int(random.integers(0, len(words) - size))
            place(" ".join(words[start : start + size]), DOCUMENT)
    texts = [text or "." for text, _ in places]
    roles = [role for _, role in places]
    trained = len(texts)
    for text, row in heads:
        rows[row][3] = len(texts)
        texts.append(text)
        roles.append(DOCUMENT)
    return TextPool(texts, np.array(roles), np.array(rows), trained)


def read_pairs(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON Lines files, also .xz."""
    for path in paths:
        with lzma.open(path, "rt") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
