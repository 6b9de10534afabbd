"""What changes in a collection: the vectors of what arrives, and of what stays with other siblings than before."""

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cde_rag.artifact import canonical_json
from cde_rag.embedding import Embedder
from cde_rag.errors import CDEWarning, CorpusError, TruncationWarning
from cde_rag.following import ActiveEmbedder
from cde_rag.intake import LONGEST_CHUNK, Parent, Positions, chunks, embedded_text, parent_of
from cde_rag.observability import operation, short
from cde_rag.passages import passages, stored_groups
from cde_rag.stores.base import Record, Row, Store


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


class Writer:
    """Keeps every vector in a store equal to its record's text and siblings. Thread-safe: one change at a time.

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
        self._changing = threading.Lock()

    def add(
        self, records: Iterable[Record], total: int | None, on_progress: Callable[[Progress], None] | None
    ) -> AddReport:
        """Write a stream of records; see `Collection.add`."""
        started, done, changes, positions = time.monotonic(), 0, Counter[str](), Positions()
        try:
            with operation("cde_rag.add", {"fingerprint": short(self._active.last.fingerprint)}) as note:
                for chunk in chunks(records, self._parent_key):
                    positions.extend(record.id for record in chunk)
                    with self._changing:
                        changes += self._write(chunk, done, positions)
                    done += len(chunk)
                    note({"documents": done, **changes})
                    if on_progress is not None:
                        on_progress(Progress(done, total, time.monotonic() - started))
        finally:
            if changes["truncated"]:
                length = self._active.last.context.identity.max_length
                embedded = max(changes["added"] + changes["replaced"], changes["truncated"])
                warnings.warn(
                    f"{changes['truncated']} of {embedded} records that were embedded are longer than the {length} "
                    "tokens that the model reads; what comes after was not embedded. Split long documents.",
                    TruncationWarning,
                    stacklevel=3,
                )
            if repeated := changes.pop("repeated", 0):
                warnings.warn(
                    f"{repeated} records of this call have the id of an earlier one, or its text without an id, and "
                    "other metadata, which is what was kept. Give each an id of its own to keep both.",
                    CDEWarning,
                    stacklevel=3,
                )
        return AddReport(**changes)

    def delete(self, ids: Sequence[str] | None, where: Mapping[str, Any] | None) -> int:
        """Remove records by id or else by filter; returns how many there were."""
        with self._changing, operation("cde_rag.delete", {"filtered": ids is None}) as note:
            if ids is None:
                ids = [row.record.id for row in self._store.scroll(where=where)]
            leaving = list(dict.fromkeys(ids))
            gone, remaining, removed = set(leaving), iter(leaving), 0
            while part := list(islice(remaining, LONGEST_CHUNK)):
                if self._parent_key is not None:
                    self._settle(self._parents(row.record for row in self._store.get(part)), leaving=gone)
                removed += self._store.delete(part)
                note({"documents": removed})
            return removed

    def _write(self, chunk: Sequence[Record], start: int, positions: Positions) -> Counter[str]:
        """Write one chunk of a call.

        Args:
            chunk: Checked records.
            start: Position in the call of the first.
            positions: Of all ids of the call so far, this chunk included.

        Returns:
            How many were `added`, `replaced`, `updated`, `unchanged` and `truncated`, and how many of the updated had
            an id that stood in the call before (`repeated`).

        Raises:
            CorpusError: An id stands in the call with two different texts; nothing of the chunk is written.
        """
        stored = {row.record.id: row for row in self._store.get(list({record.id for record in chunk}))}
        known = {row_id: row.record for row_id, row in stored.items()}
        changes = Counter[str]()
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
        changes["truncated"] = self._bring(known, stored)
        return changes

    def _bring(self, records: Mapping[str, Record], stored: Mapping[str, Row]) -> int:
        """Make the store hold `records`, some of which it has as `stored`; returns how many were truncated.

        Metadata goes first, so that the store knows the place of each row among its siblings before they are embedded.
        """
        moved = {
            row_id
            for row_id, row in stored.items()
            if parent_of(row.record, self._parent_key) != parent_of(records[row_id], self._parent_key)
        }
        if moved:
            self._settle(self._parents(stored[row_id].record for row_id in moved), leaving=moved)
        metadata = {
            row_id: records[row_id].metadata
            for row_id, row in stored.items()
            if row_id in moved or _change(row.record, records[row_id]) == "updated"
        }
        if metadata:
            self._store.update_metadata(metadata)
        arriving = {
            row_id: Row(record, stored[row_id].digest if row_id in stored else "") for row_id, record in records.items()
        }
        return self._settle(self._parents(records.values()), arriving=arriving)

    def _settle(
        self,
        parents: AbstractSet[Parent],
        *,
        arriving: Mapping[str, Row] | None = None,
        leaving: AbstractSet[str] = frozenset(),
    ) -> int:
        """Embed and store what arrives, and all passages of `parents` whose siblings are not those of their vectors.

        Args:
            parents: Whose passages may have changed.
            arriving: Records as they shall be, with the digest of the vector that they have, or "".
            leaving: Ids that are to count as gone.

        Returns:
            How many of the arriving records were truncated.
        """
        return self._active.use(lambda embedder: self._settle_in(embedder, parents, arriving or {}, leaving))

    def _settle_in(
        self,
        embedder: Embedder,
        parents: AbstractSet[Parent],
        arriving: Mapping[str, Row],
        leaving: AbstractSet[str],
    ) -> int:
        limit = embedder.max_siblings
        stale: list[tuple[Row, list[str]]] = []  # with the digest that it shall have, and the siblings' texts
        for group in self._groups(parents, arriving, leaving):
            for row, passage in zip(group, passages(group, limit), strict=True):
                if passage.digest != row.digest:
                    stale.append((Row(row.record, passage.digest), passage.siblings))
        order = {row_id: place for place, row_id in enumerate(arriving)}
        stale.sort(key=lambda change: order.get(change[0].record.id, -1))  # new rows come to the store as they arrived
        truncated = 0
        for start in range(0, len(stale), LONGEST_CHUNK):
            part, siblings = zip(*stale[start : start + LONGEST_CHUNK], strict=True)
            embedded = embedder.embed_passages([embedded_text(row.record) for row in part], siblings)
            self._store.add(part, embedded.vectors, fingerprint=embedder.fingerprint)
            truncated += sum(
                bool(cut) for row, cut in zip(part, embedded.truncated, strict=True) if row.record.id in order
            )
        return truncated

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
            parent = parent_of(row.record, self._parent_key)
            if parent is None:
                yield [row]
            else:
                groups[parent][row.record.id] = row
        yield from (list(group.values()) for group in groups.values())

    def _parents(self, records: Iterable[Record]) -> set[Parent]:
        parents = {parent_of(record, self._parent_key) for record in records}
        return {parent for parent in parents if parent is not None}


def _change(before: Record | None, record: Record) -> str:
    """What a record is to the one that had its id before."""
    if before is None:
        return "added"
    if (before.title, before.text) != (record.title, record.text):
        return "replaced"
    same = canonical_json(before.metadata) == canonical_json(record.metadata)  # unlike ==, tells True from 1
    return "unchanged" if same else "updated"
