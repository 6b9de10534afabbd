"""Work on the generations of a store: filling one beside the active one, activating it, going back."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cde_rag.embedding import Embedder
from cde_rag.errors import StoreError
from cde_rag.following import bound
from cde_rag.intake import embedded_text
from cde_rag.observability import operation, short
from cde_rag.passages import with_siblings
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


def roll_back(
    store: Store, embedder: Embedder, parent_key: str | None, on_progress: Callable[[Progress], None] | None
) -> Recontextualization:
    """What `Collection.rollback` does.

    Args:
        store: Holds a collection.
        embedder: Its model is used where it made the generation before; else that generation's is loaded by name.
        parent_key: The metadata key that names a record's parent; None where parents are not used.
        on_progress: Called after each write.

    Raises:
        ContextMismatchError: The generation before was made by another model, which is not here under its name.
        StoreError: There is no generation before the active one, or another run is at work.
    """
    started = time.monotonic()
    with store.lease():
        active = store.manifest().generation
        earlier = [generation.number for generation in store.generations() if generation.number < active]
        if not earlier:
            raise StoreError(f"Expected a generation before {active}, found none: there is nothing to roll back to.")
        embedded = complete(store, earlier[-1], bound(store, embedder, earlier[-1]), parent_key, on_progress)
        return report(store, embedded, started)


def complete(
    store: Store,
    number: int,
    embedder: Embedder,
    parent_key: str | None,
    on_progress: Callable[[Progress], None] | None,
) -> int:
    """Give every record its vector in a generation and activate it; returns how many vectors that took.

    Args:
        store: Holds a collection; the caller has its lease.
        number: Of the generation.
        embedder: Bound to the generation's Context.
        parent_key: As for `roll_back`.
        on_progress: Called after each write.

    Raises:
        StoreError: The store cannot be written.
    """
    started, embedded = time.monotonic(), 0
    attributes = {"generation": number, "fingerprint": short(embedder.fingerprint)}
    with operation("cde_rag.recontextualize", attributes) as note:
        while True:
            for taken in _fill(store, number, embedder, parent_key):
                embedded += taken
                note({"documents": embedded})
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


def report(store: Store, embedded: int, started: float) -> Recontextualization:
    """What a run that began at `started` (time.monotonic) did."""
    manifest = store.manifest()
    elapsed = time.monotonic() - started
    return Recontextualization(store.count(), embedded, manifest.generation, manifest.fingerprint, elapsed)


def _fill(store: Store, number: int, embedder: Embedder, parent_key: str | None) -> Iterator[int]:
    """Embed what a generation lacks, chunk by chunk; yields how many vectors each chunk gave it."""
    while lacking := store.lacking(number, limit=ROWS_AT_ONCE):
        passages = with_siblings(store, lacking, parent_key, embedder.max_siblings)
        texts = [embedded_text(row.record) for row in lacking]
        embedded = embedder.embed_passages(texts, [passage.siblings for passage in passages])
        yield store.add_to_generation(number, lacking, [passage.digest for passage in passages], embedded.vectors)
