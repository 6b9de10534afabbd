"""Search by vectors, whose results are scored again in float64, and by words (BM25).

Qdrant computes in float32 and orders equal scores arbitrarily, so more than k points are requested: until the last
result scores less than the k-th by more than the rounding error. A filter that Qdrant cannot express exactly is
evaluated again here, and more points are requested until k records pass it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.engine import Found
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.payload import (
    ID,
    ORDER,
    RECORD,
    checked_vector,
    key_of,
    place_of,
    read,
    vector_of,
)
from cde_rag.stores.qdrant_base.points import FoundPoint, Points
from cde_rag.stores.qdrant_base.words import Sparse, query_vector

_MORE: Final = 16  # points requested beyond k
_POINTS: Final = 4096  # points of one request, unless one query needs more


def search(
    points: Points,
    name: str,
    queries: Float32[np.ndarray, "queries dim"],
    k: int,
    *,
    where: PointFilter,
    exact: bool,
    prefix: int | None,
    complete: bool,
) -> list[list[Found]]:
    """Return min(k, matching records) results for each query, best first; equal scores in order of insertion.

    Args:
        points: Points to search.
        name: Name of the vectors.
        queries: Unit vectors.
        k: Number of results wanted.
        where: Filter of the records.
        exact: True to search without HNSW. If HNSW finds fewer than k, the search is exact in any case.
        prefix: Number of dimensions of the first search by prefixes; None for full vectors, or their codes.
        complete: True to read the records, too.

    Raises:
        StoreFormatError: A point in the results is damaged.
    """
    running = _PointSearch(points, name, where, k, prefix, complete=complete)
    found: list[list[Found]] = []
    exact = exact or (points.always_exact and prefix is None)
    at_once = max(1, _POINTS // (k + _MORE))
    for start in range(0, len(queries), at_once):
        found += running.best(queries[start : start + at_once], exact=exact)
    return found


class _PointSearch:
    """One vector search of a collection, in one or more requests."""

    def __init__(
        self, points: Points, name: str, where: PointFilter, k: int, prefix: int | None, *, complete: bool
    ) -> None:
        self.points = points
        self.prefix = prefix
        self.name = name
        self.where = where
        self.k = k
        self.payload = None if complete else where.payload([ID, ORDER, RECORD, name])

    def best(self, queries: Float32[np.ndarray, "queries dim"], *, exact: bool) -> list[list[Found]]:
        """Return the results of each query."""
        hits: dict[int, list[Found]] = {}
        open_, limit = list(range(len(queries))), self.k + _MORE
        while open_:
            found = self.points.nearest(
                self.name,
                queries[open_],
                limit,
                where=self.where.selection,
                exact=exact,
                prefix=self.prefix,
                payload=self.payload,
            )
            for number, points in zip(list(open_), found, strict=True):
                enough = self._enough(queries[number], points, limit)
                if enough is not None and (exact or len(enough) == self.k):
                    hits[number] = enough
                    open_.remove(number)
                elif enough is not None:
                    hits[number] = self.best(queries[number : number + 1], exact=True)[0]
                    open_.remove(number)
            limit *= 2
        return [hits[number] for number in range(len(queries))]

    def _enough(
        self, query: Float32[np.ndarray, "dim"], points: Sequence[FoundPoint], limit: int
    ) -> list[Found] | None:
        """Return the results; None if points that were not returned could be among them."""
        passing = [point for point in points if self.where.passes(point)]
        scores = self._scores(query, passing)
        places = [(-score, *place_of(point, self.points.place)) for score, point in zip(scores, passing, strict=True)]
        best = sorted(range(len(passing)), key=places.__getitem__)[: self.k]
        if len(points) == limit:
            slack = 4 * len(query) * float(np.finfo(np.float32).eps)
            if len(best) < self.k or points[-1].score >= scores[best[-1]] - slack:
                return None
        return [self._found(scores[number], passing[number]) for number in best]

    def _scores(self, query: Float32[np.ndarray, "dim"], points: Sequence[FoundPoint]) -> list[float]:
        matrix = np.empty((len(points), len(query)), np.float32)
        for number, point in enumerate(points):
            matrix[number] = vector_of(point, self.name)
        return (matrix * query.astype(np.float64)).sum(axis=1).tolist()

    def _found(self, score: float, point: FoundPoint) -> Found:
        record = None if self.payload else read(point, self.name, self.points.place).row.record
        checked_vector(point, self.name, self.points.place)
        return Found(key_of(point), score, record)


def search_text(
    points: Points, manifest: PointsManifest, queries: Sequence[str], k: int, *, where: PointFilter, complete: bool
) -> list[list[Found]]:
    """Return up to k records per query with some of its terms, best first.

    Args:
        points: Points to search.
        manifest: Names the active generation and the analyzer.
        queries: Texts.
        k: Number of results wanted.
        where: Filter of the records.
        complete: True to read the records, too.

    Raises:
        StoreFormatError: A point in the results is damaged.
    """
    asked = (query_vector(query, manifest.analyzer) for query in queries)
    payload = None if complete else where.payload([ID, ORDER, RECORD])
    return [[] if words is None else _best_by_words(points, manifest, words, k, where, payload) for words in asked]


def _best_by_words(
    points: Points, manifest: PointsManifest, words: Sparse, k: int, where: PointFilter, payload: list[str] | None
) -> list[Found]:
    limit = k + 1
    while True:
        found = points.matching(words, limit, where=where.selection, payload=payload)
        passing = [point for point in found if where.passes(point)]
        best = sorted(passing, key=lambda point: (-point.score, *place_of(point, points.place)))[:k]
        if len(found) < limit or (len(best) == k and found[-1].score < best[-1].score):
            break
        limit *= 2
    name = manifest.serving.vector
    records = [None if payload else read(point, name, points.place).row.record for point in best]
    return [Found(key_of(point), float(point.score), record) for point, record in zip(best, records, strict=True)]
