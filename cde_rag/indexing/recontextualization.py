"""Live re-embedding of a collection in a new context.

A new generation is filled alongside the active one, and activated once every record has its vector in it. Meanwhile
writes go to the active generation; the store itself knows the records that the new one lacks (a changed record loses
its vector there), so that no log is needed, and an interrupted run resumes.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cde_rag._validation import check_positive, digest
from cde_rag.context.context import Context
from cde_rag.context.generic_documents import repeated
from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.context.sampling import Strategy, sample_random
from cde_rag.embedders.active import ActiveEmbedder, keeping, plain_vectors, stored_context
from cde_rag.embedders.protocol import Embedder, EmbedderOptions, unwrapped, wrapped_like
from cde_rag.errors import ContextError, ContextMismatchError, ModelError, StoreError
from cde_rag.indexing.backfill import Recontextualization, complete, report
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.drift import measure_drift
from cde_rag.indexing.sibling_passages import with_siblings
from cde_rag.indexing.upsert import Progress
from cde_rag.records import embedded_text
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState

if TYPE_CHECKING:
    from cde_rag.embedders.contextual import AnyModel
    from cde_rag.models.model import Model

PROBED: Final = 64  # documents that the gain is estimated on before a move; `drift` takes more
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The vector space that a collection is to move to, and how; `Collection.recontextualize` documents each field."""

    seed: int
    context_size: int | None
    strategy: Strategy
    windows: bool | None
    model: "AnyModel | None"
    embedder: Embedder | None
    canary: Canary | None
    grace_s: float
    later: bool


def recontextualize(
    store: Store,
    active: ActiveEmbedder,
    parent_key: str | None,
    wanted: Wanted,
    on_progress: Callable[[Progress], None] | None,
) -> Recontextualization:
    """Move a store to a new Context, as `Collection.recontextualize`, which documents arguments and errors."""
    started = time.monotonic()
    target, canary = _target(store, active, parent_key, wanted), wanted.canary
    with store.lease():
        before, begun = _begun(store, target)
        if begun is None:
            embedder = target.bind(target.context(_corpus(store, on_progress)))
            number = store.write(partial(_begin, embedder=embedder))
            if number is None:  # the same documents were sampled
                return store.read(partial(report, embedded=0, started=started))
        else:
            number, context = begun
            embedder = target.bind(context)

        def check() -> None:
            if canary is not None:
                canary.check(store, number, unwrapped(active.embedder), embedder)

        embedded = complete(store, number, embedder, parent_key, on_progress, check, later=wanted.later)
        _follow(store, active, number, embedder)
        time.sleep(max(0.0, wanted.grace_s - (time.monotonic() - started)))

        def finished(state: StoreState) -> tuple[Recontextualization, list[int]]:
            numbers = [generation.number for generation in state.generations()]
            return report(state, embedded, started), [one for one in numbers if one not in (number, before)]

        done, older = store.read(finished)
        for generation in older:
            store.drop(generation)
        return done


def dry_run(store: Store, active: ActiveEmbedder, parent_key: str | None, wanted: Wanted) -> Estimate:
    """Estimate cost and gain of `recontextualize`; changes nothing, and raises its errors of arguments."""
    _target(store, active, parent_key, wanted)
    embedder = active.last
    if wanted.embedder is not None:
        return estimate(store, keeping(wanted.embedder, store), parent_key)
    if wanted.model is not None:
        return estimate(store, embedder, parent_key)
    if samples_the_same(
        store,
        embedder,
        seed=wanted.seed,
        context_size=wanted.context_size,
        strategy=wanted.strategy,
        windows=wanted.windows,
    ):
        return Estimate(0, 0, 0.0, 0, 0.0, (0.0, 0.0))
    cost = estimate(store, embedder, parent_key)
    if wanted.windows not in (None, embedder.context.identity.windows):
        return cost
    try:
        drift = measure_drift(
            store,
            embedder,
            parent_key,
            seed=wanted.seed,
            context_size=wanted.context_size,
            strategy=wanted.strategy,
            probes=PROBED,
        )
    except (ContextError, ModelError):  # a plain model, or one without a null context to compare with
        return cost
    return replace(cost, gain=drift.gain, interval=drift.interval)


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
    from cde_rag.embedders.contextual import contextual

    documents = store.count()
    if not documents:
        raise StoreError("Expected documents, found an empty collection: there is nothing to embed.")
    if (own := contextual(unwrapped(embedder))) is not None and own.plain_vectors is not None:
        embedder = wrapped_like(own.with_plain_vectors(own.plain_vectors.unchanged()), embedder)
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
    return documents == _documents(own.context)


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


def _sampling(model: "Model", identity: ModelIdentity, size: int, wanted: Wanted, options: EmbedderOptions) -> _Move:
    """Return the target of a Context that is sampled from the collection; kept plain vectors are used again."""
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.embedders.corpus_contexts import sampled

    seed, strategy = wanted.seed, wanted.strategy

    def matches(context: Context) -> bool:
        told, fixed = context.manifest, len(model.fixed[0])
        expected = model.context_size or min(size, told.documents_seen)
        begun_with = (told.identity, told.seed, told.sampling, told.context_size - fixed)
        own = replace(identity, weights_sha256=_known(model, context).identity.weights_sha256)
        return begun_with == (own, seed, strategy, expected)

    def bind(context: Context) -> Embedder:
        return ContextualEmbedder(model, context, options=options)

    def context(texts: Iterator[str]) -> Context:
        return sampled(model, identity, texts, size, seed=seed, strategy=strategy, unit="passage")

    return _Move(matches, context, bind)


def _given(embedder: Embedder, store: Store, serving: Embedder) -> _Move:
    """Return the target of an embedder that is there; in the Context of an earlier run, if that had the same."""
    kept = keeping(embedder, store)
    given = _within(kept, serving.context) or kept
    return _Move(
        lambda made: _within(given, made) is not None,
        lambda _: given.context,
        lambda made: _within(given, made) or given,
    )


def _within(embedder: Embedder, context: Context) -> Embedder | None:
    """Return an embedder in a Context that it made, here or in another process; None if the Context is another one.

    The vectors of a user's function are rounded differently in each process, and so is their digest in its identity.
    """
    if context.fingerprint == embedder.fingerprint:
        return embedder
    ours, theirs = (replace(one.identity, weights_sha256="") for one in (embedder.context, context))
    if ours != theirs or _documents(embedder.context) != _documents(context):
        return None
    with suppress(ContextMismatchError):
        return embedder.with_context(context)
    return None


def _known(model: "Model", context: Context) -> "Model":
    """Return the model under the identity that it has in a Context, if it made that."""
    with suppress(ContextMismatchError):
        return model.known(context)
    return model


def _documents(context: Context) -> dict[bytes, int]:
    """Return the number of occurrences of each document of a Context, by digest."""
    return {row.tobytes(): int(count) for row, count in zip(context.digests, context.counts, strict=True)}


def _target(store: Store, active: ActiveEmbedder, parent_key: str | None, wanted: Wanted) -> _Move:
    """Return the target of `recontextualize`; raises like it."""
    from cde_rag.embedders.contextual import ContextualEmbedder, as_model, contextual
    from cde_rag.embedders.corpus_contexts import context_size_for, contextual_identity
    from cde_rag.models.named import is_served

    _check_end(store, wanted.canary, wanted.grace_s)
    serving, model, windows = unwrapped(active.embedder), wanted.model, wanted.windows
    if wanted.embedder is not None:
        if (model, wanted.context_size, windows) != (None, None, None):
            raise TypeError(
                "An embedder has its model and Context: give an embedder, or model, context_size and windows."
            )
        _check(store, parent_key, wanted.embedder.dim, wanted.embedder.max_siblings)
        return _given(wanted.embedder, store, serving)
    if wanted.strategy not in ("random", "clusters"):
        raise ValueError(f"Expected strategy 'random' or 'clusters', found {wanted.strategy!r}.")
    if wanted.context_size is not None:
        check_positive(wanted.context_size, "context_size")
    options, present = serving.options, serving.context.identity
    loaded = options.of_loaded
    if model is not None:
        here = isinstance(model, str | Path) and not is_served(model)  # an API's model has no device
        new = _known(as_model(model, options if here else EmbedderOptions()), serving.context)
        if isinstance(model, ContextualEmbedder):
            loaded = EmbedderOptions(mini_batch_size=model.mini_batch_size, pool=model.pool or loaded.pool)
        as_now = None if new.identity.is_plain else present.windows
        identity = contextual_identity(new, windows=as_now if windows is None else windows)
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
    if (place := plain_vectors(store)) is not None:  # also those of the sample
        new = new.with_plain_vectors(place)
    return _sampling(new, identity, context_size_for(new, wanted.context_size), wanted, loaded)


def _corpus(store: Store, on_progress: Callable[[Progress], None] | None) -> Iterator[str]:
    """Yield the texts of all documents; calls `on_progress` now and then, so that it can end the run."""
    started, total = time.monotonic(), store.count()
    for place, row in enumerate(store.scroll(), 1):
        if on_progress is not None and place % ROWS_SAMPLED == 0:
            on_progress(Progress(0, total, time.monotonic() - started))
        yield embedded_text(row.record)


def _check(store: Store, parent_key: str | None, dim: int, max_siblings: int) -> None:
    if dim != (expected := store.manifest().dim):
        raise StoreError(
            f"Expected a model with vectors of length {expected}, found {dim}. Index the documents in a new "
            "collection, and move its readers."
        )
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


def _begin(state: StoreState, embedder: Embedder) -> int | None:
    """Create an empty generation, in place of an existing one of the same context; None if that is the active one."""
    if state.manifest().fingerprint == embedder.fingerprint:
        return None
    for generation in state.generations():
        if generation.fingerprint == embedder.fingerprint:
            state.drop(generation.number)
    return state.create_generation(fingerprint=embedder.fingerprint, context=embedder.context.to_bytes())


def _begun(store: Store, target: _Move) -> tuple[int, tuple[int, Context] | None]:
    """Return the number of the active generation, and the newest one after it that was begun for the same target.

    Other generations after the active one are dropped.
    """

    def read(state: StoreState) -> tuple[int, dict[int, Context]]:
        active = state.manifest().generation
        newer = [generation.number for generation in state.generations() if generation.number > active]
        return active, {number: stored_context(state, number) for number in reversed(newer)}

    active, newer = store.read(read)
    begun = next(((number, context) for number, context in newer.items() if target.matches(context)), None)
    for number in newer:
        if begun is None or number != begun[0]:
            store.drop(number)
    return active, begun
