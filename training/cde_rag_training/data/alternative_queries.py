"""Alternative queries for a document, besides the pair's own."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\b[^\W\d_][\w-]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class KeywordQueries:
    """Queries of three to six words of a document, the rarer in the corpus the likelier.

    Args:
        documents: The corpus that word rarity is counted in.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        self._frequencies = Counter(word for text in documents for word in set(_words(text)))
        self._count = len(documents)

    def draw(self, document: str, random: np.random.Generator) -> str | None:
        """Draw some words of the document, in its order; None if it has fewer than eight different ones."""
        counts = Counter(_words(document))
        if len(counts) < 8:
            return None
        words = list(counts)
        weights = np.array(
            [(1 + np.log(counts[word])) * np.log(self._count / (1 + self._frequencies[word])) for word in words]
        ).clip(min=1e-6)
        size = int(random.integers(3, 7))
        chosen = random.choice(len(words), size=size, replace=False, p=weights / weights.sum())
        return " ".join(words[place] for place in sorted(chosen.tolist()))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def sentence_and_rest(document: str, random: np.random.Generator, *, reach: int) -> tuple[str, str] | None:
    """Draw one sentence; return it and the document without it, or None for fewer than three sentences.

    Args:
        document: Text of any length.
        random: Draws the sentence.
        reach: Number of characters of the document that the model reads; the sentence is drawn from them.
    """
    sentences = _SENTENCE.split(document)
    ends = [*(gap.start() for gap in _SENTENCE.finditer(document)), len(document)]
    long = [
        place
        for place, (sentence, end) in enumerate(zip(sentences, ends, strict=True))
        if end <= reach and 5 <= len(sentence.split()) <= 40
    ]
    if len(sentences) < 3 or not long:
        return None
    place = long[int(random.integers(len(long)))]
    return sentences[place], " ".join(sentences[:place] + sentences[place + 1 :])


def without_parent(query: str, parent: str) -> str:
    """Remove the parent's name in front of a query ("page: heading" → "heading"), if it is there."""
    heading = query.removeprefix(f"{parent}: ")
    return heading if heading else query
