"""Corpora made of the words that the tiny model knows."""

import random

from llama_index.core import Document
from tiny import WORDS


def sentences(count: int, *, seed: int = 0) -> list[str]:
    """Different sentences of eight words."""
    words = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(words.choices(WORDS, k=8))] = None
    return list(found)


def corpus(count: int = 80, *, seed: int = 0) -> list[Document]:
    return [Document(text=text, id_=f"{seed}-{number}") for number, text in enumerate(sentences(count, seed=seed))]
