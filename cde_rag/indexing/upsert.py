"""Upserts and deletes of a collection.

Long because the comparison before embedding, the one in the step that writes, and the retry between them are one rule.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cde_rag._telemetry import operation, short
from cde_rag.embedders.active import ActiveEmbedder, plain_vectors
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CDEWarning, ContextMismatchError, StoreError, TruncationWarning, counted, warn_user
from cde_rag.indexing import made_vectors
from cde_rag.indexing.made_vectors import CallVectors, ReadyVectors
from cde_rag.indexing.partial_records import completed
from cde_rag.indexing.replacement import Replacement
from cde_rag.indexing.sibling_passages import stored_groups
from cde_rag.indexing.upsert_plan import (
    Stale,
    difference,
    parents_of,
    plan_upsert,
    stale_passages,
    still_waiting,
)
from cde_rag.readers.passages import document_of
from cde_rag.records import Parent, Positions, Record, Row, chunks, embedded_text
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreCalls

PART_S = 4.0  # seconds of embedding between two writes: what a kill can cost, and how often progress is reported
FIRST_PART = 128  # texts that are embedded before the speed is known
SMALLEST_PART = 32
_Read = TypeVar("_Read")
TRIES = 8  # to write what was embedded while other calls change the same parents; after as many they wait


def next_part(texts: int, seconds: float) -> int:
    """Return the number of texts to embed before the next write, after a part of `texts` that took `seconds`."""
    return max(SMALLEST_PART, int(PART_S * texts / max(seconds, 1e-3)))


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run.

    Attributes:
        done: Number of records written.
        total: Total number of records, if known.
        elapsed_s: Seconds since the run began.
        before: Number of records written before it began, if it resumes another.
    """

    done: int
    total: int | None
    elapsed_s: float
    before: int = 0

    @property
    def per_second(self) -> float:
        """Records written in a second of this run; 0 where none are yet."""
        return (self.done - self.before) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the end at the present speed; None if unknown."""
        if self.total is None or self.per_second <= 0:
            return None
        return (self.total - self.done) / self.per_second


@dataclass(frozen=True, slots=True)
class AddReport:
    """Result of `add`, by number of records.

    Attributes:
        added: New ids.
        replaced: Changed title or text; embedded again.
        updated: Changed metadata only; the vector stays, unless the siblings changed with it.
        unchanged: Same title, text and metadata.
        truncated: Records embedded in this call that exceeded the model's token limit.
        deleted: Passages that their document no longer has; see `Collection.add_records`.
    """

    added: int = 0
    replaced: int = 0
    updated: int = 0
    unchanged: int = 0
    truncated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class AddPlan:
    """Plan of an upsert, by number of records.

    Attributes:
        added: New ids.
        replaced: Changed title or text.
        updated: Changed metadata only.
        unchanged: Same title, text and metadata.
        embedded: Vectors that would be made: of new and replaced texts, and of passages whose siblings change. Equal
            texts with equal siblings share one.
        deleted: Passages that their document no longer has.
    """

    added: int = 0
    replaced: int = 0
    updated: int = 0
    unchanged: int = 0
    embedded: int = 0
    deleted: int = 0


class Upserter:
    """Upserts and deletes that keep every vector in a store equal to its record's text and siblings. Thread-safe.

    An upsert compares a chunk of records with the stored ones (`difference`), plans its writes (`plan_upsert`), finds
    the passages whose vectors are stale (`stale_passages`), embeds these, and writes.

    Texts are embedded outside the lock, so that calls embed in parallel and a delete does not wait for an upsert: the
    missing vectors are found in one state of the store, and embedded; then a step reads the store and writes in one
    transaction. Vectors are cached by their digest, over text and siblings: rows that another call changed meanwhile
    have another digest and are embedded again, the others are not. Partial records are completed in the step that
    writes them, so that they keep what another call wrote meanwhile.

    A crash between two steps, or in a store without transactions between two writes, leaves rows whose digest does not
    match their siblings; repeating the call finds and repairs them.

    Args:
        store: Holds a collection.
        active: Embedder of the store's active vector space.
        settings: Settings of the store: its parent key and its headers.
    """

    def __init__(self, store: Store, active: ActiveEmbedder, settings: Mapping[str, Any]) -> None:
        self._store = store
        self._active = active
        self._settings = settings
        self._parent_key: str | None = settings["parent_key"]
        self._kept = plain_vectors(store)
        self._lock = threading.Lock()
        self._part = FIRST_PART

    def add(
        self,
        records: Iterable[Record],
        total: int | None,
        on_progress: Callable[[Progress], None] | None,
        ready: ReadyVectors | None = None,
        documents: Mapping[str, int] | None = None,
        *,
        at_once: bool = False,
        later: bool = False,
    ) -> AddReport:
        """Write a stream of records, and count the changes; raises and warns like `Collection.add`.

        A document's passages are embedded with the siblings that it has now. Its new passages are written first, then
        those with another text in one write of the store, and then those that it no longer has are deleted, so that
        a crash leaves the old document or the new one complete. (One of more than 16,384 passages takes more writes.)

        Args:
            records: Records.
            total: Number of records, if known.
            on_progress: Called after each write, every few seconds.
            ready: Vectors that were made before; the others are embedded.
            documents: As of `Replacement`; None for records that are upserted alone.
            at_once: True: write nothing of a chunk before all of its vectors are made.
            later: True: make no vectors; records that need others than they have wait for them.
        """
        started, done, changes = time.monotonic(), 0, Counter[str]()
        try:
            with operation("cde_rag.add", {"fingerprint": short(self._active.last.fingerprint)}) as note:
                replacement = None if documents is None else Replacement(self._store, documents)
                for chunk in self._chunks(records):
                    leaving = set[str]() if replacement is None else replacement.begin(chunk.records, chunk.stored)

                    def on_write(written: int, done: int = done) -> None:
                        if on_progress is not None:
                            on_progress(Progress(done + written, total, time.monotonic() - started))

                    pending = self._replanned(chunk, leaving)
                    if later:
                        pending = pending._replace(stale=[])
                    upsert = partial(self._upsert_chunk, chunk.records, leaving, at_once, later)
                    truncated = self._run(upsert, pending, ready, on_write, at_once=at_once).truncated
                    changes += chunk.changes + Counter(truncated=len(truncated & chunk.records.keys()))
                    if replacement is not None:
                        changes["deleted"] += self._delete_all(replacement.end(chunk.records))
                    done += chunk.size
                    note({"documents": done, **changes})
                    if on_progress is not None:
                        on_progress(Progress(done, total, time.monotonic() - started))
        except BaseException:
            with suppress(Warning):  # where warnings are errors, they are not to hide this one
                self._warn(changes)
            raise
        self._warn(changes)
        del changes["repeated"]
        return AddReport(**changes)

    def delete(self, ids: Sequence[str] | None, where: Mapping[str, Any] | None) -> int:
        """Remove records by id or else by filter; returns how many there were."""
        with operation("cde_rag.delete", {"filtered": ids is None}) as note:
            if ids is None:
                ids = [row.record.id for row in self._store.scroll(where=where)]
            deleted = self._delete_all(ids)
            note({"documents": deleted})
            return deleted

    def replace(self, documents: Mapping[str, int]) -> int:
        """Delete the passages that documents lack, whose others are written; returns how many there were.

        Args:
            documents: Number of passages of each document, by `source`.
        """
        replacement, names, deleted = Replacement(self._store, documents), iter(documents), 0
        while part := list(islice(names, made_vectors.LARGEST_WRITE)):
            firsts = {row.record.id: row.record for row in self._store.get([f"{name}#0" for name in part])}
            deleted += self._delete_all(sorted(replacement.begin(firsts, {})))
        return deleted

    def plan(self, records: Iterable[Record], documents: Mapping[str, int] | None = None) -> AddPlan:
        """Count the writes of `add`, whose arguments these are; nothing is embedded or written.

        An id in two chunks of the call counts twice, and passages without a parent that get one count as its last ones.
        """
        changes = Counter[str]()
        replacement = None if documents is None else Replacement(self._store, documents)
        for chunk in self._chunks(records):
            leaving = set[str]() if replacement is None else replacement.begin(chunk.records, chunk.stored)
            stale = self._replanned(chunk, leaving).stale
            changes += chunk.changes + Counter(embedded=len({change.row.digest for change in stale}))
            changes["deleted"] += 0 if replacement is None else len(replacement.end(chunk.records))
        del changes["repeated"]
        return AddPlan(**changes)

    def _chunks(self, records: Iterable[Record]) -> Iterator["_Chunk"]:
        """Yield each chunk of a call, compared with one state of the store."""
        done, positions = 0, Positions()
        for chunk in chunks(records, self._parent_key, document_of):
            positions.extend(record.id for record in chunk)
            yield self._read(partial(self._compared, chunk, done, positions))
            done += len(chunk)

    def _compared(
        self, chunk: Sequence[Record], done: int, positions: Positions, embedder: Embedder, state: StoreCalls
    ) -> "_Chunk":
        wanted = {record.id: record for record in chunk}
        stored = {row.record.id: row for row in state.get(list(wanted))}
        known = {row_id: row.record for row_id, row in stored.items()}
        complete = completed(chunk, stored, self._settings, embedder)
        changes = difference(known, complete, done, positions)
        pending = self._planned(wanted, stored, frozenset(), embedder, state)
        return _Chunk(len(chunk), stored, wanted, changes, pending)

    def _completed(
        self, records: Mapping[str, Record], stored: Mapping[str, Row], embedder: Embedder
    ) -> dict[str, Record]:
        """Return `completed` records by id."""
        complete = completed(list(records.values()), stored, self._settings, embedder)
        return dict(zip(records, complete, strict=True))

    def _replanned(self, chunk: "_Chunk", leaving: AbstractSet[str]) -> "_Pending":
        """Return the pending changes of a chunk when some stored passages leave."""
        if not leaving:
            return chunk.pending
        return self._read(partial(self._planned, chunk.records, chunk.stored, leaving))

    def _read(self, work: "Callable[[Embedder, StoreCalls], _Read]") -> "_Read":
        """Call a function with the active embedder and one state of the store in its space."""

        def read(embedder: Embedder) -> _Read:
            def checked(state: StoreCalls) -> _Read:
                if (space := state.manifest().fingerprint) != embedder.fingerprint:
                    raise ContextMismatchError(expected=space, found=embedder.fingerprint)
                return work(embedder, state)

            return self._store.read(checked)

        return self._active.use(read)

    def _upsert_chunk(
        self,
        records: Mapping[str, Record],
        leaving: AbstractSet[str],
        at_once: bool,  # noqa: FBT001
        later: bool,  # noqa: FBT001
        state: StoreCalls,
        made: CallVectors,
    ) -> list[Stale]:
        """Upsert records, one for each id; a `Step`.

        Args:
            records: Records by id, partial ones among them.
            leaving: Ids of stored passages that are deleted afterwards, no longer siblings of any passage.
            at_once: True: write nothing if a vector is missing.
            later: True: write all without vectors that need others than they have.
            state: State of the store.
            made: Vectors of the call.
        """
        stored = {row.record.id: row for row in state.get(list(records))}
        if at_once and not later:
            pending = self._planned(records, stored, leaving, made.embedder, state)
            if missing := made.lacking(pending.stale):
                return missing
        records = self._completed(records, stored, made.embedder)
        plan = plan_upsert(stored, records, self._parent_key)
        # Re-embed the old parents first: once the rows have moved, nothing refers to them.
        siblings = self._stale(state, plan.left, made.embedder, leaving=plan.moved | leaving)
        if left := made.write(state, _waiting(siblings) if later else siblings):
            return left
        if plan.metadata:  # before vectors, so that the store knows the place of each passage among its siblings
            state.update_metadata(plan.metadata)
        before = [row.record for row in stored.values()]
        gone = [record for record in before if embedded_text(record) != embedded_text(records[record.id])]
        stale = self._stale(state, plan.joined, made.embedder, arriving=plan.arriving, leaving=leaving)
        stale = _waiting(stale) if later else stale
        if not leaving:
            stale = still_waiting(stale, plan, stored, self._parent_key)
        # Digests are those of all siblings, also of those that are not written yet, so that none of them is embedded
        # again when the others are there, or when an interrupted call is repeated.
        left = made.write(state, stale, gone=gone)
        made.written = len(records) - sum(each.row.record.id in records for each in left)
        return left

    def _planned(
        self,
        records: Mapping[str, Record],
        stored: Mapping[str, Row],
        leaving: AbstractSet[str],
        embedder: Embedder,
        state: StoreCalls,
    ) -> "_Pending":
        """Return the changes that an upsert makes, before anything of it is written.

        Passages that move to another parent keep their places in the order of insertion, as they do when it is written.
        (Those that had none count as its last ones.)
        """
        plan = plan_upsert(stored, self._completed(records, stored, embedder), self._parent_key)
        groups = stored_groups(state, plan.left | plan.joined, self._parent_key, arriving=plan.arriving)
        stale = stale_passages(groups, embedder, self._parent_key, arriving=plan.arriving, leaving=leaving)
        if not leaving:
            stale = still_waiting(stale, plan, stored, self._parent_key)
        return _Pending(embedder, stale, writes=bool(stale or plan.metadata))

    def _delete_all(self, ids: Sequence[str]) -> int:
        """Remove records by id, part by part; returns how many there were."""
        leaving = list(dict.fromkeys(ids))
        gone, remaining, removed = set(leaving), iter(leaving), 0
        while part := list(islice(remaining, made_vectors.LARGEST_WRITE)):
            pending = _Pending(self._active.last, [], writes=True)
            if self._parent_key is not None:
                pending = self._read(partial(self._left, part, gone))
            removed += self._run(partial(self._delete_chunk, part, gone), pending).written
        return removed

    def _left(self, ids: Sequence[str], leaving: AbstractSet[str], embedder: Embedder, state: StoreCalls) -> "_Pending":
        """Return the passages that stay when some leave, and whose vectors are then stale."""
        parents = parents_of((row.record for row in state.get(ids)), self._parent_key)
        return _Pending(embedder, self._stale(state, parents, embedder, leaving=leaving), writes=True)

    def _delete_chunk(
        self, ids: Sequence[str], leaving: AbstractSet[str], state: StoreCalls, made: CallVectors
    ) -> list[Stale]:
        """Delete the rows of one chunk of a call, after their siblings are embedded without them; a `Step`.

        Args:
            ids: Ids of the chunk.
            leaving: All ids that the call deletes, no longer siblings of any passage.
            state: State of the store.
            made: Vectors of the call.
        """
        if self._parent_key is not None:
            siblings = self._left(ids, leaving, made.embedder, state).stale
            if left := made.write(state, siblings):
                return left
        made.forget(lambda: [row.record for row in state.get(ids)])
        made.written = state.delete(ids)
        return []

    def _run(
        self,
        step: "Step",
        pending: "_Pending",
        ready: ReadyVectors | None = None,
        on_write: Callable[[int], None] | None = None,
        *,
        at_once: bool = False,
    ) -> CallVectors:
        """Repeat a step under the lock until no vector is missing; missing ones are embedded outside the lock.

        Args:
            step: Reads and writes.
            pending: Changes that it will make.
            ready: Vectors that were made before.
            on_write: Called with the number of rows that the call has written, between two parts.
            at_once: True: embed all missing vectors in one call.

        Returns:
            The vectors that were made.
        """
        made = CallVectors(ready, self._kept).bind(pending.embedder)
        missing = made.lacking(pending.stale)
        if not pending.writes:
            return made

        def write(embedder: Embedder) -> list[Stale]:
            return self._store.write(lambda state: step(state, made.bind(embedder)))

        for _ in range(TRIES + len(missing) // SMALLEST_PART):
            part, started = missing if at_once else missing[: self._part], time.monotonic()
            if part:
                made.embed(part)
                self._part = next_part(len(part), time.monotonic() - started)
            with self._lock:
                missing = made.lacking(self._active.use(write))
            if not missing:
                return made
            if on_write is not None:
                on_write(made.written)
        with self._lock:  # other calls change the same parents all the time: now they wait
            for _ in range(TRIES):
                made.embed(missing)
                missing = made.lacking(self._active.use(write))
                if not missing:
                    return made
        raise StoreError(
            f"Another process kept changing the same documents ({2 * TRIES} attempts). No data was lost. Retry, or "
            "update each document from one process only."
        )

    def _stale(
        self,
        state: StoreCalls,
        parents: AbstractSet[Parent],
        embedder: Embedder,
        *,
        arriving: Mapping[str, Row] | None = None,
        leaving: AbstractSet[str] = frozenset(),
    ) -> list[Stale]:
        """Return the passages of some parents whose vectors are stale; see `stale_passages`."""
        groups = stored_groups(state, parents, self._parent_key)
        return stale_passages(groups, embedder, self._parent_key, arriving=arriving, leaving=leaving)

    def _warn(self, changes: Counter[str]) -> None:
        if changes["truncated"]:
            limit = self._active.last.context.identity.limit
            embedded = max(changes["added"] + changes["replaced"], changes["truncated"])
            warn_user(
                f"{changes['truncated']} of {embedded} embedded records exceed the model's limit of {limit} "
                "and were truncated. Split long documents.",
                TruncationWarning,
            )
        if changes["repeated"]:
            repeated = counted(changes["repeated"], "record")
            warn_user(
                f"Found {repeated} with the id of an earlier one of this call, or its text without an id, and other "
                "metadata; the later metadata were kept. Give each an id of its own to keep both.",
                CDEWarning,
            )


def _waiting(stale: Iterable[Stale]) -> list[Stale]:
    """Return stale rows as ones that wait for their vectors."""
    return [each._replace(waits=True) for each in stale]


class _Pending(NamedTuple):
    """Changes of a step, found in one state of the store.

    Attributes:
        embedder: Embedder of the vectors.
        stale: Rows whose vectors have to be made.
        writes: True if there is anything to write.
    """

    embedder: Embedder
    stale: list[Stale]
    writes: bool


class _Chunk(NamedTuple):
    """A chunk of a call, compared with the store.

    Attributes:
        size: Number of the call's records in it.
        stored: Rows that are stored under its ids.
        records: Record of each id, partial ones among them.
        changes: Number of records by kind of change; see `difference`.
        pending: Changes of the upsert, if no passage leaves.
    """

    size: int
    stored: dict[str, Row]
    records: dict[str, Record]
    changes: Counter[str]
    pending: _Pending


Step: TypeAlias = Callable[[StoreCalls, CallVectors], list[Stale]]
"""Reads the store, writes rows whose vectors it has, and returns the stale rows that are left."""
