"""Common parts of experiments on retrieval sets: contexts, their vector spaces, and per-query scores."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag.context.context import Context
from cde_rag.context.sampling import sample_clusters, sample_random
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import rank_vectors
from cde_rag.models import CDEModel
from cde_rag_training.clustering.surrogate import Surrogate, cached

DEPTH = 10  # of NDCG
MEAN = "mean"  # of all sets, in a table's column of sets
CONTEXT_SIZE = 512  # documents, where the experiment is about something else and the model takes any number


class Space:
    """Vector space of one Context; embeddings are cached in a file.

    Args:
        model: A model of either kind of attention.
        context: Made by it.
        cache: Folder.
    """

    def __init__(self, model: CDEModel, context: Context, cache: Path) -> None:
        self.context = context
        self.embedder = ContextualEmbedder(model, context, options=EmbedderOptions(mini_batch_size=64))
        name = context.fingerprint[:32]
        self.documents: Surrogate = cached(self._documents, f"{name}-documents", cache)
        self.queries: Surrogate = cached(self.embedder.embed_queries, f"{name}-queries", cache)

    def _documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "documents dim"]:
        return self.embedder.embed_passages(texts, None).vectors

    def score(self, data: RetrievalSet) -> Float64[np.ndarray, " queries"]:
        """Return NDCG@10 of each query of a set, with its documents embedded without siblings."""
        return score(data, self.queries(data.queries), self.documents(data.corpus.texts))


@dataclass(frozen=True)
class Laboratory:
    """A model and the retrieval sets that it is evaluated on.

    Attributes:
        model: Of either kind of attention; many experiments need a one-way model.
        sets: Subsampled retrieval sets.
        cache: Folder for vectors; may be deleted.
        seed: Random seed of every draw.
    """

    model: CDEModel
    sets: Sequence[RetrievalSet]
    cache: Path
    seed: int = 0

    @cached_property
    def first_stage(self) -> Surrogate:
        """Texts to the vectors that contexts are made of."""
        weights = self.model.identity.weights_sha256[:32]
        return cached(lambda texts: self.model.first_stage(texts), f"{weights}-first", self.cache)

    def null(self) -> Space:
        """Return the vector space without a context."""
        return Space(self.model, Context.null(self.model), self.cache)

    def space(
        self,
        texts: Sequence[str],
        *,
        size: int | None = None,
        seed: int | None = None,
        strategy: Literal["random", "clusters"] = "random",
    ) -> Space:
        """Return the vector space of a context sampled from texts, by default of as many as the model expects."""
        size = size or self.model.config.context_size or CONTEXT_SIZE
        drawn = self.seed if seed is None else seed
        if strategy == "random":
            sample = sample_random(texts, size, seed=drawn)
        else:
            sample = sample_clusters(texts, size, seed=drawn, embed=self.first_stage)
        return Space(self.model, fit(self.model, sample, strategy=strategy, seed=drawn), self.cache)

    def space_of(self, rows: Float32[np.ndarray, "rows dim"], *, name: str) -> Space:
        """Return the vector space of given context embeddings that belong to no documents."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        names = [f"{name} {hashlib.sha256(row.tobytes()).hexdigest()}" for row in rows]
        context = Context.create(
            self.model.identity, names, rows, sampling=name, seed=self.seed, documents_seen=len(rows), source="explicit"
        )
        return Space(self.model, context, self.cache)


def following(sets: Sequence[RetrievalSet]) -> list[RetrievalSet]:
    """Pair each set with another, whose corpus serves as a foreign context: the next, and for the last the first.

    Raises:
        CorpusError: There is one set only.
    """
    if len(sets) < 2:
        raise CorpusError("Expected two sets or more, since one lends another a foreign context, found one. Add a set.")
    return [*sets[1:], sets[0]]


def score(
    data: RetrievalSet, queries: Float32[np.ndarray, "queries dim"], documents: Float32[np.ndarray, "documents dim"]
) -> Float64[np.ndarray, " queries"]:
    """Return NDCG@10 of each query."""
    rankings = rank_vectors(queries, documents, data.corpus.ids, data.query_ids)
    return np.array([ndcg(one, judged, DEPTH) for one, judged in zip(rankings, data.judgments, strict=True)])


def compared(
    sets: Sequence[RetrievalSet],
    ours: Sequence[Float64[np.ndarray, " _"]],
    theirs: Sequence[Float64[np.ndarray, " _"]],
) -> Iterator[tuple[str, float, Difference]]:
    """Yield name, mean of ours and difference to theirs for each set, then for the mean over sets (`MEAN`)."""
    for data, one, other in zip(sets, ours, theirs, strict=True):
        yield data.corpus.name, float(one.mean()), difference([data], [one], [other])
    yield MEAN, float(np.mean([one.mean() for one in ours])), difference(sets, ours, theirs)


def average(runs: Sequence[Sequence[Float64[np.ndarray, " _"]]]) -> list[Float64[np.ndarray, " _"]]:
    """Average the scores of each query of each set over runs."""
    return [np.mean(each, axis=0) for each in zip(*runs, strict=True)]


def compared_runs(
    sets: Sequence[RetrievalSet],
    runs: Sequence[Sequence[Float64[np.ndarray, " _"]]],
    theirs: Sequence[Float64[np.ndarray, " _"]],
) -> Iterator[tuple[str, float, float, Difference]]:
    """Yield rows like `compared` for the average of some runs, with the standard deviation (ddof 0) over runs."""
    means = np.array([[each.mean() for each in figures] for figures in runs])  # runs × sets
    spreads = [*means.std(axis=0), means.mean(axis=1).std()]  # of each set, and of their mean
    for spread, (corpus, mean, gain) in zip(spreads, compared(sets, average(runs), theirs), strict=True):
        yield corpus, mean, float(spread), gain


def difference(
    sets: Sequence[RetrievalSet],
    ours: Sequence[Float64[np.ndarray, " _"]],
    theirs: Sequence[Float64[np.ndarray, " _"]],
) -> Difference:
    """Compare per-query scores of two systems, set by set: mean of ours − theirs with both intervals of design §10."""
    pairs = zip(sets, ours, theirs, strict=True)
    return compare([PairedQueries(one - other, data.blocks) for data, one, other in pairs])
