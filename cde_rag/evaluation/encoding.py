"""The contextual model's systems: with its own context, without, with another's, and with siblings."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.ranking import Ranking, rank_hybrid, rank_vectors
from cde_rag.search.fusion import Scored

FOLDS = 2  # of the queries, where their relevant documents are kept out of the context


@runtime_checkable
class TextEmbedder(Protocol):
    """Interface of a ContextualEmbedder in evaluation."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its context."""
        ...

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed documents as unit vectors; those of one parent are each other's siblings."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed queries as unit vectors."""
        ...


@runtime_checkable
class Binder(Protocol):
    """Function that binds a model to contexts."""

    def __call__(self, corpus: Sequence[str] | None, seed: int) -> TextEmbedder:
        """Bind the model to a context sampled from a corpus with a seed; to the null context for None."""
        ...

    def with_siblings(self, embedder: TextEmbedder, corpus: Sequence[str]) -> TextEmbedder:
        """Return an embedder in the same context that reads siblings: a plain model needs a weight for them."""
        ...


def contextual_rankings(
    data: RetrievalSet,
    systems: Collection[str],
    bind: Binder,
    *,
    foreign: Sequence[str],
    seeds: Sequence[int],
    words: Sequence[Scored] = (),
    headed_words: Sequence[Scored] = (),
) -> Iterator[tuple[str, list[list[Ranking]]]]:
    """Yield the rankings of each requested system: a list per context, a ranking per query.

    Seeds that sample the same context (a corpus that is taken completely) are run once.

    Args:
        data: The set.
        systems: Names in `report.SYSTEMS`; those of other modules are skipped.
        bind: The model.
        foreign: Texts of another corpus.
        seeds: Of the contexts.
        words: For each query its hits by words; see `word_hits`. Only hybrid systems need them.
        headed_words: The same of `headed(data)`, for `headers_hybrid`.
    """
    texts = data.corpus.texts
    asked = [(name, name == "parents") for name in ("own", "parents") if {name, f"{name}_hybrid"} & set(systems)]
    own = _bound(bind, texts, seeds) if asked else []
    for name, siblings in asked:
        readers = [bind.with_siblings(embedder, texts) for embedder in own] if siblings else own
        found = [_vectors(embedder, data, siblings=siblings) for embedder in readers]
        if name in systems:
            yield name, [rank_vectors(*pair, data.corpus.ids, data.query_ids) for pair in found]
        if f"{name}_hybrid" in systems:
            yield f"{name}_hybrid", [rank_hybrid(*pair, words, data.corpus.ids, data.query_ids) for pair in found]
    if {"headers", "headers_hybrid"} & set(systems):
        titled = headed(data)
        found = [_vectors(one, titled, siblings=False) for one in _bound(bind, titled.corpus.texts, seeds)]
        ids = data.corpus.ids, data.query_ids
        if "headers" in systems:
            yield "headers", [rank_vectors(*pair, *ids) for pair in found]
        if "headers_hybrid" in systems:
            yield "headers_hybrid", [rank_hybrid(*pair, headed_words, *ids) for pair in found]
    if "own_without_relevant" in systems:
        yield "own_without_relevant", _without_relevant(data, bind, seeds)
    if "null" in systems:
        yield "null", [_rankings(bind(None, 0), data)]
    if "foreign" in systems:
        yield "foreign", [_rankings(embedder, data) for embedder in _bound(bind, foreign, seeds)]


def headed(data: RetrievalSet) -> RetrievalSet:
    """Return a set with the name of its parent in front of each document, as a collection with headers embeds it."""
    corpus = data.corpus
    pairs = zip(corpus.texts, corpus.parents or [None] * len(corpus.texts), strict=True)
    texts = tuple(f"{parent} {text}" if parent else text for text, parent in pairs)
    return replace(data, corpus=replace(corpus, texts=texts))


def without_relevant(data: RetrievalSet) -> list[tuple[list[int], list[str]]] | None:
    """Split the queries into two halves, each with the texts of all documents relevant to none of them.

    Queries with the same best document stay together. Halves, because none would be left for a context if every
    document is relevant to some query.

    Returns:
        For each half the queries' positions and the texts; None if a half is left without texts.
    """
    folds: list[tuple[list[int], list[str]]] = []
    for fold in range(FOLDS):
        positions = [position for position, block in enumerate(data.blocks) if block % FOLDS == fold]
        if not positions:  # all queries have one best document
            continue
        relevant = {document for position in positions for document in data.judgments[position]}
        avoided = {text for name, text in zip(data.corpus.ids, data.corpus.texts, strict=True) if name in relevant}
        folds.append((positions, [text for text in data.corpus.texts if text not in avoided]))
    return folds if all(kept for _, kept in folds) else None


def _without_relevant(data: RetrievalSet, bind: Binder, seeds: Sequence[int]) -> list[list[Ranking]]:
    folds = without_relevant(data) or []
    runs: list[list[Ranking]] = []
    for seed in seeds:
        found: dict[int, Ranking] = {}
        for positions, texts in folds:
            found.update(zip(positions, _rankings(bind(texts, seed), data.select(positions)), strict=True))
        runs.append([found[position] for position in range(len(data.queries))])
    return runs


def _rankings(embedder: TextEmbedder, data: RetrievalSet) -> list[Ranking]:
    return rank_vectors(*_vectors(embedder, data, siblings=False), data.corpus.ids, data.query_ids)


def _vectors(
    embedder: TextEmbedder, data: RetrievalSet, *, siblings: bool
) -> tuple[Float32[np.ndarray, "queries dim"], Float32[np.ndarray, "documents dim"]]:
    """Embed the queries and the documents of a set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # the result counts what is cut
        documents = embedder.embed_documents(data.corpus.texts, parents=data.corpus.parents if siblings else None)
        return embedder.embed_queries(data.queries), documents


def _bound(bind: Binder, corpus: Sequence[str], seeds: Sequence[int]) -> list[TextEmbedder]:
    """Return one embedder for each distinct context of the seeds."""
    embedders = [bind(corpus, seed) for seed in seeds]
    return list({embedder.fingerprint: embedder for embedder in embedders}.values())
