"""A record's words as a sparse vector, whose dot product with a query's is BM25.

    score(query, record) = Σ over the query's words, as often as they come, of idf(word) · weight(word, record)
    idf = ln(1 + (N − n + 0.5) / (n + 0.5))       Qdrant's; N records have a word at all, n of them this one
    weight = f · 2.2 / (f + 0.3 + 0.9 · l / 100)  stored; f times it stands in the record, of l words
                                                  (k1 = 1.2, b = 0.75, for records of 100 words as a rule)

A fixed usual length in place of the records' mean keeps what is stored right when other records come and go.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from cde_rag.stores.base import Record
from cde_rag.stores.text_analysis import words_in, words_of

WORDS: Final = "cde_words"  # name of the sparse vectors
_K1: Final = 1.2
_B: Final = 0.75
_USUAL_LENGTH: Final = 100  # words of a record


class Sparse(NamedTuple):
    """A sparse vector.

    Attributes:
        indices: 32-bit digests of words, ascending.
        values: One for each.
    """

    indices: list[int]
    values: list[float]


def weights(record: Record) -> Sparse | None:
    """What a record weighs for each of its words; None where it has none."""
    words = words_of(record)
    norm = _K1 * (1 - _B + _B * len(words) / _USUAL_LENGTH)
    counts = sorted(Counter(map(_index, words)).items())
    if not counts:
        return None
    values = [float(np.float32(count * (_K1 + 1) / (count + norm))) for _, count in counts]
    return Sparse([index for index, _ in counts], values)


def named_weights(record: Record) -> dict[str, Sparse]:
    """The sparse vector of a record by its name; none where it has no words."""
    found = weights(record)
    return {} if found is None else {WORDS: found}


def question(query: str) -> Sparse | None:
    """A query, each of whose words counts as often as it comes; None where it has none."""
    counts = sorted(Counter(map(_index, words_in(query))).items())
    return Sparse([index for index, _ in counts], [float(count) for _, count in counts]) if counts else None


def is_as_written(vectors: object, record: Record) -> bool:
    """Whether the vectors of a point, by name, have the words of its record."""
    found = cast(Mapping[str, Any], vectors).get(WORDS) if isinstance(vectors, Mapping) else None
    expected = weights(record)
    if found is None or expected is None:
        return found is expected
    there = sorted(zip(_listed(found.indices), _listed(found.values), strict=True))
    return there == list(zip(*expected, strict=True))


def _listed(values: Sequence[Any]) -> list[Any]:
    return list(values)


def _index(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
