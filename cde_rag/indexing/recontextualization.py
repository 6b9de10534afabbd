"""Live re-embedding of a collection in a new context.

A new generation is filled alongside the active one, and activated once every record has its vector in it. Meanwhile
writes go to the active generation; the store itself knows the records that the new one lacks (a changed record loses
its vector there), so that no log is needed, and an interrupted run resumes.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cde_rag._validation import digest
from cde_rag.context.context import Context
from cde_rag.context.generic_documents import repeated
from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.context.sampling import sample_random
from cde_rag.embedders.active import ActiveEmbedder, keeping, stored_context
from cde_rag.embedders.protocol import Embedder, EmbedderOptions, unwrapped, wrapped_like
from cde_rag.errors import ContextMismatchError, ModelError, StoreError
from cde_rag.indexing.backfill import Recontextualization, complete, report
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.sibling_passages import with_siblings
from cde_rag.indexing.upsert import Progress
from cde_rag.records import embedded_text
from cde_rag.stores.store import Store

if TYPE_CHECKING:
    from cde_rag.embedders.contextual import AnyModel
    from cde_rag.models.model import Model

ROWS_SAMPLED = 1024  # read for the sample between two calls of on_progress


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated cost of a new context.

    Attributes:
        documents: Number of documents to embed.
        tokens: Number of their tokens, estimated from a sample.
        seconds: Time on this machine, estimated from a sample.
        vector_bytes: Size of the new generation; the one before it stays until it is dropped.
        gain: Estimated gain in NDCG@10, a fraction; None where another model is named, or the model reads no context.
        interval: 90 % interval of the gain.
    """

    documents: int
    tokens: int
    seconds: float
    vector_bytes: int
    gain: float | None = None
    interval: tuple[float, float] | None = None


def recontextualize(
    store: Store,
    active: ActiveEmbedder,
    parent_key: str | None,
    *,
    seed: int,
    context_size: int | None,
    strategy: str,
    windows: bool | None,
    model: "AnyModel | None",
    embedder: Embedder | None,
    canary: Canary | None,
    grace_s: float,
    on_progress: Callable[[Progress], None] | None,
) -> Recontextualization:
    """Move a store to a new Context, as `Collection.recontextualize`, which documents arguments and errors."""
    _check_end(store, canary, grace_s)
    started, serving = time.monotonic(), unwrapped(active.embedder)
    target = _target(store, serving, parent_key, seed, context_size, strategy, model, embedder, windows=windows)
    with store.lease():
        number = _unfinished(store, target)
        if number is None:
            embedder = target.bind(target.context(_corpus(store, on_progress)))
            if embedder.fingerprint == store.manifest().fingerprint:  # the same documents were sampled
                return report(store, 0, started)
            number = _begin(store, embedder)
        else:
            embedder = target.bind(stored_context(store, number))
        before, new, serving = store.manifest().generation, embedder, unwrapped(active.embedder)

        def check() -> None:
            if canary is not None:
                canary.check(store, number, serving, new)

        embedded = complete(store, number, embedder, parent_key, on_progress, check)
        _follow(store, active, number, embedder)
        time.sleep(max(0.0, grace_s - (time.monotonic() - started)))
        for generation in store.generations():
            if generation.number not in (number, before):
                store.drop(generation.number)
        return report(store, embedded, started)


def estimate(store: Store, embedder: Embedder, parent_key: str | None, *, sample: int = 128) -> Estimate:
    """Estimate the cost of a new Context from a sample of the collection; changes nothing.

    Args:
        store: Store of the collection.
        embedder: Embedder of its active generation.
        parent_key: Metadata key that names a record's parent; None if the collection has no parents.
        sample: Number of documents to embed, with their siblings, to measure the time; from a few positions of the
            collection. Only these and the other passages of their parents are read.

    Raises:
        StoreError: The collection is empty.
    """
    documents = store.count()
    if not documents:
        raise StoreError("Expected documents, found an empty collection: there is nothing to embed.")
    rows = store.sample(sample)
    texts = [embedded_text(row.record) for row in rows]
    siblings = [each.siblings for each in with_siblings(store, rows, parent_key, embedder)]
    tokens = embedder.count_tokens(texts)
    embedder.embed_passages(texts[:8], siblings[:8])
    started = time.monotonic()
    embedder.embed_passages(texts, siblings)
    elapsed = time.monotonic() - started
    scale = documents / len(texts)
    return Estimate(documents, round(tokens * scale), elapsed * scale, documents * embedder.dim * 4)


def samples_the_same(
    store: Store, embedder: Embedder, *, seed: int, context_size: int | None, strategy: str, windows: bool | None = None
) -> bool:
    """Return True if it is sure beforehand that a new Context of the same model would be the present one.

    Reads the collection's texts, and embeds nothing. The strategy "clusters", which has to embed, is sure only where
    the collection has no more passages than the context.

    Args:
        store: Store of the collection.
        embedder: Embedder of its active generation.
        seed: As for `recontextualize`, like `context_size`, `strategy` and `windows`.
        context_size: Number of documents in the new context.
        strategy: Sampling strategy of the new context.
        windows: Read longer texts in windows, or cut them; None for the collection's way.

    Raises:
        ContextError: The model expects another number of context documents.
    """
    from cde_rag.embedders.contextual import contextual
    from cde_rag.embedders.corpus_contexts import context_size_for

    own = contextual(unwrapped(embedder))
    if own is None or own.context.identity.is_plain or windows not in (None, own.windows) or not store.count():
        return False
    size = context_size_for(own.model, context_size)
    texts = (embedded_text(row.record) for row in store.scroll())
    sample = sample_random(texts, size if strategy == "random" else size + 1, seed=seed)
    if len(sample.documents) > size:
        return False
    documents = Counter(map(digest, repeated(sample.documents, own.model.context_size or 1)))
    context = own.context
    return documents == {row.tobytes(): int(count) for row, count in zip(context.digests, context.counts, strict=True)}


@dataclass(frozen=True)
class _Move:
    """The Context that a collection moves to: one that is there, or one that a model makes of a sample.

    Attributes:
        matches: Returns True if a run with these arguments made a Context.
        context: Makes the Context from the collection's texts.
        bind: Returns the embedder of that Context.
    """

    matches: Callable[[Context], bool]
    context: Callable[[Iterator[str]], Context]
    bind: Callable[[Context], Embedder]


def _sampling(
    model: "Model", identity: ModelIdentity, size: int, seed: int, strategy: str, options: EmbedderOptions
) -> _Move:
    """Return the target of a Context that is sampled from the collection; kept plain vectors are used again."""
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.embedders.corpus_contexts import sampled

    def matches(context: Context) -> bool:
        told, fixed = context.manifest, len(model.fixed[0])
        expected = model.context_size or min(size, told.documents_seen)
        begun_with = (told.identity, told.seed, told.sampling, told.context_size - fixed)
        return begun_with == (identity, seed, strategy, expected)

    def bind(context: Context) -> Embedder:
        return ContextualEmbedder(model, context, options=options.of_loaded)

    return _Move(matches, lambda texts: sampled(model, identity, texts, size, seed=seed, strategy=strategy), bind)


def _target(
    store: Store,
    serving: Embedder,
    parent_key: str | None,
    seed: int,
    context_size: int | None,
    strategy: str,
    model: "AnyModel | None",
    embedder: Embedder | None,
    *,
    windows: bool | None,
) -> _Move:
    """Return the target of `recontextualize`; raises like it."""
    from cde_rag.embedders.contextual import as_model, contextual
    from cde_rag.embedders.corpus_contexts import context_size_for, contextual_identity

    if embedder is not None:
        if (model, context_size, windows) != (None, None, None):
            raise TypeError(
                "An embedder has its model and Context: give an embedder, or model, context_size and windows."
            )
        _check(store, parent_key, embedder.dim, embedder.max_siblings)
        given = keeping(embedder, store)
        return _Move(lambda made: made.fingerprint == given.fingerprint, lambda _: given.context, lambda _: given)
    options, present = serving.options, serving.context.identity
    if model is not None:
        asked = (options.device, options.dtype, options.runtime) if isinstance(model, str | Path) else ()
        new = as_model(model, *asked)
        windowed = None if new.identity.is_plain else present.windows if windows is None else windows
        identity = contextual_identity(new, windows=windowed)
        _check(store, parent_key, new.dim, 0 if identity.is_plain else new.max_siblings)
    elif (own := contextual(serving)) is None or present.attention == PLAIN:
        raise ModelError(
            f"{present.name} is a plain model, which reads no context. Give model='cde-mini' or another contextual "
            "one; or an embedder."
        )
    elif present.is_plain and windows is not None:
        raise ModelError(
            "The collection's model is a plain embedder, which reads windows or cuts texts by its own setting. "
            "Leave windows out, or move the collection in Python: recontextualize(embedder=ArithmeticEmbedder."
            "from_corpus(texts, model=PlainEmbedder(name, windows=True)))."
        )
    else:
        new = own.model
        identity = replace(present, name=new.identity.name, windows=present.windows if windows is None else windows)
    return _sampling(new, identity, context_size_for(new, context_size), seed, strategy, options)


def _corpus(store: Store, on_progress: Callable[[Progress], None] | None) -> Iterator[str]:
    """Yield the texts of all documents; calls `on_progress` now and then, so that it can end the run."""
    started, total = time.monotonic(), store.count()
    for place, row in enumerate(store.scroll(), 1):
        if on_progress is not None and place % ROWS_SAMPLED == 0:
            on_progress(Progress(0, total, time.monotonic() - started))
        yield embedded_text(row.record)


def _check(store: Store, parent_key: str | None, dim: int, max_siblings: int) -> None:
    if dim != (expected := store.manifest().dim):
        raise StoreError(f"Expected a model with vectors of length {expected}, found {dim}.")
    if parent_key is not None and not max_siblings:
        raise ModelError(
            f"The collection has the parent key {parent_key!r}, and the new model reads no siblings. Make a "
            "new collection for it, without a parent key."
        )


def _check_end(store: Store, canary: Canary | None, grace_s: float) -> None:
    if not 0 <= grace_s < math.inf:
        raise ValueError(f"grace_s has to be a number of seconds, 0 or more; found {grace_s!r}")
    if canary is not None:
        canary.check_known(store)


def _follow(store: Store, active: ActiveEmbedder, number: int, embedder: Embedder) -> None:
    """Set the collection's embedder to the generation that was just activated."""
    try:
        active.embedder = wrapped_like(embedder, active.last)
    except ContextMismatchError as error:
        found = store.manifest().generation
        raise StoreError(
            f"Expected generation {number}, which this run activated, found generation {found} active: another run "
            "changed that since, when this one had lost its lease. The collection is in that one's context."
        ) from error


def _begin(store: Store, embedder: Embedder) -> int:
    """Create an empty generation; drop an existing one of the same context first."""
    for generation in store.generations():
        if generation.fingerprint == embedder.fingerprint:
            store.drop(generation.number)
    return store.create_generation(fingerprint=embedder.fingerprint, context=embedder.context.to_bytes())


def _unfinished(store: Store, target: _Move) -> int | None:
    """Return the newest generation after the active one, if begun with the same arguments; drop others there."""
    active, found = store.manifest().generation, None
    for generation in reversed(store.generations()):
        if generation.number <= active:
            break
        if found is None and target.matches(stored_context(store, generation.number)):
            found = generation.number
        else:
            store.drop(generation.number)
    return found
