"""Text search (BM25): Qdrant's results by sparse vectors, with equal scores in order of insertion."""

from collections.abc import Sequence
from typing import Final

from cde_rag.stores.base import Hit
from cde_rag.stores.filter_conditions import And, Filter, holds
from cde_rag.stores.qdrant_base.filter_translation import translate
from cde_rag.stores.qdrant_base.payload import ORDER, place_of, read
from cde_rag.stores.qdrant_base.points import Found, Points
from cde_rag.stores.qdrant_base.sparse_text import Sparse, question, weights

_AT_ONCE: Final = 512  # records whose words are written together


def search_text(points: Points, name: str, queries: Sequence[str], k: int, *, where: Filter | None) -> list[list[Hit]]:
    """Return up to k records per query with some of its terms, best first.

    Args:
        points: Points to search.
        name: Name of the active generation's vectors.
        queries: Texts.
        k: Number of hits wanted.
        where: Filter of the records.

    Raises:
        StoreFormatError: A point in the results is damaged.
    """
    asked = map(question, queries)
    return [[] if words is None else _best(points, name, words, k, where or And(())) for words in asked]


def _best(points: Points, name: str, words: Sparse, k: int, where: Filter) -> list[Hit]:
    selection, exact = translate(where)

    def passes(point: Found) -> bool:
        if ORDER not in (point.payload or {}):  # someone else's, with a vector of the same name
            return False
        return exact or holds(where, read(point, name, points.place).row.record.metadata)

    limit = k + 1
    while True:
        found = points.matching(words, limit, where=selection)
        passing = [point for point in found if passes(point)]
        best = sorted(passing, key=lambda point: (-point.score, *place_of(point, points.place)))[:k]
        if len(found) < limit or (len(best) == k and found[-1].score < best[-1].score):
            return [read(point, name, points.place).hit(float(point.score)) for point in best]
        limit *= 2


def write_words(points: Points, name: str) -> None:
    """Rebuild the sparse vectors of all records; `name` is the name of the active generation's vectors."""
    some: dict[str, Sparse | None] = {}
    for point in points.in_order(at_once=_AT_ONCE):
        some[str(point.id)] = weights(read(point, name, points.place).row.record)
        if len(some) == _AT_ONCE:
            points.set_words(some)
            some = {}
    points.set_words(some)
