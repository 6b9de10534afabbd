"""Text search (BM25): Qdrant's results by sparse vectors, with equal scores in order of insertion."""

from collections.abc import Sequence

from cde_rag.stores.base import Hit
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.payload import place_of, read
from cde_rag.stores.qdrant_base.points import Points
from cde_rag.stores.qdrant_base.points_manifest import PointsManifest
from cde_rag.stores.qdrant_base.sparse_text import Sparse, query_vector


def search_text(
    points: Points, manifest: PointsManifest, queries: Sequence[str], k: int, *, where: PointFilter
) -> list[list[Hit]]:
    """Return up to k records per query with some of its terms, best first.

    Args:
        points: Points to search.
        manifest: Names the active generation and the analyzer.
        queries: Texts.
        k: Number of hits wanted.
        where: Filter of the records.

    Raises:
        StoreFormatError: A point in the results is damaged.
    """
    name, asked = manifest.serving.vector, (query_vector(query, manifest.analyzer) for query in queries)
    return [[] if words is None else _best(points, name, words, k, where) for words in asked]


def _best(points: Points, name: str, words: Sparse, k: int, where: PointFilter) -> list[Hit]:
    limit = k + 1
    while True:
        found = points.matching(words, limit, where=where.selection)
        passing = [point for point in found if where.passes(point)]
        best = sorted(passing, key=lambda point: (-point.score, *place_of(point, points.place)))[:k]
        if len(found) < limit or (len(best) == k and found[-1].score < best[-1].score):
            return [read(point, name, points.place).row.hit(float(point.score)) for point in best]
        limit *= 2
