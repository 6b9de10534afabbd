"""BM25 as sparse vectors: a record's dot product with a query's is its BM25 score.

    score(query, record) = Σ over the query's terms, repeated ones too, of idf(term) · weight(term, record)
    idf = ln(1 + (N − n + 0.5) / (n + 0.5))       Qdrant's; of N records with any term, n have this one
    weight = f · 2.2 / (f + 0.3 + 0.9 · l / 100)  stored; f is the term's frequency in the record, of l terms
                                                  (k1 = 1.2, b = 0.75, average length 100)

A fixed average length keeps stored weights valid when other records are added or deleted.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from cde_rag.records import Record
from cde_rag.stores.text_analysis import K1, B, TextAnalyzer

WORDS: Final = "cde_words"  # name of the sparse vectors
_USUAL_LENGTH: Final = 100  # words of a record


class Sparse(NamedTuple):
    """A sparse vector.

    Attributes:
        indices: 32-bit digests of words, ascending.
        values: One for each.
    """

    indices: list[int]
    values: list[float]


def weights(record: Record, analyzer: TextAnalyzer) -> Sparse | None:
    """Return the BM25 weights of a record's terms; None if it has none."""
    words = analyzer.record_terms(record)
    norm = K1 * (1 - B + B * len(words) / _USUAL_LENGTH)
    counts = sorted(Counter(map(_index, words)).items())
    if not counts:
        return None
    times = np.array([count for _, count in counts], np.float64)
    values = (times * (K1 + 1) / (times + norm)).astype(np.float32)
    return Sparse([index for index, _ in counts], values.tolist())


def named_weights(record: Record, analyzer: TextAnalyzer) -> dict[str, Sparse]:
    """Return the sparse vector of a record by its name; empty if it has no terms."""
    found = weights(record, analyzer)
    return {} if found is None else {WORDS: found}


def query_vector(query: str, analyzer: TextAnalyzer) -> Sparse | None:
    """Return the sparse vector of a query, the frequency of each term; None if it has none."""
    counts = sorted(Counter(map(_index, analyzer.terms(query))).items())
    return Sparse([index for index, _ in counts], [float(count) for _, count in counts]) if counts else None


def is_as_written(vectors: object, record: Record, analyzer: TextAnalyzer) -> bool:
    """Return True if the vectors of a point, by name, have the terms of its record."""
    found = cast(Mapping[str, Any], vectors).get(WORDS) if isinstance(vectors, Mapping) else None
    expected = weights(record, analyzer)
    if found is None or expected is None:
        return found is expected
    there = sorted(zip(_listed(found.indices), _listed(found.values), strict=True))
    return there == list(zip(*expected, strict=True))


def _listed(values: Sequence[Any]) -> list[Any]:
    return list(values)


@functools.lru_cache(2**16)
def _index(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
