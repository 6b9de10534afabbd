"""Upserts and deletes of a collection."""

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag.context.file_format import canonical_json
from cde_rag.embedders.active import ActiveEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CDEWarning, CorpusError, StoreError, TruncationWarning
from cde_rag.indexing.sibling_passages import passages, stored_groups
from cde_rag.records import LONGEST_CHUNK, Parent, Positions, chunks, embedded_text, parent_of
from cde_rag.stores.base import Record, Row, Store

TRIES = 8  # to write what was embedded while other calls change the same parents; after as many they wait


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        done: Records that are written.
        total: Records in all, where that is known.
        elapsed_s: Seconds since the run began.
        before: Records that were written before it began, where it continues another.
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
        """Seconds that the rest will take at this speed; None where that cannot be told."""
        if self.total is None or self.per_second <= 0:
            return None
        return (self.total - self.done) / self.per_second


@dataclass(frozen=True, slots=True)
class AddReport:
    """What became of the records of one call.

    Attributes:
        added: New ids.
        replaced: Another title or text than before; embedded anew.
        updated: Other metadata only; the vector stays, unless the siblings changed with it.
        unchanged: Nothing to do.
        truncated: Of those embedded in this call, how many were longer than the model reads.
    """

    added: int = 0
    replaced: int = 0
    updated: int = 0
    unchanged: int = 0
    truncated: int = 0


class Upserter:
    """Upserts and deletes that keep every vector in a store equal to its record's text and siblings. Thread-safe.

    Texts are embedded outside the lock, so that calls embed side by side and a delete does not wait for an upsert. A
    call is a step that reads the store and writes if it has all vectors; those that it lacks are embedded, and the step
    is taken again. Vectors are kept by their digest, which is over text and siblings: what another call changed
    meanwhile has another digest and is embedded again, the rest is not.

    Killed between two writes it leaves rows whose digest is not that of their siblings; the same call made again finds
    and mends them.

    Args:
        store: Holds a collection.
        active: The embedder of the vector space that is in the store.
        parent_key: The metadata key that names a record's parent; `None` where parents are not used.
    """

    def __init__(self, store: Store, active: ActiveEmbedder, parent_key: str | None) -> None:
        self._store = store
        self._active = active
        self._parent_key = parent_key
        self._lock = threading.Lock()

    def add(
        self, records: Iterable[Record], total: int | None, on_progress: Callable[[Progress], None] | None
    ) -> AddReport:
        """Write a stream of records; see `Collection.add`."""
        started, done, changes, positions = time.monotonic(), 0, Counter[str](), Positions()
        try:
            with operation("cde_rag.add", {"fingerprint": short(self._active.last.fingerprint)}) as note:
                for chunk in chunks(records, self._parent_key):
                    positions.extend(record.id for record in chunk)
                    changes += self._upsert(chunk, done, positions)
                    done += len(chunk)
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
            leaving = list(dict.fromkeys(ids))
            gone, remaining, removed = set(leaving), iter(leaving), 0
            while part := list(islice(remaining, LONGEST_CHUNK)):
                removed += self._delete(part, gone)
                note({"documents": removed})
            return removed

    def _upsert(self, chunk: Sequence[Record], start: int, positions: Positions) -> Counter[str]:
        """Upsert one chunk of a call; returns what became of its records, as in `AddReport`.

        Args:
            chunk: Checked records.
            start: Position in the call of the first.
            positions: Of all ids of the call so far, this chunk included.

        Raises:
            CorpusError: An id stands in the call with two different texts; nothing of the chunk is written.
        """
        stored = self._store.get(list({record.id for record in chunk}))
        records, changes = _difference({row.record.id: row.record for row in stored}, chunk, start, positions)

        def step(made: "_Vectors") -> "list[Stale]":
            rows = {row.record.id: row for row in self._store.get(list(records))}
            moved = {
                row_id for row_id, row in rows.items() if self._parent(row.record) != self._parent(records[row_id])
            }
            if moved:  # their siblings of before come first: once a row is moved, nothing says that it was one of them
                missing = self._write(made, self._parents(rows[row_id].record for row_id in moved), leaving=moved)
                if missing:
                    return missing
            metadata = {
                row_id: records[row_id].metadata
                for row_id, row in rows.items()
                if row_id in moved or _change(row.record, records[row_id]) == "updated"
            }
            if metadata:  # before they are embedded, so that the store knows the place of each among its siblings
                self._store.update_metadata(metadata)
            arriving = {
                row_id: Row(record, rows[row_id].digest if row_id in rows else "") for row_id, record in records.items()
            }
            return self._write(made, self._parents(records.values()), arriving=arriving)

        truncated = self._take(step)
        changes["truncated"] = len(truncated & records.keys())
        return changes

    def _delete(self, ids: Sequence[str], leaving: AbstractSet[str]) -> int:
        """Delete some rows; `leaving` are all that this call is going to delete, which are nobody's siblings more."""
        removed = 0

        def step(made: "_Vectors") -> "list[Stale]":
            nonlocal removed
            if self._parent_key is not None:
                parents = self._parents(row.record for row in self._store.get(ids))
                if missing := self._write(made, parents, leaving=leaving):
                    return missing
            removed = self._store.delete(ids)
            return []

        self._take(step)
        return removed

    def _take(self, step: "Callable[[_Vectors], list[Stale]]") -> set[str]:
        """Take a step under the lock until it lacks no vector; what it lacks is embedded outside the lock.

        Args:
            step: Reads the store, writes what it has the vectors of, and returns what it lacks.

        Returns:
            Ids of the rows that were truncated.

        Raises:
            StoreError: Another process changes the same parents all the time.
        """
        made = _Vectors()
        for _ in range(TRIES):
            with self._lock:
                missing = self._active.use(lambda embedder: step(made.of(embedder)))
            if not missing:
                return made.truncated
            made.embed(missing)
        with self._lock:  # other calls change the same parents all the time: now they wait
            for _ in range(TRIES):
                missing = self._active.use(lambda embedder: step(made.of(embedder)))
                if not missing:
                    return made.truncated
                made.embed(missing)
        raise StoreError(
            f"Another process changed the same parents in each of {2 * TRIES} tries. Nothing is lost: make this call "
            "again, or change a parent from one process."
        )

    def _write(
        self,
        made: "_Vectors",
        parents: AbstractSet[Parent],
        *,
        arriving: Mapping[str, Row] | None = None,
        leaving: AbstractSet[str] = frozenset(),
    ) -> "list[Stale]":
        """Write what arrives, and all passages of `parents` that have other siblings than their vectors say.

        Args:
            made: Vectors that were made for this call.
            parents: Whose passages may have changed.
            arriving: Records as they shall be, with the digest of the vector that they have, or "".
            leaving: Ids that are to count as gone.

        Returns:
            Those that have no vector in `made`; nothing is written then.
        """
        stale = [
            Stale(Row(row.record, passage.digest), passage.siblings)
            for group in self._groups(parents, arriving or {}, leaving)
            for row, passage in zip(group, passages(group, made.embedder), strict=True)
            if passage.digest != row.digest
        ]
        order = {row_id: place for place, row_id in enumerate(arriving or {})}
        stale.sort(key=lambda change: order.get(change.row.record.id, -1))  # new rows are stored as they arrived
        if missing := [change for change in stale if change.row.digest not in made]:
            return missing
        for start in range(0, len(stale), LONGEST_CHUNK):
            rows = [change.row for change in stale[start : start + LONGEST_CHUNK]]
            self._store.add(rows, made.vectors(rows), fingerprint=made.embedder.fingerprint)
        return []

    def _groups(
        self, parents: AbstractSet[Parent], arriving: Mapping[str, Row], leaving: AbstractSet[str]
    ) -> Iterable[list[Row]]:
        """The passages of each parent in order of insertion, as they shall be; a record without a parent is alone."""
        behind = dict(arriving)  # what is not yet in the store under its parent
        groups = stored_groups(self._store, parents, self._parent_key)
        for group in groups.values():
            for row_id in group.keys() & leaving:
                del group[row_id]
            for row_id in group.keys() & arriving.keys():
                group[row_id] = arriving[row_id]
                behind.pop(row_id, None)
        for row in behind.values():
            parent = self._parent(row.record)
            if parent is None:
                yield [row]
            else:
                groups[parent][row.record.id] = row
        yield from (list(group.values()) for group in groups.values())

    def _parent(self, record: Record) -> Parent | None:
        return parent_of(record, self._parent_key)

    def _parents(self, records: Iterable[Record]) -> set[Parent]:
        parents = {self._parent(record) for record in records}
        return {parent for parent in parents if parent is not None}

    def _warn(self, changes: Counter[str]) -> None:
        if changes["truncated"]:
            length = self._active.last.context.identity.max_length
            embedded = max(changes["added"] + changes["replaced"], changes["truncated"])
            warnings.warn(
                f"{changes['truncated']} of {embedded} records that were embedded are longer than the {length} "
                "tokens that the model reads; what comes after was not embedded. Split long documents.",
                TruncationWarning,
                stacklevel=4,
            )
        if changes["repeated"]:
            warnings.warn(
                f"{changes['repeated']} records of this call have the id of an earlier one, or its text without an id, "
                "and other metadata, which is what was kept. Give each an id of its own to keep both.",
                CDEWarning,
                stacklevel=4,
            )


class Stale(NamedTuple):
    """A row whose vector is not that of its text and siblings.

    Attributes:
        row: With the digest that it shall have.
        siblings: Texts.
    """

    row: Row
    siblings: list[str]


class _Vectors:
    """Vectors that were made for one call, by digest, in the space of one embedder.

    Attributes:
        truncated: Ids of rows that are longer than the model reads.
    """

    def __init__(self) -> None:
        self.truncated: set[str] = set()
        self._embedder: Embedder | None = None
        self._made: dict[str, Float32[np.ndarray, " dim"]] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._made

    def of(self, embedder: Embedder) -> "_Vectors":
        """These, or none where they are of another space."""
        if self._embedder is None or self._embedder.fingerprint != embedder.fingerprint:
            self._made.clear()
        self._embedder = embedder
        return self

    @property
    def embedder(self) -> Embedder:
        """Of the space."""
        assert self._embedder is not None, "of(embedder) comes first"
        return self._embedder

    def vectors(self, rows: Sequence[Row]) -> Float32[np.ndarray, "rows dim"]:
        """Of rows whose digests are known."""
        return np.stack([self._made[row.digest] for row in rows])

    def embed(self, stale: Sequence[Stale]) -> None:
        """Make the vectors of some rows."""
        texts, siblings = [embedded_text(each.row.record) for each in stale], [each.siblings for each in stale]
        embedded = self.embedder.embed_passages(texts, siblings)
        for each, vector, cut in zip(stale, embedded.vectors, embedded.truncated, strict=True):
            self._made[each.row.digest] = vector
            if cut:
                self.truncated.add(each.row.record.id)


def _difference(
    stored: Mapping[str, Record], chunk: Sequence[Record], start: int, positions: Positions
) -> tuple[dict[str, Record], Counter[str]]:
    """What a chunk of a call changes: each id's record as it shall be, and how many were added, replaced and so on.

    Args:
        stored: The records that are in the store under ids of the chunk.
        chunk: Checked records.
        start: Position in the call of the first.
        positions: Of all ids of the call so far, this chunk included.

    Raises:
        CorpusError: An id stands in the call with two different texts.
    """
    known, changes = dict(stored), Counter[str](repeated=0)
    again: dict[tuple[str, str], int] = {}  # position in the call of each id that was replaced, or updated
    for position, record in enumerate(chunk, start):
        change = _change(known.get(record.id), record)
        changes[change] += 1
        if change in ("replaced", "updated"):
            again[change, record.id] = position
        known[record.id] = record
    firsts = positions.first([record_id for _, record_id in again])
    for ((change, record_id), position), first in zip(again.items(), firsts, strict=True):
        if change == "replaced" and first < position:
            raise CorpusError(
                f"The id {record_id!r} stands at position {first} and, with another text, at {position}. "
                "Give them two ids, or leave one out."
            )
        changes["repeated"] += first < position
    return known, changes


def _change(before: Record | None, record: Record) -> str:
    """What a record is to the one that had its id before."""
    if before is None:
        return "added"
    if (before.title, before.text) != (record.title, record.text):
        return "replaced"
    same = canonical_json(before.metadata) == canonical_json(record.metadata)  # unlike ==, tells True from 1
    return "unchanged" if same else "updated"
