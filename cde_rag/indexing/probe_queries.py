"""Queries made of documents' own words, for a first look at a space without judgments."""

import hashlib
import heapq
import math
import re
from collections import Counter
from collections.abc import Sequence

RARE_WORDS = 3  # of a document that make a query                                           docs/drift.md
RUN = 10  # words in a row that make a query, at most a third of the text                   docs/drift.md
_WORD = re.compile(r"\w{3,}")


def rare_words(texts: Sequence[str]) -> list[str]:
    """Make a query of each text's words with the highest TF-IDF, in the text's order.

    Source: Robertson & Spärck Jones 1976 (inverse document frequency), with (1 + log tf) and three letters a word.

    Example:
        >>> rare_words(["the cat sat upon the mat", "the dog sat upon the log"])
        ['cat sat mat', 'dog sat log']
    """
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    found_in = Counter(word for words in counts for word in words)  # documents
    queries: list[str] = []
    for text, words in zip(texts, counts, strict=True):
        weights = {word: (1 + math.log(n)) * math.log(len(texts) / found_in[word]) for word, n in words.items()}
        best = set(heapq.nsmallest(RARE_WORDS, weights, key=lambda word: (-weights[word], word)))
        queries.append(" ".join(word for word in words if word in best) or text)
    return queries


def run_of_words(text: str) -> str:
    """Make a query of consecutive words of a text, at a position that depends on the text alone."""
    words = text.split()
    length = max(1, min(RUN, len(words) // 3))
    start = rank(text, 0) % (len(words) - length + 1)
    return " ".join(words[start : start + length])


def rank(text: str, seed: int) -> int:
    """Return 64 bits of a hash, with a salt unlike that of the samples of contexts."""
    data = f"probe {seed}\0{text}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
