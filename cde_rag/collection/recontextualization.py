"""Live re-embedding of a collection in a new context.

A new generation is filled alongside the active one, and activated once every record has its vector in it. Meanwhile
writes go to the active generation; the store itself knows the records that the new one lacks (a changed record loses
its vector there), so that no log is needed, and an interrupted run resumes.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context
from cde_rag.embedders.active import stored_context
from cde_rag.embedders.contextual import ContextualEmbedder, as_model, context_size_for
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.errors import ContextMismatchError, ModelError, StoreError
from cde_rag.indexing.backfill import Recontextualization, complete, report
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.sibling_passages import with_siblings
from cde_rag.indexing.upsert import Progress
from cde_rag.model import CDEModel
from cde_rag.records import embedded_text
from cde_rag.stores.base import Store


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated cost of a new context.

    Attributes:
        documents: Number of documents to embed.
        tokens: Number of their tokens, estimated from a sample.
        seconds: Time on this machine, estimated from a sample.
        vector_bytes: Size of the new generation; the one before it stays until it is dropped.
    """

    documents: int
    tokens: int
    seconds: float
    vector_bytes: int


def recontextualize(
    collection: Collection,
    *,
    seed: int = 0,
    context_size: int | None = None,
    strategy: str = "random",
    model: str | Path | CDEModel | None = None,
    embedder: Embedder | None = None,
    canary: Canary | None = None,
    grace_s: float = 0.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Recontextualization:
    """Sample a new Context from the collection's own documents, re-embed all of them, and switch.

    Readers and writers, in this process or others, use the old generation until the switch and follow it by themselves.
    After a crash at any instant the old one is active, and the same call resumes the run, with its Context. The
    previous generation stays, for `rollback`; those before it are dropped, and an inactive one in the same context is
    made again. If the sample is that of the active generation, such as for a collection with no more documents than a
    context, there is nothing to do: the report has 0 embedded and the old generation.

    Args:
        collection: An open collection.
        seed: Random seed of the sample.
        context_size: Number of documents in the context; as many as the model expects, or 512, by default.
        strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
        model: Another model, or its name or folder; its vectors must be as long as the collection's. Readers follow the
            switch if they find the model under its name; others have to open the collection again.
        embedder: An embedder to move to without sampling: a PlainEmbedder, or one of an existing Context. For readers
            like `model`.
        canary: Queries that must still find their documents; run when all is embedded, before the switch.
        grace_s: Minimum seconds since the start of the run before generations older than the previous one are dropped;
            queries in flight do not need it, but other readers of a Qdrant collection may.
        on_progress: Called after each write. Records that arrive at the end of the run are embedded while writers wait.

    Raises:
        CanaryError: The new context fails too many canary queries, and is not activated; the same call without a canary
            switches to it.
        ContextError: The model expects another number of context documents.
        CorpusError: The collection is empty, so that there is nothing to sample; or a canary's query has no document in
            it.
        ModelError: The collection has a parent key and the new model reads no siblings; or the collection's own model
            is plain, and none is given that reads a context.
        StoreError: Another run is in progress, the store cannot be written, or the new vectors would have another
            length.
        TypeError: `collection` is no Collection; or an embedder is given together with a model or a context size.
        ValueError: `grace_s` is below 0 or not finite.
    """
    if not isinstance(cast(object, collection), Collection):
        raise TypeError(f"Expected a collection, such as Collection.open(store), found {collection!r:.80}.")
    _check_end(collection.store, canary, grace_s)
    started, store = time.monotonic(), collection.store
    if embedder is None:
        options = collection.embedder.options
        new_model = _model(collection.embedder) if model is None else _loaded(model, options)
        size = context_size_for(new_model, context_size)
        target = _Sample(new_model, seed, size, strategy, options.mini_batch_size)
        _check(collection, new_model.dim, new_model.config.max_siblings)
    elif model is None and context_size is None:
        target = _Given(embedder)
        _check(collection, embedder.dim, embedder.max_siblings)
    else:
        raise TypeError("An embedder has its model and Context: give an embedder, or model and context_size.")
    with store.lease():
        number = _unfinished(store, target)
        if number is None:
            embedder = target.begin(store)
            if embedder.fingerprint == store.manifest().fingerprint:  # the same documents were sampled
                return report(store, 0, started)
            number = _begin(store, embedder)
        else:
            embedder = target.go_on(stored_context(store, number))
        before, new, serving = store.manifest().generation, embedder, collection.embedder

        def check() -> None:
            if canary is not None:
                canary.check(store, number, serving, new)

        embedded = complete(store, number, embedder, collection.parent_key, on_progress, check)
        _follow(collection, number, embedder)
        time.sleep(max(0.0, grace_s - (time.monotonic() - started)))
        for generation in store.generations():
            if generation.number not in (number, before):
                store.drop(generation.number)
        return report(store, embedded, started)


def estimate(collection: Collection, *, sample: int = 128) -> Estimate:
    """Estimate the cost of `recontextualize` from a sample of the collection; changes nothing.

    Args:
        collection: An open collection.
        sample: Number of documents to embed, with their siblings, to measure the time; from a few positions of the
            collection. Only these and the other passages of their parents are read.

    Raises:
        StoreError: The collection is empty.
    """
    store, embedder = collection.store, collection.embedder
    documents = store.count()
    if not documents:
        raise StoreError("Expected documents, found an empty collection: there is nothing to embed.")
    rows = store.sample(sample)
    texts = [embedded_text(row.record) for row in rows]
    siblings = [each.siblings for each in with_siblings(store, rows, collection.parent_key, embedder)]
    tokens = embedder.count_tokens(texts)
    embedder.embed_passages(texts[:8], siblings[:8])
    started = time.monotonic()
    embedder.embed_passages(texts, siblings)
    elapsed = time.monotonic() - started
    scale = documents / len(texts)
    return Estimate(documents, round(tokens * scale), elapsed * scale, documents * embedder.dim * 4)


@dataclass(frozen=True)
class _Sample:
    """A Context that is sampled from the collection.

    Attributes:
        model: That makes it.
        seed: Random seed of the sample.
        context_size: Documents of it.
        strategy: Strategy of the sample.
        mini_batch_size: Mini-batch size of the embedder.
    """

    model: CDEModel
    seed: int
    context_size: int
    strategy: str
    mini_batch_size: int

    def begun(self, context: Context) -> bool:
        """Return True if a run with these arguments made the Context."""
        begun_with = (context.identity, context.manifest.seed, context.manifest.sampling, context.manifest.context_size)
        size = self.model.context_size or min(self.context_size, context.manifest.documents_seen)
        return begun_with == (self.model.identity, self.seed, self.strategy, size)

    def begin(self, store: Store) -> Embedder:
        """Sample it."""
        return ContextualEmbedder.from_corpus(
            (embedded_text(row.record) for row in store.scroll()),
            model=self.model,
            context_size=self.context_size,
            seed=self.seed,
            strategy=self.strategy,
            mini_batch_size=self.mini_batch_size,
        )

    def go_on(self, context: Context) -> Embedder:
        """Resume with the Context of the earlier run."""
        return ContextualEmbedder(self.model, context, mini_batch_size=self.mini_batch_size)


@dataclass(frozen=True)
class _Given:
    """An embedder whose Context is there already."""

    embedder: Embedder

    def begun(self, context: Context) -> bool:
        return context.fingerprint == self.embedder.fingerprint

    def begin(self, _: Store) -> Embedder:
        return self.embedder

    def go_on(self, _: Context) -> Embedder:
        return self.embedder


def _model(embedder: Embedder) -> CDEModel:
    """Return the model for a new Context if none is named."""
    if isinstance(embedder, ContextualEmbedder):
        return embedder.model
    raise ModelError(
        f"{embedder.context.identity.name} is a plain model, which reads no context. Give "
        "model='cde-mini' or another contextual one; or an embedder."
    )


def _loaded(model: str | Path | CDEModel, options: EmbedderOptions) -> CDEModel:
    """Load another model, if it is named, on the device of the previous one."""
    return model if isinstance(model, CDEModel) else as_model(model, options.device, options.dtype)


def _check(collection: Collection, dim: int, max_siblings: int) -> None:
    if dim != (expected := collection.store.manifest().dim):
        raise StoreError(f"Expected a model with vectors of length {expected}, found {dim}.")
    if collection.parent_key is not None and not max_siblings:
        raise ModelError(
            f"The collection has the parent key {collection.parent_key!r}, and the new model reads no siblings. Make a "
            "new collection for it, without a parent key."
        )


def _check_end(store: Store, canary: Canary | None, grace_s: float) -> None:
    if not 0 <= grace_s < math.inf:
        raise ValueError(f"grace_s has to be a number of seconds, 0 or more; found {grace_s!r}")
    if canary is not None:
        canary.check_known(store)


def _follow(collection: Collection, number: int, embedder: Embedder) -> None:
    """Set the collection's embedder to the generation that was just activated."""
    try:
        collection.embedder = embedder
    except ContextMismatchError as error:
        active = collection.store.manifest().generation
        raise StoreError(
            f"Expected generation {number}, which this run activated, found generation {active} active: another run "
            "changed that since, when this one had lost its lease. The collection is in that one's context."
        ) from error


def _begin(store: Store, embedder: Embedder) -> int:
    """Create an empty generation; drop an existing one of the same context first."""
    for generation in store.generations():
        if generation.fingerprint == embedder.fingerprint:
            store.drop(generation.number)
    return store.create_generation(fingerprint=embedder.fingerprint, context=embedder.context.to_bytes())


def _unfinished(store: Store, target: _Sample | _Given) -> int | None:
    """Return the newest generation after the active one, if begun with the same arguments; drop others there."""
    active, found = store.manifest().generation, None
    for generation in reversed(store.generations()):
        if generation.number <= active:
            break
        if found is None and target.begun(stored_context(store, generation.number)):
            found = generation.number
        else:
            store.drop(generation.number)
    return found
