"""Moving a collection to a new context while it serves.

A new generation is filled beside the active one, and activated once every record has its vector in it. What arrives
meanwhile goes to the active generation; the store itself knows which records the new one lacks (a changed record loses
its vector there), so that nothing has to be logged, and an interrupted run continues where it stopped.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cde_rag.collection import Collection
from cde_rag.context import Context
from cde_rag.embedder import ContextualEmbedder
from cde_rag.errors import StoreError
from cde_rag.following import bound
from cde_rag.intake import embedded_text
from cde_rag.model import CDEModel
from cde_rag.passages import rows, with_siblings
from cde_rag.stores.base import Store
from cde_rag.writing import Progress

ROWS_AT_ONCE = 1024  # embedded between two writes; what a kill can cost


@dataclass(frozen=True, slots=True)
class Recontextualization:
    """What a run did.

    Attributes:
        documents: In the collection.
        embedded: Vectors made by this run; fewer than documents where it continued another.
        generation: The active one now.
        fingerprint: Of the active space now.
        elapsed_s: Seconds.
    """

    documents: int
    embedded: int
    generation: int
    fingerprint: str
    elapsed_s: float


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
    context_size: int = 512,
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
        context_size: Documents of the context.
        strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
        model: Another model; its vectors are as long as the collection's. Readers with the old one cannot follow then:
            they have to open the collection again.
        on_progress: Called after each write.

    Raises:
        CorpusError: The collection is empty.
        StoreError: Another run is at work, the store cannot be written, or `model` makes vectors of another length.
    """
    with collection.store.lease():
        return _recontextualize(
            collection, model or collection.embedder.model, seed, context_size, strategy, on_progress
        )


def rollback(collection: Collection, *, on_progress: Callable[[Progress], None] | None = None) -> Recontextualization:
    """Go back to the generation before the active one.

    What came since is embedded in its Context first: no record that came is lost, and none that was deleted comes back.
    `recontextualize` with the same arguments as before goes forward again.

    Args:
        collection: Open.
        on_progress: As for `recontextualize`.

    Raises:
        ModelError: The generation before was made by another model, which is not here.
        StoreError: There is no generation before the active one, or another run is at work.
    """
    with collection.store.lease():
        return _roll_back(collection, on_progress)


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


def _recontextualize(
    collection: Collection,
    model: CDEModel,
    seed: int,
    context_size: int,
    strategy: str,
    on_progress: Callable[[Progress], None] | None,
) -> Recontextualization:
    started = time.monotonic()
    store = collection.store
    if model.dim != store.manifest().dim:
        raise StoreError(f"Expected a model with vectors of length {store.manifest().dim}, found {model.dim}.")
    number = _unfinished(store, model, seed=seed, context_size=context_size, strategy=strategy)
    if number is None:
        embedder = ContextualEmbedder.from_corpus(
            (embedded_text(row.record) for row in rows(store, None)),
            model=model,
            context_size=context_size,
            seed=seed,
            strategy=strategy,
        )
        if embedder.fingerprint == store.manifest().fingerprint:  # the same documents were sampled
            return _report(store, 0, started)
        number = store.create_generation(fingerprint=embedder.fingerprint, context=embedder.context.to_bytes())
    else:
        embedder = bound(store, model, number)
    before = store.manifest().generation
    embedded = _complete_and_activate(collection, number, embedder, on_progress, started)
    for generation in store.generations():
        if generation.number not in (number, before) and not generation.active:
            store.drop(generation.number)
    return _report(store, embedded, started)


def _roll_back(collection: Collection, on_progress: Callable[[Progress], None] | None) -> Recontextualization:
    started = time.monotonic()
    store = collection.store
    active = store.manifest().generation
    earlier = [generation.number for generation in store.generations() if generation.number < active]
    if not earlier:
        raise StoreError(f"Expected a generation before {active}, found none: there is nothing to roll back to.")
    context = Context.from_bytes(store.context(earlier[-1]), where="The context in the store")
    model = collection.embedder.model
    if context.identity != model.identity:
        model = CDEModel.from_pretrained(context.identity.name, device=model.device)
    embedder = ContextualEmbedder(model, context)
    return _report(store, _complete_and_activate(collection, earlier[-1], embedder, on_progress, started), started)


def _unfinished(store: Store, model: CDEModel, *, seed: int, context_size: int, strategy: str) -> int | None:
    """The newest generation after the active one, if it was begun with the same arguments; others there are dropped."""
    active, found = store.manifest().generation, None
    for generation in reversed(store.generations()):
        if generation.number <= active:
            break
        context = Context.from_bytes(store.context(generation.number), where="The context in the store")
        begun_with = (context.identity, context.manifest.seed, context.manifest.sampling, context.size)
        wanted = (model.identity, seed, strategy, min(context_size, context.manifest.documents_seen))
        if found is None and begun_with == wanted:
            found = generation.number
        else:
            store.drop(generation.number)
    return found


def _complete_and_activate(
    collection: Collection,
    number: int,
    embedder: ContextualEmbedder,
    on_progress: Callable[[Progress], None] | None,
    started: float,
) -> int:
    """Give every record its vector in a generation and activate it; returns how many vectors that took."""
    store, embedded = collection.store, 0
    while True:
        for taken in _fill(collection, number, embedder):
            embedded += taken
            if on_progress is not None:
                (now,) = (one for one in store.generations() if one.number == number)
                on_progress(Progress(now.vectors, store.count(), time.monotonic() - started))
        try:
            store.activate(number)
        except StoreError:
            if not store.lacking(number, limit=1):
                raise
        else:
            return embedded


def _fill(collection: Collection, number: int, embedder: ContextualEmbedder) -> Iterator[int]:
    """Embed what a generation lacks, chunk by chunk; yields how many vectors each chunk gave it."""
    store = collection.store
    while lacking := store.lacking(number, limit=ROWS_AT_ONCE):
        passages = with_siblings(store, lacking, collection.parent_key, embedder.model.config.max_siblings)
        texts = [embedded_text(row.record) for row in lacking]
        embedded = embedder.embed_passages(texts, [passage.siblings for passage in passages])
        yield store.add_to_generation(number, lacking, [passage.digest for passage in passages], embedded.vectors)


def _report(store: Store, embedded: int, started: float) -> Recontextualization:
    manifest = store.manifest()
    elapsed = time.monotonic() - started
    return Recontextualization(store.count(), embedded, manifest.generation, manifest.fingerprint, elapsed)
