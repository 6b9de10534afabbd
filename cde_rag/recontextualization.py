"""Moving a collection to a new context while it serves.

A new generation is filled beside the active one, and activated once every record has its vector in it. What arrives
meanwhile goes to the active generation; the store itself knows which records the new one lacks (a changed record loses
its vector there), so that nothing has to be logged, and an interrupted run continues where it stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cde_rag.collection import Collection
from cde_rag.context import Context
from cde_rag.embedder import ContextualEmbedder, context_size_for
from cde_rag.errors import StoreError
from cde_rag.following import bound
from cde_rag.generations import Recontextualization, complete, report
from cde_rag.intake import embedded_text
from cde_rag.model import CDEModel
from cde_rag.passages import rows
from cde_rag.stores.base import Store
from cde_rag.writing import Progress


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a new context would cost.

    Attributes:
        documents: To be embedded.
        tokens: In them, by a sample.
        seconds: On this machine, by a sample.
        vector_bytes: Of the new generation; the one before it stays until it is dropped.
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
    model: CDEModel | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Recontextualization:
    """Sample a new Context from the collection's own documents, embed all of them in it, and switch.

    Readers and writers, of this process or others, keep the old generation until the switch and follow it by
    themselves. Killed at any instant the old one serves, and the same call continues the run, with its Context. The
    generation that was active stays, for `rollback`; those before it are dropped.

    Args:
        collection: Open.
        seed: Of the sample.
        context_size: Documents of the context; as many as the model expects, or 512, by default.
        strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
        model: Another model; its vectors are as long as the collection's. Readers with the old one cannot follow then:
            they have to open the collection again.
        on_progress: Called after each write.

    Raises:
        ContextError: The model expects another number of context documents.
        CorpusError: The collection is empty.
        StoreError: Another run is at work, the store cannot be written, or `model` makes vectors of another length.
    """
    started, store = time.monotonic(), collection.store
    model = collection.embedder.model if model is None else model
    size = context_size_for(model, context_size)
    if model.dim != store.manifest().dim:
        raise StoreError(f"Expected a model with vectors of length {store.manifest().dim}, found {model.dim}.")
    with store.lease():
        number = _unfinished(store, model, seed=seed, context_size=size, strategy=strategy)
        if number is None:
            embedder = ContextualEmbedder.from_corpus(
                (embedded_text(row.record) for row in rows(store, None)),
                model=model,
                context_size=size,
                seed=seed,
                strategy=strategy,
            )
            if embedder.fingerprint == store.manifest().fingerprint:  # the same documents were sampled
                return report(store, 0, started)
            number = store.create_generation(fingerprint=embedder.fingerprint, context=embedder.context.to_bytes())
        else:
            embedder = bound(store, model, number)
        before = store.manifest().generation
        embedded = complete(store, number, embedder, collection.parent_key, on_progress)
        for generation in store.generations():
            if generation.number not in (number, before):
                store.drop(generation.number)
        return report(store, embedded, started)


def estimate(collection: Collection, *, sample: int = 128) -> Estimate:
    """What `recontextualize` would cost, measured on a sample of the collection; changes nothing.

    Args:
        collection: Open.
        sample: Documents that are embedded to see how long it takes, spread over the collection.

    Raises:
        StoreError: The collection is empty.
    """
    store, embedder = collection.store, collection.embedder
    documents = store.count()
    if not documents:
        raise StoreError("Expected documents, found an empty collection: there is nothing to embed.")
    step = max(documents // sample, 1)
    texts = [embedded_text(row.record) for place, row in enumerate(rows(store, None)) if place % step == 0]
    tokens = sum(len(row.ids) for row in embedder.model.tokenize(texts))
    embedder.embed_passages(texts[:8], None)
    started = time.monotonic()
    embedder.embed_passages(texts, None)
    elapsed = time.monotonic() - started
    scale = documents / len(texts)
    return Estimate(documents, round(tokens * scale), elapsed * scale, documents * embedder.dim * 4)


def _unfinished(store: Store, model: CDEModel, *, seed: int, context_size: int, strategy: str) -> int | None:
    """The newest generation after the active one, if it was begun with the same arguments; others there are dropped."""
    active, found = store.manifest().generation, None
    for generation in reversed(store.generations()):
        if generation.number <= active:
            break
        context = Context.from_bytes(store.context(generation.number), where="The context in the store")
        begun_with = (context.identity, context.manifest.seed, context.manifest.sampling, context.manifest.context_size)
        size = model.context_size or min(context_size, context.manifest.documents_seen)
        wanted = (model.identity, seed, strategy, size)
        if found is None and begun_with == wanted:
            found = generation.number
        else:
            store.drop(generation.number)
    return found
