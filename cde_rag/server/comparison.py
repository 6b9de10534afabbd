"""Comparison of rankings: the same query under the own context, the null context, BM25 and both."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.context.context import Context
from cde_rag.embedders.protocol import unwrapped
from cde_rag.errors import ContextError
from cde_rag.indexing.sibling_passages import Passage, with_siblings
from cde_rag.models.token_batches import KeptVectors
from cde_rag.records import Hit, Row, embedded_text
from cde_rag.server.registry import ServedCollection
from cde_rag.server.search_results import with_matches, with_warnings
from cde_rag.server.token_batcher import BatchedEmbedder, TokenBatcher

CANDIDATES: Final = 30  # of each other ranking; they are ranked again in the null context
KEPT: Final = 20_000  # vectors in the null context


class NullRanker:
    """Ranking of candidates in the null context; their vectors are kept, the last used ones. Thread-safe.

    Args:
        batcher: Batcher of all texts.
    """

    def __init__(self, batcher: TokenBatcher) -> None:
        self._batcher = batcher
        self._lock = threading.Lock()
        self._embedders: dict[str, BatchedEmbedder] = {}  # by their fingerprint
        self._kept = KeptVectors(KEPT)

    def ranked(self, served: ServedCollection, query: str, ids: Sequence[str]) -> list[Hit]:
        """Rank records for a query by their vectors in the null context, with the siblings that they are stored with.

        Raises:
            ContextError: The collection's model has no null context, or reads no context at all.
        """
        embedder = self._embedder(served)
        store, key = served.collection.store, served.collection.parent_key
        rows = store.get(ids)
        if not rows:
            return []
        vectors = self._embedded(rows, with_siblings(store, rows, key, embedder), embedder)
        scores = (vectors @ embedder.embed_queries([query])[0]).tolist()
        hits = [row.hit(score) for row, score in zip(rows, scores, strict=True)]
        return sorted(hits, key=lambda hit: -hit.score)

    def _embedder(self, served: ServedCollection) -> BatchedEmbedder:
        embedder = unwrapped(served.collection.embedder)
        if embedder.context.identity.is_plain:
            raise ContextError("The model of the collection reads no context.")
        null = Context.null(embedder.context)
        with self._lock:
            if null.fingerprint not in self._embedders:
                self._embedders[null.fingerprint] = BatchedEmbedder(embedder.with_context(null), self._batcher)
            return self._embedders[null.fingerprint]

    def _embedded(
        self, rows: Sequence[Row], passages: Sequence[Passage], embedder: BatchedEmbedder
    ) -> Float32[np.ndarray, "rows dim"]:
        def make(places: list[int]) -> Float32[np.ndarray, "places dim"]:
            texts = [embedded_text(rows[place].record) for place in places]
            return embedder.embed_passages(texts, [passages[place].siblings for place in places]).vectors

        return np.stack(self._kept.of([(embedder.fingerprint, passage.digest) for passage in passages], make))


def compared(
    served: ServedCollection, query: str, k: int, where: Mapping[str, Any] | None, null: NullRanker
) -> dict[str, Any]:
    """Search a collection in four ways.

    Args:
        served: The collection.
        query: Text that is not blank.
        k: Maximum number of hits per column.
        where: A filter over the metadata.
        null: Ranker of the null context's column.

    Returns:
        `{"columns": [{"name", "hits"}], "warnings"}`, the columns named own, null, bm25 and hybrid; a ranking that the
        collection cannot have says why in "missing".
    """
    limit, searchers = max(k, CANDIDATES), {"own": served.collection.searcher("vectors")}
    if served.has_bm25:
        searchers |= {"bm25": served.collection.searcher("bm25"), "hybrid": served.collection.searcher("hybrid")}
    found, warnings = with_warnings(
        served.collection,
        lambda: [(way, hit) for way, each in searchers.items() for hit in each.search(query, limit, where=where)],
        where,
        query,
    )
    hits = {way: [hit for of, hit in found if of == way] for way in searchers}
    columns: dict[str, dict[str, Any]] = {
        way: {"hits": [with_matches(hit, query) for hit in hits[way][:k]]} for way in searchers
    }
    candidates = list(dict.fromkeys(hit.id for way in searchers for hit in hits[way][:CANDIDATES]))
    try:
        ranked = null.ranked(served, query, candidates)[:k]
        columns["null"] = {"hits": [with_matches(hit, query) for hit in ranked]}
    except ContextError as error:
        columns["null"] = {"missing": str(error)}
    without = {"missing": "The collection has no text index."}
    named = [{"name": way, **columns.get(way, without)} for way in ("own", "null", "bm25", "hybrid")]
    return {"columns": named, "warnings": warnings}
