"""Backfill of a generation alongside the active one, activation, and rollback."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag.embedders.active import bound
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CDEWarning, StoreError, warn_user
from cde_rag.indexing.pending import embed_readable, unchanged, unread_error
from cde_rag.indexing.sibling_passages import Passage, with_siblings
from cde_rag.indexing.upsert import FIRST_PART, Progress, next_part
from cde_rag.records import Row, embedded_text
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreCalls

ROWS_AT_ONCE = 1024  # read with their siblings in one session, and embedded in parts, each of which is written
LAST_ROWS = 64  # most rows that are embedded while writers wait: some seconds
ACTIVATIONS = 8  # tries to activate a generation while others write
LAST_PASSES = 8  # over rows that arrived during the run; then writers wait for the rest, or it would never end


@dataclass(frozen=True, slots=True)
class Recontextualization:
    """Result of a run.

    Attributes:
        documents: Number of documents in the collection.
        embedded: Number of vectors made by this run; fewer than documents if it resumed another.
        generation: Number of the generation that is active now.
        fingerprint: Fingerprint of the space that is active now.
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
    """Complete and activate the generation before the active one; implements `Collection.rollback`.

    Args:
        store: Holds a collection.
        embedder: Its model is used if it made the generation before; else that generation's is loaded by name.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
        on_progress: Called after each write, every few seconds.

    Raises:
        ContextMismatchError: The generation before was made by another model, which cannot be found under its name.
        CorpusError: As of `complete`; the same call goes on.
        StoreError: There is no generation before the active one, or another run is in progress.
    """
    started = time.monotonic()
    with store.lease():
        number = store.read(_before)
        embedded = complete(store, number, bound(store, embedder, number), parent_key, on_progress)
        return store.read(partial(report, embedded=embedded, started=started))


def complete(
    store: Store,
    number: int,
    embedder: Embedder,
    parent_key: str | None,
    on_progress: Callable[[Progress], None] | None,
    check: Callable[[], None] = lambda: None,
    *,
    later: bool = False,
) -> int:
    """Give every record its vector in a generation and activate it; returns how many vectors that took.

    Args:
        store: Holds a collection; the caller has its lease.
        number: Number of the generation.
        embedder: Bound to the generation's Context.
        parent_key: As for `roll_back`.
        on_progress: Called after each write, every few seconds.
        check: Called when it is about to be activated; raises where it must not be.
        later: Records that wait for a vector in the active generation go on waiting.

    Raises:
        CorpusError: Records that the model refuses, and that have a vector in the active generation; all others have
            theirs in the new one.
        StoreError: The store cannot be written.
    """
    started = time.monotonic()
    before, total, may_wait = store.read(
        lambda state: (_vectors(state, number), state.count(), state.manifest().may_wait)
    )
    embedding, embedded, missing = _RowEmbedder(store, embedder, parent_key, later=later), 0, total - before
    waiting = dict[str, Exception]()
    attributes = {"generation": number, "fingerprint": short(embedder.fingerprint)}
    with operation("cde_rag.recontextualize", attributes) as note:
        for last_try in (False,) * (ACTIVATIONS - 1) + (True,):
            for taken in _fill(number, embedding, missing):
                embedded += taken
                note({"documents": embedded})
                if on_progress is not None:
                    done = before + embedded
                    on_progress(Progress(done, max(total, done), time.monotonic() - started, before))
            waiting = embedding.refused()
            check()
            try:
                left = "all" if later else waiting.keys()
                embedded += store.activate(number, last=embedding.embed_rows, waiting=left)
                break
            except StoreError:
                if last_try or store.manifest().generation == number or not store.lacking(number, limit=1):
                    raise  # also where it is active, and only the answer was lost
                missing = 1  # rows are written before the next try, so that an error of writing is raised there
        if may_wait:  # now all records have their vectors, but for those that are refused
            store.settle()
        if waiting:
            warn_user(str(unread_error(waiting, rest="All others have their vectors.")), CDEWarning)
        note({"documents": embedded})
        return embedded


def report(state: StoreCalls, embedded: int, started: float) -> Recontextualization:
    """Return the result of a run that began at `started` (time.monotonic)."""
    manifest, elapsed = state.manifest(), time.monotonic() - started
    return Recontextualization(state.count(), embedded, manifest.generation, manifest.fingerprint, elapsed)


class _RowEmbedder:
    """Embeds rows in the space of a generation."""

    def __init__(self, store: Store, embedder: Embedder, parent_key: str | None, *, later: bool) -> None:
        self._store = store
        self._embedder = embedder
        self._parent_key = parent_key
        self._later = later
        self._faults = dict[str, Exception]()  # of rows that the model refuses, by id

    def lacking(self, number: int, after: Row | None) -> list[tuple[Row, Passage]]:
        """Return some rows that a generation lacks, with their siblings, in one state of the store.

        They come after a row; after the last one, once more from the first: those that changed after they were read.
        """

        def read(state: StoreCalls) -> list[tuple[Row, Passage]]:
            rows = self._due(state, number, after)
            if not rows and after is not None:
                rows = self._due(state, number, None)
            return list(zip(rows, with_siblings(state, rows, self._parent_key, self._embedder), strict=True))

        return self._store.read(read)

    def _due(self, state: StoreCalls, number: int, after: Row | None) -> list[Row]:
        while rows := state.lacking(number, limit=ROWS_AT_ONCE, after=after):
            if due := [row for row in rows if row.digest or not self._later]:
                return due
            after = rows[-1]
        return []

    def embed(self, rows: Sequence[tuple[Row, Passage]]) -> tuple[list[str], Float32[np.ndarray, "rows dim"]]:
        """Return digests and vectors of rows; does not read the store."""
        texts = [embedded_text(row.record) for row, _ in rows]
        embedded = self._embedder.embed_passages(texts, [passage.siblings for _, passage in rows])
        return [passage.digest for _, passage in rows], embedded.vectors

    def write(self, number: int, rows: Sequence[tuple[Row, Passage]]) -> int:
        """Embed rows, and write the vectors of those that are as they were read; return their number.

        Rows that the model refuses are left out; see `refused`.
        """
        tried = [each for each in rows if each[0].record.id not in self._faults]
        read, made, unread = embed_readable(tried, self._embedder) if tried else ([], None, {})
        self._faults |= unread
        if made is None or not read:
            return 0
        digests = [passage.digest for _, passage in read]
        if all(row.digest for row, _ in read):
            return self._store.add_to_generation(number, [row for row, _ in read], digests, made.vectors)

        def write_same(state: StoreCalls) -> int:  # a row that waits has no digest that tells if a sibling changed
            same = unchanged(state, read, self._parent_key, self._embedder)
            kept, taken = [read[place][0] for place in same], [digests[place] for place in same]
            return state.add_to_generation(number, kept, taken, made.vectors[same])

        return self._store.write(write_same)

    def refused(self) -> dict[str, Exception]:
        """Return the errors of rows that the model refuses, and that wait for a vector in the active generation, too.

        Raises:
            CorpusError: It refuses some that have one there: after the move no search by vectors would find them.
        """
        rows = self._store.get(list(self._faults)) if self._faults else []
        if lost := {row.record.id: self._faults[row.record.id] for row in rows if row.digest}:
            rest = "All others have their vectors in the new space, which is not active yet; the same call goes on."
            raise unread_error(lost, rest=rest) from next(iter(lost.values()))
        return {row.record.id: self._faults[row.record.id] for row in rows}

    def embed_rows(self, rows: list[Row]) -> tuple[list[str], Float32[np.ndarray, "rows dim"]]:
        """Return digests and vectors of rows whose siblings are not read yet, for `Store.activate`."""
        passages = self._store.read(lambda state: with_siblings(state, rows, self._parent_key, self._embedder))
        return self.embed(list(zip(rows, passages, strict=True)))


def _fill(number: int, embedding: _RowEmbedder, missing: int) -> Iterator[int]:
    """Embed the rows that a generation lacks, in parts of some seconds; yields the number of vectors of each part.

    Rows are read with their siblings in one session for many parts, and each part is written in one. Those that another
    call changed between the two are skipped by the store, and read again.

    If new rows keep arriving it ends before all are embedded, and leaves the rest to `Store.activate`.

    Args:
        number: Number of the generation.
        embedding: Embeds rows in its space.
        missing: Number of missing rows when the run began; any more arrived meanwhile.
    """
    passes, after, size = 0, None, FIRST_PART
    while lacking := embedding.lacking(number, after):
        if missing <= 0 and (len(lacking) <= LAST_ROWS or passes == LAST_PASSES):
            return
        passes += missing <= 0
        while lacking:
            part, lacking, started = lacking[:size], lacking[size:], time.monotonic()
            taken = embedding.write(number, part)
            size = next_part(len(part), time.monotonic() - started)
            missing -= len(part)
            after = part[-1][0]
            yield taken


def earlier_generation(state: StoreCalls) -> int | None:
    """Return the number of the generation before the active one, to which `roll_back` returns; None without one."""
    active = state.manifest().generation
    return max((one.number for one in state.generations() if one.number < active), default=None)


def _before(state: StoreCalls) -> int:
    """Return the number of the generation before the active one; raises StoreError without one."""
    if (earlier := earlier_generation(state)) is None:
        active, numbers = state.manifest().generation, [generation.number for generation in state.generations()]
        later = [number for number in numbers if number > active]
        forward = f" To return to generation {later[-1]}, repeat the recontextualize that made it." if later else ""
        raise StoreError(
            f"Expected a generation before {active}, found none: there is nothing to roll back to.{forward}"
        )
    return earlier


def _vectors(store: StoreCalls, number: int) -> int:
    for generation in store.generations():
        if generation.number == number:
            return generation.vectors
    raise StoreError(f"Expected generation {number}, found that it was dropped by another run. Run it again.")
