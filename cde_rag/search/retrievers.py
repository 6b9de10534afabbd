"""Retrievers of a collection: by vectors, by BM25, by both (hybrid), and with a reranker. All are a `Ranker`."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.embedders.active import SWITCHES, ActiveEmbedder, too_many_switches
from cde_rag.errors import TextIndexError, TextIndexWarning, warn_user
from cde_rag.records import Hit, Record, embedded_text
from cde_rag.search.calibration import Calibration, calibration_of
from cde_rag.search.fusion import fuse
from cde_rag.stores.engine import Found
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState

Rerank: TypeAlias = Callable[[Sequence[tuple[str, str]]], Iterable[SupportsFloat]]
"""Function from pairs of a query and a text to a score for each, higher is better, such as `CrossEncoder.predict`."""


@runtime_checkable
class Ranker(Protocol):
    """Ranker of records. For one query and filter, a longer ranking begins with the shorter ones."""

    @property
    def depth(self) -> int | None:
        """Maximum length of a ranking; None if rankings contain all matching records."""
        ...

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """Return the first `limit` hits for each query, among the records that match the filter."""
        ...


@dataclass(frozen=True)
class DenseRetriever:
    """Retriever that ranks by the dot product of vectors.

    Attributes:
        store: Store of the collection.
        active: Its embedder.
        depth: None, since all matching records are ranked.
    """

    store: Store
    active: ActiveEmbedder
    depth: int | None = None

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """Return the `limit` nearest records for each query; repeat if another generation was activated meanwhile.

        Raises:
            ContextMismatchError: The active Context was made by a model that cannot be found under its name.
            StoreError: Another generation was activated during every attempt.
        """
        return _followed(
            self.active,
            queries,
            lambda vectors, space: self.store.search(vectors, limit, fingerprint=space, where=where),
        )


@dataclass(frozen=True)
class BM25Retriever:
    """Retriever that ranks by BM25; records that share no word with the query are not found.

    Attributes:
        store: Store of the collection.
        depth: None, since all matching records that share a word with the query are ranked.
    """

    store: Store
    depth: int | None = None

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """Return the `limit` records with the highest BM25 scores for each query."""
        return self.store.search_text(queries, limit, where=where)


@dataclass(frozen=True)
class HybridRetriever:
    """Retriever that fuses a ranking by vectors and one by BM25; ties are ranked by vectors first, then by BM25.

    The number of hits that are fused does not depend on `limit`, so that a longer ranking begins with the shorter ones.

    Both are searched in one state of the store, and only the records that are returned are read. Where the collection
    is calibrated, convex scores are on its scale, and a query may find nothing.

    Attributes:
        store: Store of the collection.
        active: Its embedder.
        candidates: Number of hits of each ranking that are fused.
        fusion: Name of the fusion, as in `fuse`.
        weight: Weight of the vectors, as in `fuse`.
    """

    store: Store
    active: ActiveEmbedder
    candidates: int
    fusion: str
    weight: float

    @property
    def depth(self) -> int:
        """Maximum length of a fused ranking: twice `candidates`."""
        return 2 * self.candidates

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """Return the first `limit` hits of the fused ranking for each query; raises as `DenseRetriever.best`.

        Warns:
            TextIndexWarning: The store has no text index: these are the hits by vectors alone.
        """
        return _followed(self.active, queries, partial(self._search, queries, limit, where))

    def _search(
        self,
        queries: Sequence[str],
        limit: int,
        where: Mapping[str, Any] | None,
        vectors: Float32[np.ndarray, "queries dim"],
        space: str,
    ) -> list[list[Hit]]:
        def fused(state: StoreState) -> list[list[Hit]]:
            near = state.nearest(vectors, self.candidates, fingerprint=space, where=where)
            written = state.matching(queries, self.candidates, where=where)
            known = calibration_of(state.manifest().settings, space) if self.fusion == "convex" else None
            return [state.hits(self._fused(*sides, known)[:limit]) for sides in zip(near, written, strict=True)]

        try:
            return self.store.read(fused)
        except TextIndexError:
            warn_user(
                "This collection has no text index: it is searched by vectors alone. Add one with `cde-rag "
                'reindex`, which embeds nothing, or write by="vectors".',
                TextIndexWarning,
            )
            return self.store.search(vectors, limit, fingerprint=space, where=where)

    def _fused(self, vectors: Sequence[Found], words: Sequence[Found], known: Calibration | None) -> list[Found]:
        read = {found.key: found.record for found in (*words, *vectors) if found.record is not None}
        near, written = ([(found.key, found.score) for found in side] for side in (vectors, words))
        best = fuse(near, written, fusion=self.fusion, weight=self.weight, candidates=self.candidates)
        if known is not None:
            best = known.scaled(best, near, written, self.weight)
        return [Found(key, score, read.get(key)) for key, score in best]


@dataclass(frozen=True)
class Reranked:
    """Ranker that orders the candidates of another one by scores of query and text; ties keep their order.

    Attributes:
        ranker: Ranker of the candidates.
        rerank: Function that scores pairs of a query and a text.
        candidates: Number of hits to rerank per query.
    """

    ranker: Ranker
    rerank: Rerank
    candidates: int

    @property
    def depth(self) -> int:
        """Maximum length of a ranking: `candidates`."""
        return self.candidates

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """Rerank the candidates and return the first `limit` for each query.

        Raises:
            ValueError: `rerank` did not return one number for each pair.
        """
        found = self.ranker.best(queries, self.candidates, where)
        pairs = [(query, _text(hit)) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = [float(score) for score in self.rerank(pairs)] if pairs else []
        if len(scores) != len(pairs) or any(map(math.isnan, scores)):
            problem = f"{len(scores)} scores" if len(scores) != len(pairs) else "NaN among them"
            raise ValueError(f"rerank: expected a number for each of {len(pairs)} pairs of texts, found {problem}.")
        given = iter(scores)
        rescored = [[dataclasses.replace(hit, score=next(given)) for hit in hits] for hits in found]
        return [sorted(hits, key=lambda hit: -hit.score)[:limit] for hits in rescored]


def _followed(
    active: ActiveEmbedder,
    queries: Sequence[str],
    search: Callable[[Float32[np.ndarray, "queries dim"], str], list[list[Hit]]],
) -> list[list[Hit]]:
    """Search with the vectors of queries and their fingerprint; repeat if another generation was activated."""
    for _ in range(SWITCHES):
        embedder = active.last
        vectors = embedder.embed_queries(queries)
        with active.following(embedder):
            return search(vectors, embedder.fingerprint)
    raise too_many_switches()


def _text(hit: Hit) -> str:
    """Return the text of a hit that was embedded: title and text."""
    return embedded_text(Record(hit.id, hit.text, hit.title))
