"""Retrievers of a collection: by vectors, by BM25, by both (hybrid), and with a reranker. All are a `Ranker`."""

import dataclasses
import math
import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, SupportsFloat, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.embedders.active import SWITCHES, ActiveEmbedder, too_many_switches
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import PendingVectorsWarning, TextIndexError, TextIndexWarning, counted, warn_user
from cde_rag.records import Hit, Hits, Record, embedded_text
from cde_rag.search.calibration import ScoreCalibration, calibration_of
from cde_rag.search.fusion import Fusion, fuse
from cde_rag.stores.engine import Found
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreCalls, StoreState

Rerank: TypeAlias = Callable[[Sequence[tuple[str, str]]], Iterable[SupportsFloat]]
"""Function from pairs of a query and a text to a score for each, higher is better, such as `CrossEncoder.predict`."""


_PART: Final = 8  # pairs that a reranker with a budget scores at once
ON_DEMAND: Final = 200  # best hits by BM25 of a query that are embedded, as time allows, if they wait for their vectors
UNMADE: Final = 50  # of those, the ones that are looked at in any case: vectors may be kept of them


@runtime_checkable
class OnDemand(Protocol):
    """Vectors of records that wait for theirs, such as `cde_rag.indexing.pending.OnDemandVectors`."""

    def known(
        self, state: StoreCalls, ids: Sequence[str], embedder: Embedder
    ) -> tuple[Mapping[str, Float32[np.ndarray, " dim"]], Sequence[Any]]:
        """Return the vectors of records that wait, by id, as far as they were made, and the records without one."""
        ...

    def reach(self, budget_s: float) -> int | None:
        """Return the number of records that `known` reads in a small part of this time; None where that is unknown."""
        ...

    def make(self, missing: Sequence[Any], embedder: Embedder, budget_s: float) -> int:
        """Embed records that `known` returned, in their order, until the time is over; return their number."""
        ...


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
    _told: set[type[Warning]] = field(default_factory=set[type[Warning]], compare=False, repr=False)

    def best(self, queries: Sequence[str], limit: int, where: Mapping[str, Any] | None) -> list[list[Hit]]:
        """Return the `limit` nearest records for each query; repeat if another generation was activated meanwhile.

        Raises:
            ContextMismatchError: The active Context was made by a model that cannot be found under its name.
            StoreError: Another generation was activated during every attempt.

        Warns:
            PendingVectorsWarning: Records wait for their vectors, and are not found; once.
        """
        found = _followed(
            self.active,
            queries,
            lambda vectors, embedder: self.store.search(vectors, limit, fingerprint=embedder.fingerprint, where=where),
        )
        if pending_of(found) and PendingVectorsWarning not in self._told:
            self._told.add(PendingVectorsWarning)
            warn_user(
                f"Without vectors yet, and not found by them: {counted(pending_of(found), 'record')}. Search by "
                "hybrid, which finds these by words, or make the vectors: collection.embed_pending().",
                PendingVectorsWarning,
            )
        return found


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
    is calibrated, convex scores are on its scale, and a query may find nothing. While records wait for their vectors,
    those of the best hits by BM25 are made within a time, the search is repeated with them, and scores have no scale.

    Attributes:
        store: Store of the collection.
        active: Its embedder.
        candidates: Number of hits of each ranking that are fused.
        fusion: Name of the fusion, as in `fuse`.
        weight: Weight of the vectors, as in `fuse`.
        on_demand: Vectors of records that wait for theirs.
        budget_s: Seconds in which these are made; 0 for none.
    """

    store: Store
    active: ActiveEmbedder
    candidates: int
    fusion: Fusion
    weight: float
    on_demand: OnDemand
    budget_s: float

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
        embedder: Embedder,
    ) -> list[list[Hit]]:
        missing: Sequence[Any] = ()
        pending, depth = 0, self._depth(len(queries))

        def fused(state: StoreState) -> list[list[Hit]]:
            nonlocal missing, pending
            near = state.nearest(vectors, self.candidates, fingerprint=embedder.fingerprint, where=where)
            pending = state.count_pending()
            words = max(self.candidates, depth) if pending and self.budget_s > 0 else self.candidates
            written = state.matching(queries, words, where=where)
            if not pending:
                missing = ()
                settings = state.manifest().settings
                known = calibration_of(settings, embedder.fingerprint) if self.fusion == "convex" else None
                return [state.hits(self._fused(*sides, known)[:limit]) for sides in zip(near, written, strict=True)]
            looked_at = _looked_at(state, written, depth)
            vectors_of, missing = self.on_demand.known(state, list(looked_at), embedder)
            waiting = {looked_at[each.row.record.id] for each in missing}
            found: list[list[Hit]] = []
            keys = {looked_at[id_]: vector for id_, vector in vectors_of.items()}
            for query, by_vectors, by_words in zip(vectors, near, written, strict=True):
                made = [Found(hit.key, _dot(keys[hit.key], query)) for hit in by_words if hit.key in keys]
                both = sorted([*by_vectors, *made], key=lambda one: -one.score)[: self.candidates]
                best = self._fused(both, by_words[: self.candidates], None, waiting)[:limit]
                found.append(Hits(state.hits(best), pending - len(made)))
            return found

        try:
            is_known = self.on_demand.reach(self.budget_s) is not None
            hits = self.store.read(fused)
            if pending and not is_known and (deeper := self._depth(len(queries))) > depth:
                depth = deeper
                hits = self.store.read(fused)
            if missing and self.budget_s > 0 and self.on_demand.make(missing, embedder, self.budget_s):
                hits = self.store.read(fused)
            return hits
        except TextIndexError:
            warn_user(
                "This collection has no text index: it is searched by vectors alone. Add one with `cde-rag "
                'reindex`, which embeds nothing, or write by="vectors".',
                TextIndexWarning,
            )
            return self.store.search(vectors, limit, fingerprint=embedder.fingerprint, where=where)

    def _depth(self, queries: int) -> int:
        """Return the number of best hits by BM25 of a query that are looked at: reading them takes time, too."""
        return max(UNMADE, min(ON_DEMAND, (self.on_demand.reach(self.budget_s) or 0) // max(queries, 1)))

    def _fused(
        self,
        vectors: Sequence[Found],
        words: Sequence[Found],
        known: ScoreCalibration | None,
        waiting: Container[Hashable] = frozenset(),
    ) -> list[Found]:
        read = {found.key: found.record for found in (*words, *vectors) if found.record is not None}
        near, written = ([(found.key, found.score) for found in side] for side in (vectors, words))
        best = fuse(near, written, fusion=self.fusion, weight=self.weight, candidates=self.candidates, unknown=waiting)
        if known is not None:
            best = known.scaled(best, near, written, self.weight)
        return [Found(key, score, read.get(key)) for key, score in best]


@dataclass(frozen=True)
class Reranked:
    """Ranker that orders the candidates of another one by scores of query and text; ties keep their order.

    Under a budget the candidates of a query are scored in parts, best ones first. No part begins that would end too
    late, taking as long as the last one. As many as are returned are scored in any case, and the others left out.

    Attributes:
        ranker: Ranker of the candidates.
        rerank: Function that scores pairs of a query and a text.
        candidates: Number of hits to rerank per query.
        budget_s: Seconds for each query; None for all candidates.
        least: Candidates that are scored in any case; None for as many as are returned.
    """

    ranker: Ranker
    rerank: Rerank
    candidates: int
    budget_s: float | None = None
    least: int | None = None

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
        pairs = [[(query, _text(hit)) for hit in hits] for query, hits in zip(queries, found, strict=True)]
        if self.budget_s is None:
            scores = iter(reranker_scores(self.rerank, [pair for each in pairs for pair in each]))
            of_queries = [[next(scores) for _ in each] for each in pairs]
        else:
            least = limit if self.least is None else self.least
            of_queries = [self._in_time(each, least, self.budget_s) for each in pairs]
        ranked: list[list[Hit]] = []
        for hits, scored in zip(found, of_queries, strict=True):
            rescored = [dataclasses.replace(hit, score=score) for hit, score in zip(hits, scored, strict=False)]
            ranked.append(Hits.of(sorted(rescored, key=lambda hit: -hit.score)[:limit], hits))
        return ranked

    def _in_time(self, pairs: Sequence[tuple[str, str]], least: int, budget_s: float) -> list[float]:
        """Score the first pairs, as many as the budget allows, and `least` at least."""
        end, scores, took = time.perf_counter() + budget_s, list[float](), 0.0
        while len(scores) < len(pairs) and (not scores or time.perf_counter() + took < end):
            start, size = time.perf_counter(), _PART if scores else least
            scores += reranker_scores(self.rerank, pairs[len(scores) : len(scores) + size])
            took = time.perf_counter() - start
        return scores


def reranker_scores(rerank: Rerank, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return a reranker's score of each pair of a query and a text.

    Raises:
        ValueError: `rerank` did not return one number for each pair.
    """
    scores = [float(score) for score in rerank(pairs)] if pairs else []
    if len(scores) != len(pairs) or any(map(math.isnan, scores)):
        problem = f"{len(scores)} scores" if len(scores) != len(pairs) else "NaN among them"
        raise ValueError(f"rerank: expected a number for each of {len(pairs)} pairs of texts, found {problem}.")
    return scores


def _followed(
    active: ActiveEmbedder,
    queries: Sequence[str],
    search: Callable[[Float32[np.ndarray, "queries dim"], Embedder], list[list[Hit]]],
) -> list[list[Hit]]:
    """Search with the vectors of queries and their embedder; repeat if another generation was activated."""
    for _ in range(SWITCHES):
        embedder = active.last
        vectors = embedder.embed_queries(queries)
        with active.following(embedder):
            return search(vectors, embedder)
    raise too_many_switches()


def pending_of(found: Sequence[Sequence[Hit]]) -> int:
    """Return the number of records that a search could not compare by vectors."""
    return max((hits.pending for hits in found if isinstance(hits, Hits)), default=0)


def _looked_at(state: StoreState, written: Sequence[Sequence[Found]], depth: int) -> dict[str, Hashable]:
    """Return the keys of the best hits by words, by id: the first of each query, then the second ones."""
    best = [one for rank in range(depth) for found in written for one in found[rank : rank + 1]]
    unique = list({one.key: one for one in best}.values())
    return {hit.id: one.key for hit, one in zip(state.hits(unique), unique, strict=True)}


def _dot(vector: Float32[np.ndarray, " dim"], query: Float32[np.ndarray, " dim"]) -> float:
    """Return the dot product as stores compute it, in float64."""
    return float((vector * query.astype(np.float64)).sum())


def _text(hit: Hit) -> str:
    """Return the text of a hit that was embedded: title and text."""
    return embedded_text(Record(hit.id, hit.text, hit.title))
