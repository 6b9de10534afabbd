"""What ranks the records of a collection for a query: its vectors, its words, both, or a reranker."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

from cde_rag.embedders.active import SWITCHES, ActiveEmbedder, switched_all_the_time
from cde_rag.records import embedded_text
from cde_rag.search.fusion import fuse
from cde_rag.stores.base import Hit, Record, Store

Rerank: TypeAlias = Callable[[Sequence[tuple[str, str]]], Iterable[SupportsFloat]]
"""Pairs of a query and a text in, a score for each out, higher is better; as `CrossEncoder.predict`."""


@runtime_checkable
class Ranker(Protocol):
    """Ranks records. Of one query and filter, a longer ranking begins as a shorter one does."""

    @property
    def depth(self) -> int | None:
        """The longest ranking that there is; None where all records that match are in it."""
        ...

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """The first `limit` hits for each query, among the records that match the filter."""
        ...


@dataclass(frozen=True)
class DenseRetriever:
    """By the dot product of vectors."""

    store: Store
    active: ActiveEmbedder
    depth: int | None = None

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """See `Ranker.best`."""
        for _ in range(SWITCHES):
            embedder = self.active.last
            vectors = embedder.embed_queries(queries)
            with self.active.following(embedder):
                return self.store.search(vectors, limit, fingerprint=embedder.fingerprint, where=where)
        raise switched_all_the_time()


@dataclass(frozen=True)
class BM25Retriever:
    """By BM25; records that share no word with the query are not found."""

    store: Store
    depth: int | None = None

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """See `Ranker.best`."""
        return self.store.search_text(queries, limit, where=where)


@dataclass(frozen=True)
class HybridRetriever:
    """By vectors and by words, fused; equal scores by vectors first, then by words.

    As many hits of each side are fused however few are asked for, so that a longer ranking begins as a shorter one.

    Attributes:
        vectors: Ranks by vectors.
        words: Ranks by words.
        candidates: How many hits of each are fused.
        fusion: See `fuse`.
        weight: Of the vectors; see `fuse`.
    """

    vectors: Ranker
    words: Ranker
    candidates: int
    fusion: str
    weight: float

    @property
    def depth(self) -> int:
        """See `Ranker.depth`."""
        return 2 * self.candidates

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """See `Ranker.best`."""
        vectors, words = (ranker.best(queries, self.candidates, where) for ranker in (self.vectors, self.words))
        return [self._fused(*sides)[:limit] for sides in zip(vectors, words, strict=True)]

    def _fused(self, vectors: Sequence[Hit], words: Sequence[Hit]) -> list[Hit]:
        hits = {hit.id: hit for hit in (*words, *vectors)}
        sides = ([(hit.id, hit.score) for hit in side] for side in (vectors, words))
        found = fuse(*sides, fusion=self.fusion, weight=self.weight, candidates=self.candidates)
        return [dataclasses.replace(hits[id_], score=score) for id_, score in found]


@dataclass(frozen=True)
class Reranked:
    """By scores of pairs of query and text; equal ones as they were ranked before.

    Attributes:
        ranker: Finds the candidates.
        rerank: Scores them.
        candidates: How many there are for each query.
    """

    ranker: Ranker
    rerank: Rerank
    candidates: int

    @property
    def depth(self) -> int:
        """See `Ranker.depth`."""
        return self.candidates

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """See `Ranker.best`.

        Raises:
            ValueError: `rerank` gave not one number for each text.
        """
        found = self.ranker.best(queries, self.candidates, where)
        pairs = [(query, _text(hit)) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = [float(score) for score in self.rerank(pairs)] if pairs else []
        if len(scores) != len(pairs) or any(map(math.isnan, scores)):
            told = f"{len(scores)} scores" if len(scores) != len(pairs) else "NaN among them"
            raise ValueError(f"rerank: expected a number for each of {len(pairs)} pairs of texts, found {told}.")
        given = iter(scores)
        rescored = [[dataclasses.replace(hit, score=next(given)) for hit in hits] for hits in found]
        return [sorted(hits, key=lambda hit: -hit.score)[:limit] for hits in rescored]


def _text(hit: Hit) -> str:
    """What of a hit was embedded."""
    return embedded_text(Record(hit.id, hit.text, hit.title))
