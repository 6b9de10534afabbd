"""Twenty questions in users' words, each with the names whose documentation answers it."""

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        text: As a user would ask it.
        answers: Ids of entries that answer it; at least one is in the standard library of every supported Python.
    """

    text: str
    answers: frozenset[str]


def questions() -> list[Question]:
    """Return the committed questions, in their order in `demo_questions.jsonl`."""
    lines = files("cde_rag.evaluation").joinpath("demo_questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [Question(found["question"], frozenset(found["answers"])) for found in map(json.loads, lines)]
