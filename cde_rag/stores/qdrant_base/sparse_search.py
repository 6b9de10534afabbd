"""Text search (BM25): Qdrant's results by sparse vectors, with equal scores in order of insertion."""

from collections.abc import Sequence

from cde_rag.stores.engine import Found
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.payload import ID, ORDER, RECORD, key_of, place_of, read
from cde_rag.stores.qdrant_base.points import Points
from cde_rag.stores.qdrant_base.points_manifest import PointsManifest
from cde_rag.stores.qdrant_base.sparse_text import Sparse, query_vector


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
    return [[] if words is None else _best(points, manifest, words, k, where, payload) for words in asked]


def _best(
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
