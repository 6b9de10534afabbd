"""Rankings of documents, made of scores by vectors, by words or by both."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.search.fusion import CANDIDATES, Fusion, Scored, fuse

DEPTH = 100  # documents of a ranking; what the deepest metric looks at
_QUERIES_AT_ONCE = 128  # rows of one score matrix

Ranking = list[str]  # ids of documents, best first


def rank(
    scores: Iterable[Float32[np.ndarray, " documents"]],
    document_ids: Sequence[str],
    query_ids: Sequence[str],
    *,
    depth: int = DEPTH,
) -> list[Ranking]:
    """Rank the best documents for each query.

    A document with its query's id is left out: it is the query. Equal scores are ordered by document id, so a ranking
    does not depend on the order of the corpus.

    Args:
        scores: For each query one score per document, higher is better; minus infinity means "not found".
        document_ids: Id per score; passages of one document share its id, and the best of them counts.
        query_ids: One per row of scores.
        depth: Maximum number of documents in a ranking.
    """
    by_id = np.argsort(np.asarray(document_ids, dtype=object), kind="stable")
    documents = sorted(set(document_ids))
    ordered = [document_ids[int(position)] for position in by_id]
    first_passages = [place for place, name in enumerate(ordered) if place == 0 or name != ordered[place - 1]]
    rankings: list[Ranking] = []
    for row, query in zip(scores, query_ids, strict=True):
        best = _highest(np.maximum.reduceat(row[by_id], first_passages), depth + 1)
        found = (documents[int(position)] for position in best)
        rankings.append([document for document in found if document != query][:depth])
    return rankings


def rank_vectors(
    queries: Float32[np.ndarray, "queries dim"],
    documents: Float32[np.ndarray, "documents dim"],
    document_ids: Sequence[str],
    query_ids: Sequence[str],
) -> list[Ranking]:
    """Rank the documents of the highest dot products for each query."""

    def rows() -> Iterator[Float32[np.ndarray, " documents"]]:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            yield from queries[start : start + _QUERIES_AT_ONCE] @ documents.T

    return rank(rows(), document_ids, query_ids)


def rank_hybrid(
    queries: Float32[np.ndarray, "queries dim"],
    documents: Float32[np.ndarray, "documents dim"],
    words: Iterable[Scored],
    document_ids: Sequence[str],
    query_ids: Sequence[str],
    *,
    fusion: Fusion = "convex",
    weight: float | None = None,
) -> list[Ranking]:
    """The documents of the best passages by vectors and words, fused as `Collection.hybrid` fuses them.

    Args:
        queries: Unit vectors.
        documents: Unit vectors of passages.
        words: For each query, its best passages by BM25, named by their positions; see `word_hits`.
        document_ids: As in `rank`.
        query_ids: One for each query.
        fusion: As in `fuse`.
        weight: As in `fuse`.
    """
    rankings: list[Ranking] = []
    for vector, by_words, query in zip(queries, words, query_ids, strict=True):
        scores = documents @ vector
        by_vectors = [(str(place), float(scores[place])) for place in _highest(scores, CANDIDATES)]
        hits = fuse(by_vectors, by_words, fusion=fusion, weight=weight)
        fused = sorted(hits, key=lambda hit: (-hit[1], document_ids[int(hit[0])]))
        found = dict.fromkeys(document_ids[int(place)] for place, _ in fused)
        rankings.append([document for document in found if document != query][:DEPTH])
    return rankings


def _highest(scores: Float32[np.ndarray, " documents"], k: int) -> Int64[np.ndarray, " best"]:
    """Return positions of the k highest scores, best first, ties in order of position; never of minus infinity."""
    last = np.partition(scores, -k)[-k] if k < len(scores) else -np.inf
    candidates = np.flatnonzero((scores >= last) & (scores > -np.inf))
    return candidates[np.argsort(-scores[candidates], kind="stable")][:k]
