"""Upserts and deletes of a collection."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag.embedders.active import ActiveEmbedder
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import CDEWarning, StoreError, TruncationWarning, warn_user
from cde_rag.indexing.replacement import Replacement
from cde_rag.indexing.sibling_passages import stored_groups
from cde_rag.indexing.upsert_plan import (
    Stale,
    UpsertPlan,
    difference,
    groups_of,
    parents_of,
    plan_upsert,
    stale_passages,
)
from cde_rag.readers.passages import document_of
from cde_rag.records import Parent, Positions, chunks, embedded_text
from cde_rag.stores.base import Record, Row, Store

PART_S = 4.0  # seconds of embedding between two writes: what a kill can cost, and how often progress is reported
FIRST_PART = 128  # texts that are embedded before the speed is known
SMALLEST_PART = 32
LARGEST_WRITE = 2048  # rows in one call of a store
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


@dataclass(frozen=True, slots=True)
class ReadyVectors:
    """Vectors that were made before an upsert.

    Attributes:
        fingerprint: Fingerprint of their vector space.
        vectors: Each vector with True if its text was truncated, by the digest of its row.
    """

    fingerprint: str
    vectors: Mapping[str, tuple[Float32[np.ndarray, " dim"], bool]]


class Upserter:
    """Upserts and deletes that keep every vector in a store equal to its record's text and siblings. Thread-safe.

    An upsert compares a chunk of records with the stored ones (`difference`), plans its writes (`plan_upsert`), finds
    the passages whose vectors are stale (`stale_passages`), embeds these, and writes.

    Texts are embedded outside the lock, so that calls embed in parallel and a delete does not wait for an upsert: a
    step reads the store and writes if it has all vectors; otherwise the missing ones are embedded, and the step is
    repeated. Vectors are cached by their digest, over text and siblings: rows that another call changed meanwhile have
    another digest and are embedded again, the others are not.

    A crash between two writes leaves rows whose digest does not match their siblings; repeating the call finds and
    repairs them.

    Args:
        store: Holds a collection.
        active: Embedder of the store's active vector space.
        parent_key: The metadata key that names a record's parent; `None` if parents are not used.
    """

    def __init__(self, store: Store, active: ActiveEmbedder, parent_key: str | None) -> None:
        self._store = store
        self._active = active
        self._parent_key = parent_key
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
        """
        started, done, changes = time.monotonic(), 0, Counter[str]()
        try:
            with operation("cde_rag.add", {"fingerprint": short(self._active.last.fingerprint)}) as note:
                replacement = None if documents is None else Replacement(self._store, documents)
                for size, stored, wanted, changed in self._differences(records):
                    leaving = set[str]() if replacement is None else replacement.begin(wanted, stored)

                    def on_write(written: int, done: int = done) -> None:
                        if on_progress is not None:
                            on_progress(Progress(done + written, total, time.monotonic() - started))

                    upsert = partial(self._upsert_chunk, wanted, leaving, at_once)
                    truncated = self._run(upsert, ready, on_write, at_once=at_once)
                    changes += changed + Counter(truncated=len(truncated & wanted.keys()))
                    if replacement is not None:
                        changes["deleted"] += self._delete_all(replacement.end(wanted))
                    done += size
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
        while part := list(islice(names, LARGEST_WRITE)):
            firsts = {row.record.id: row.record for row in self._store.get([f"{name}#0" for name in part])}
            deleted += self._delete_all(sorted(replacement.begin(firsts, {})))
        return deleted

    def plan(self, records: Iterable[Record], documents: Mapping[str, int] | None = None) -> AddPlan:
        """Count the writes of `add`, whose arguments these are; nothing is embedded or written.

        An id in two chunks of the call counts twice, and passages without a parent that get one count as its last ones.
        """
        changes = Counter[str]()
        replacement = None if documents is None else Replacement(self._store, documents)
        for _, stored, wanted, changed in self._differences(records):
            leaving = set[str]() if replacement is None else replacement.begin(wanted, stored)
            plan = plan_upsert(stored, wanted, self._parent_key)
            stale = self._planned(plan, leaving, self._active.last)
            changes += changed + Counter(embedded=len({change.row.digest for change in stale}))
            changes["deleted"] += 0 if replacement is None else len(replacement.end(wanted))
        del changes["repeated"]
        return AddPlan(**changes)

    def _differences(
        self, records: Iterable[Record]
    ) -> Iterator[tuple[int, dict[str, Row], dict[str, Record], Counter[str]]]:
        """Yield the size of each chunk, the stored rows of its ids, and its records and changes by `difference`."""
        done, positions = 0, Positions()
        for chunk in chunks(records, self._parent_key, document_of):
            positions.extend(record.id for record in chunk)
            stored = {row.record.id: row for row in self._store.get(list({record.id for record in chunk}))}
            known = {row_id: row.record for row_id, row in stored.items()}
            yield len(chunk), stored, *difference(known, chunk, done, positions)
            done += len(chunk)

    def _upsert_chunk(
        self,
        records: Mapping[str, Record],
        leaving: AbstractSet[str],
        at_once: bool,  # noqa: FBT001
        made: "_Vectors",
    ) -> list[Stale]:
        """Upsert records, one for each id; a `Step`.

        Args:
            records: Records by id.
            leaving: Ids of stored passages that are deleted afterwards, no longer siblings of any passage.
            at_once: True: write nothing if a vector is missing.
            made: Vectors of the call.
        """
        stored = {row.record.id: row for row in self._store.get(list(records))}
        plan = plan_upsert(stored, records, self._parent_key)
        if at_once and (missing := self._missing(plan, leaving, made)):
            return missing
        # The siblings that moved rows leave come first: after the move nothing names them.
        siblings = self._stale(plan.left, made.embedder, leaving=plan.moved | leaving)
        if missing := self._write([[each] for each in siblings], made):
            return missing
        if plan.metadata:  # before vectors, so that the store knows the place of each passage among its siblings
            self._store.update_metadata(plan.metadata)
        before = [row.record for row in stored.values()]
        gone = [record for record in before if embedded_text(record) != embedded_text(records[record.id])]
        stale = self._stale(plan.joined, made.embedder, arriving=plan.arriving, leaving=leaving)
        made.written = len(records) - sum(each.row.record.id in records for each in stale)
        # Digests are those of all siblings, also of those that are not written yet, so that none of them is embedded
        # again when the others are there, or when an interrupted call is repeated.
        groups = groups_of(stale, {record.id for record in gone})
        ready = list(takewhile(lambda group: all(each.row.digest in made for each in group), groups))
        if ready:
            self._write(ready, made, gone=gone)
            made.written += sum(each.row.record.id in records for group in ready for each in group)
        return [each for group in groups[len(ready) :] for each in group if each.row.digest not in made]

    def _missing(self, plan: UpsertPlan, leaving: AbstractSet[str], made: "_Vectors") -> list[Stale]:
        """Return the rows of a plan that have no vector in `made`."""
        stale = self._planned(plan, leaving, made.embedder)
        return [change for change in stale if change.row.digest not in made]

    def _planned(self, plan: UpsertPlan, leaving: AbstractSet[str], embedder: Embedder) -> list[Stale]:
        """Return the passages whose vectors a plan makes stale, before anything of it is written.

        Passages that move to another parent keep their places in the order of insertion, as they do when it is written.
        (Those that had none count as its last ones.)
        """
        groups = stored_groups(self._store, plan.left | plan.joined, self._parent_key, arriving=plan.arriving)
        return stale_passages(groups, embedder, self._parent_key, arriving=plan.arriving, leaving=leaving)

    def _delete_all(self, ids: Sequence[str]) -> int:
        """Remove records by id, part by part; returns how many there were."""
        leaving = list(dict.fromkeys(ids))
        gone, remaining, removed = set(leaving), iter(leaving), Counter[str]()
        while part := list(islice(remaining, LARGEST_WRITE)):
            self._run(partial(self._delete_chunk, part, gone, removed))
        return removed.total()

    def _delete_chunk(
        self, ids: Sequence[str], leaving: AbstractSet[str], removed: Counter[str], made: "_Vectors"
    ) -> list[Stale]:
        """Delete the rows of one chunk of a call, after their siblings are embedded without them; a `Step`.

        Args:
            ids: Ids of the chunk.
            leaving: All ids that the call deletes, no longer siblings of any passage.
            removed: Gets the number of rows that were deleted.
            made: Vectors of the call.
        """
        if self._parent_key is not None:
            parents = parents_of((row.record for row in self._store.get(ids)), self._parent_key)
            siblings = self._stale(parents, made.embedder, leaving=leaving)
            if missing := self._write([[each] for each in siblings], made):
                return missing
        _forget(made.embedder, lambda: [row.record for row in self._store.get(ids)])
        removed["deleted"] += self._store.delete(ids)
        return []

    def _run(
        self,
        step: "Step",
        ready: ReadyVectors | None = None,
        on_write: Callable[[int], None] | None = None,
        *,
        at_once: bool = False,
    ) -> set[str]:
        """Repeat a step under the lock until no vector is missing; missing ones are embedded outside the lock.

        Args:
            step: Reads and writes.
            ready: Vectors that were made before.
            on_write: Called with the number of rows that the call has written, between two parts.
            at_once: True: embed all missing vectors in one call.

        Returns:
            Ids of the rows that were truncated.
        """
        made = _Vectors(ready)
        tries: int | None = None
        while tries is None or tries > 0:
            with self._lock:
                missing = self._active.use(lambda embedder: step(made.bind(embedder)))
            if not missing:
                return made.truncated
            if on_write is not None and tries is not None:
                on_write(made.written)
            tries = TRIES - 1 + len(missing) // SMALLEST_PART if tries is None else tries - 1
            part, started = missing if at_once else missing[: self._part], time.monotonic()
            made.embed(part)
            self._part = next_part(len(part), time.monotonic() - started)
        with self._lock:  # other calls change the same parents all the time: now they wait
            for _ in range(TRIES):
                missing = self._active.use(lambda embedder: step(made.bind(embedder)))
                if not missing:
                    return made.truncated
                made.embed(missing)
        raise StoreError(
            f"Another process changed the same parents in each of {2 * TRIES} tries. Nothing is lost: make this call "
            "again, or change a parent from one process."
        )

    def _stale(
        self,
        parents: AbstractSet[Parent],
        embedder: Embedder,
        *,
        arriving: Mapping[str, Row] | None = None,
        leaving: AbstractSet[str] = frozenset(),
    ) -> list[Stale]:
        """Return the passages of some parents whose vectors are stale; see `stale_passages`."""
        groups = stored_groups(self._store, parents, self._parent_key)
        return stale_passages(groups, embedder, self._parent_key, arriving=arriving, leaving=leaving)

    def _write(
        self, groups: Sequence[Sequence[Stale]], made: "_Vectors", *, gone: Sequence[Record] = ()
    ) -> list[Stale]:
        """Write stale rows with their new vectors, or return those that have none in `made` and write nothing.

        Args:
            groups: Rows; those of a group are written by one call of the store.
            made: Vectors of the call.
            gone: Records as they are replaced, whose plain vectors are deleted.
        """
        if missing := [each for group in groups for each in group if each.row.digest not in made]:
            return missing
        _forget(made.embedder, lambda: gone)
        parts: list[list[Row]] = []  # from the last one on, which has the records that arrive
        for group in reversed(groups):
            if not parts or len(parts[-1]) + len(group) > LARGEST_WRITE:
                parts.append([])
            parts[-1][:0] = [each.row for each in group]
        for rows in reversed(parts):
            self._store.add(rows, made.vectors(rows), fingerprint=made.embedder.fingerprint)
        return []

    def _warn(self, changes: Counter[str]) -> None:
        if changes["truncated"]:
            length = self._active.last.context.identity.max_length
            embedded = max(changes["added"] + changes["replaced"], changes["truncated"])
            warn_user(
                f"{changes['truncated']} of {embedded} embedded records exceed the model's limit of {length} tokens "
                "and were truncated. Split long documents.",
                TruncationWarning,
            )
        if changes["repeated"]:
            warn_user(
                f"{changes['repeated']} records of this call have the id of an earlier one, or its text without an id, "
                "and other metadata; the later metadata were kept. Give each an id of its own to keep both.",
                CDEWarning,
            )


def _forget(embedder: Embedder, records: Callable[[], Sequence[Record]]) -> None:
    """Delete the plain vectors of records that go, before these do, so that a crash leaves no trace of them."""
    from cde_rag.embedders.contextual import contextual

    own = contextual(unwrapped(embedder))
    if own is not None and own.vectors is not None:
        own.forget([embedded_text(record) for record in records()])


class _Vectors:
    """Vectors that were made for one call, by digest, in the space of one embedder.

    Attributes:
        truncated: Ids of rows that exceed the model's token limit.
        written: Number of the call's rows that are stored with their vectors; re-embedded siblings do not count.
    """

    def __init__(self, ready: ReadyVectors | None) -> None:
        self.truncated: set[str] = set()
        self.written = 0
        self._ready = ready
        self._embedder: Embedder | None = None
        self._made: dict[str, Float32[np.ndarray, " dim"]] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._made

    def bind(self, embedder: Embedder) -> "_Vectors":
        """Return this cache for an embedder, emptied if its vectors are of another space."""
        if self._embedder is None or self._embedder.fingerprint != embedder.fingerprint:
            self._made.clear()
        self._embedder = embedder
        return self

    @property
    def embedder(self) -> Embedder:
        """Embedder of the space."""
        assert self._embedder is not None, "bind(embedder) comes first"
        return self._embedder

    def vectors(self, rows: Sequence[Row]) -> Float32[np.ndarray, "rows dim"]:
        """Return the vectors of rows, by their digests."""
        return np.stack([self._made[row.digest] for row in rows])

    def embed(self, stale: Sequence[Stale]) -> None:
        """Embed rows; those of one digest have one vector."""
        once = list({each.row.digest: each for each in stale}.values())
        cut: set[str] = set()
        if self._ready is not None and self._ready.fingerprint == self.embedder.fingerprint:
            found = {each.row.digest: self._ready.vectors.get(each.row.digest) for each in once}
            self._made.update((digest, vector[0]) for digest, vector in found.items() if vector is not None)
            cut = {digest for digest, vector in found.items() if vector is not None and vector[1]}
            once = [each for each in once if each.row.digest not in self._made]
        if once:
            texts, siblings = [embedded_text(each.row.record) for each in once], [each.siblings for each in once]
            embedded = self.embedder.embed_passages(texts, siblings)
            self._made.update(zip((each.row.digest for each in once), embedded.vectors, strict=True))
            cut |= {each.row.digest for each, truncated in zip(once, embedded.truncated, strict=True) if truncated}
        self.truncated.update(each.row.record.id for each in stale if each.row.digest in cut)


Step: TypeAlias = Callable[[_Vectors], list[Stale]]
"""Reads the store, writes the rows whose vectors it has, and returns those that it lacks."""
