"""Vectors of records that wait for theirs: filling, and vectors that a search needs."""

import logging
import math
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag.embedders.active import ActiveEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, StoreError, TruncationWarning, counted, warn_user
from cde_rag.indexing.sibling_passages import Passage, with_siblings
from cde_rag.indexing.upsert import SMALLEST_PART, Progress, next_part
from cde_rag.models.model import Embedded
from cde_rag.models.plain.fixed_texts import PROBES
from cde_rag.models.refusals import read_in_halves
from cde_rag.models.token_batches import KEPT
from cde_rag.records import Row, embedded_text, parent_of
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreCalls

_ROWS_AT_ONCE: Final = 1024  # that are read with their siblings in one session
_PASSES: Final = 8  # over records that change while they are embedded
_KEPT: Final = 4096  # vectors of a search that are kept where they cannot be written: 6 MB of 384 dimensions
_FIRST: Final = 4  # texts of a search that are embedded before the speed is known
_MOST: Final = 64  # texts of a search between two looks at the clock; the more, the more of them share siblings
_LAST: Final = 8  # texts that may fill the rest of the time: the clock may have run faster than was measured
_SHORTEST: Final = 100  # characters that a text costs at least
_READING: Final = 0.1  # of a search's time, in which the records are read that it may make vectors of
_OF_TOKEN: Final = 5  # characters, about: no more of a text than its tokens is read, unless in windows

_log = logging.getLogger(__name__)
AnyRow = TypeVar("AnyRow", bound=tuple[Row, Passage])


@dataclass(frozen=True, slots=True)
class EmbedReport:
    """Result of `embed_pending`.

    Attributes:
        embedded: Number of vectors that were made and written.
        truncated: Number of records that exceeded the model's token limit.
        pending: Number of records that wait still.
    """

    embedded: int
    truncated: int
    pending: int


class Waiting(NamedTuple):
    """A record that waits for its vector, as it would be embedded in one state of the store."""

    row: Row
    passage: Passage


class _AtOnce(NamedTuple):
    """Records that a search embeds at once.

    Attributes:
        rows: The records.
        work: Characters that are read for them: their own, and those of siblings that were not read before. Seconds for
            a text say nothing about the next page, whose first passage takes all its siblings with it.
        looked_at: Number of the records that these are the first ones of, with those that are passed over.
    """

    rows: list[Waiting]
    work: int
    looked_at: int


def waiting_of(state: StoreCalls, rows: Sequence[Row], parent_key: str | None, embedder: Embedder) -> list[Waiting]:
    """Return those rows that wait for their vector, with the siblings that they have now."""
    waiting = [row for row in rows if not row.digest]
    return list(map(Waiting, waiting, with_siblings(state, waiting, parent_key, embedder)))


def embed_readable(rows: Sequence[AnyRow], embedder: Embedder) -> tuple[list[AnyRow], Embedded, dict[str, Exception]]:
    """Embed rows, as `read_in_halves`; does not read the store.

    Args:
        rows: Rows with their siblings.
        embedder: Embedder of the vectors.

    Returns:
        The rows that are embedded, their vectors, and the errors of the others by id.

    Raises:
        Exception: That of the model, where it embeds nothing else either.
    """

    def embed(some: Sequence[AnyRow]) -> Embedded:
        texts = [embedded_text(row.record) for row, _ in some]
        return embedder.embed_passages(texts, [passage.siblings for _, passage in some])

    read, made, faults = read_in_halves(rows, embed, probe=lambda: embedder.embed_passages([PROBES[0]], [()]))
    vectors = np.concatenate([np.empty((0, embedder.dim), np.float32), *(part.vectors for part in made)])
    truncated = np.concatenate([np.empty(0, np.bool_), *(part.truncated for part in made)])
    return read, Embedded(vectors, truncated), {row.record.id: error for (row, _), error in faults}


def unread_error(faults: Mapping[str, Exception], *, rest: str) -> CorpusError:
    """Return the error for records that the model refuses.

    Args:
        faults: Their errors by id, one or more.
        rest: Sentences about all other records.
    """
    id_, reason = next(iter(faults.items()))
    return CorpusError(
        f"Expected texts that the model reads, found {counted(len(faults), 'record')} without vectors still, such as "
        f"{id_!r:.80}: {reason} {rest} Change these records, or delete them."
    )


def unchanged(
    state: StoreCalls, read: Sequence[tuple[Row, Passage]], parent_key: str | None, embedder: Embedder
) -> list[int]:
    """Return the places of those rows that are embedded now as they were when they were read.

    A row that waits has no digest that tells whether it or a sibling changed since.
    """
    rows = {row.record.id: row for row in state.get([row.record.id for row, _ in read])}
    now = dict(zip(rows, with_siblings(state, list(rows.values()), parent_key, embedder), strict=True))
    return [
        place
        for place, (row, passage) in enumerate(read)
        if (there := now.get(row.record.id)) is not None
        and there.digest == passage.digest
        and rows[row.record.id].digest == row.digest
    ]


def write(
    store: Store,
    waiting: Sequence[Waiting],
    vectors: Float32[np.ndarray, "rows dim"],
    parent_key: str | None,
    embedder: Embedder,
    *,
    wait: bool = True,
) -> int:
    """Write the vectors of records that still wait, with the same siblings; return their number.

    Args:
        store: Holds a collection.
        waiting: The records, as they were embedded.
        vectors: One per record.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
        embedder: Embedder of the vectors.
        wait: As of `Store.write`.

    Raises:
        ContextMismatchError: Another generation is active.
        StoreError: The store cannot be written.
    """

    def write_same(state: StoreCalls) -> int:
        same = unchanged(state, waiting, parent_key, embedder)
        rows, digests = [waiting[place].row for place in same], [waiting[place].passage.digest for place in same]
        return state.add_pending(rows, digests, vectors[same], fingerprint=embedder.fingerprint)

    return store.write(write_same, wait=wait)


def fill(
    store: Store,
    active: ActiveEmbedder,
    parent_key: str | None,
    limit: int | None,
    on_progress: Callable[[Progress], None] | None,
) -> EmbedReport:
    """Embed records that wait for their vectors, in order of insertion.

    Rows are read with their siblings in one session for many parts, and each part of some seconds is written in one.
    Those that another call changed between the two are skipped, and read again. Those that the model cannot read wait
    still when all others have their vectors.

    Args:
        store: Holds a collection.
        active: Its embedder.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
        limit: Maximum number of vectors; None for all.
        on_progress: Called after each write, every few seconds, with the number of records that have vectors.

    Raises:
        ContextMismatchError: The active Context was made by a model that cannot be found under its name.
        CorpusError: Records that the model cannot read, with an id.
        StoreError: The store cannot be written.
    """
    started, done, passes, size, after, truncated = time.monotonic(), 0, 0, SMALLEST_PART, None, 0
    faults = dict[str, Exception]()
    total, lacking = store.read(lambda state: (state.count(), state.count_pending()))
    with operation("cde_rag.embed_pending", {"fingerprint": short(active.last.fingerprint)}) as note:
        while done != limit and passes < _PASSES:
            embedder = active.last
            with active.following(embedder):
                some = store.read(partial(_next, after=after, parent_key=parent_key, embedder=embedder))
                if not some and after is None:
                    break
                if not some:
                    after, passes = None, passes + 1
                while some and done != limit:
                    began, part = time.monotonic(), some[: size if limit is None else min(size, limit - done)]
                    tried = [each for each in part if each.row.record.id not in faults]
                    if tried:
                        read, made, unread = embed_readable(tried, embedder)
                        faults |= unread
                        truncated += int(made.truncated.sum())
                        done += write(store, read, made.vectors, parent_key, embedder) if read else 0
                    some, after = some[len(part) :], part[-1].row
                    size = next_part(len(part), time.monotonic() - began)
                    note({"documents": done})
                    if on_progress is not None:
                        before = total - lacking
                        reached = max(total, before + done)
                        on_progress(Progress(before + done, reached, time.monotonic() - started, before))
    if store.manifest().may_wait:
        store.settle()
    if truncated:
        warn_user(
            f"{truncated} of {done} embedded records exceed the model's limit of "
            f"{active.last.context.identity.limit} and were truncated. Split long documents.",
            TruncationWarning,
        )
    if faults:
        raise unread_error(faults, rest="The vectors of all others are made.") from next(iter(faults.values()))
    return EmbedReport(done, truncated, store.count_pending())


def _next(state: StoreCalls, after: Row | None, parent_key: str | None, embedder: Embedder) -> list[Waiting]:
    """Return some records that wait, after a row, in one state of the store."""
    return waiting_of(state, state.pending(limit=_ROWS_AT_ONCE, after=after), parent_key, embedder)


class OnDemandVectors:
    """Vectors of records that a search looks at and that wait for theirs. Thread-safe.

    They are written to the store if that needs no waiting and is allowed, and kept in memory in any case.

    Args:
        store: Holds a collection.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
    """

    def __init__(self, store: Store, parent_key: str | None) -> None:
        self._store = store
        self._parent_key = parent_key
        self._kept = OrderedDict[  # by fingerprint and digest; None of texts that the model cannot read
            tuple[str, str], Float32[np.ndarray, " dim"] | None
        ]()
        self._lock = threading.Lock()
        self._seconds_read: float | None = None  # for a record that waits, with its siblings
        self._seconds_each: float | None = None  # for a character that is read
        self._siblings = OrderedDict[int, None]()  # hashes of the last ones, which models keep

    def known(
        self, state: StoreCalls, ids: Sequence[str], embedder: Embedder
    ) -> tuple[dict[str, Float32[np.ndarray, " dim"]], list[Waiting]]:
        """Return the vectors that are kept of those records that wait, by id, and the records that have none.

        Args:
            state: State of the store.
            ids: Ids of records.
            embedder: Embedder of the active generation.
        """
        known, missing = dict[str, Float32[np.ndarray, " dim"]](), list[Waiting]()
        started = time.perf_counter()
        waiting = waiting_of(state, state.get(ids), self._parent_key, embedder)
        if self._seconds_read is None or 2 * len(waiting) >= len(ids):  # those that do not wait take little
            self._seconds_read = (time.perf_counter() - started) / max(1, len(ids))
        for each in waiting:
            with self._lock:
                made = (key := (embedder.fingerprint, each.passage.digest)) in self._kept
                vector = self._kept.get(key)
            if vector is not None:
                known[each.row.record.id] = vector
            elif not made:
                missing.append(each)
        return known, missing

    def reach(self, budget_s: float) -> int | None:
        """Return the number of records that `known` reads in a tenth of this time; None before its first one."""
        each = self._seconds_read
        return None if each is None else int(_READING * budget_s / max(each, 1e-9))

    def make(self, missing: Sequence[Waiting], embedder: Embedder, budget_s: float) -> int:
        """Embed records until the time is over or the model fails; return their number.

        Args:
            missing: Records that `known` returned, best first. Those with one parent are embedded together, since they
                share siblings, which cost more than they do themselves; parents come in the order of their best one.
            embedder: Embedder of the active generation.
            budget_s: Seconds; what begins in them may end a little later.
        """
        end, done, left = time.monotonic() + budget_s, 0, self._by_parent(missing)
        read, vectors = list[Waiting](), list[Float32[np.ndarray, "some dim"]]()
        while (part := self._part(left, end - time.monotonic(), embedder)).rows:
            started = time.monotonic()
            try:
                some, made, unread = embed_readable(part.rows, embedder)
            except Exception as error:  # noqa: BLE001 (also of a user's function: the answer comes without them)
                _log.warning("Records wait for their vectors, since a search could not make them: %s", error)
                break
            self._seconds_each = (time.monotonic() - started) / part.work
            with self._lock:
                for each in part.rows:
                    if each.row.record.id in unread:
                        self._kept[embedder.fingerprint, each.passage.digest] = None
                    for sibling in map(hash, each.passage.siblings):
                        self._siblings[sibling] = None
                        self._siblings.move_to_end(sibling)
                while len(self._siblings) > KEPT:
                    self._siblings.popitem(last=False)
            read += some
            vectors.append(made.vectors)
            left, done = left[part.looked_at :], done + len(part.rows)
        if not done and self._seconds_each is not None:
            self._seconds_each /= 2  # it may have been measured at a slow start: a later search tries again
        if read:
            self._keep(read, np.concatenate(vectors), embedder)
        return done

    def _by_parent(self, missing: Sequence[Waiting]) -> list[Waiting]:
        groups = dict[object, list[Waiting]]()
        for number, each in enumerate(missing):
            parent = parent_of(each.row.record, self._parent_key) if each.passage.siblings else None
            groups.setdefault((parent, None) if parent is not None else number, []).append(each)
        return [each for group in groups.values() for each in group]

    def _part(self, left: Sequence[Waiting], seconds: float, embedder: Embedder) -> "_AtOnce":
        """Return the records to embed next, none if there is no time for one.

        Those that take more time by themselves than there is are passed over: others may take less.
        """
        room = math.inf if (each := self._seconds_each) is None else seconds / max(each, 1e-9)
        identity = embedder.context.identity
        most = None if identity.windows or not identity.max_length else _OF_TOKEN * identity.max_length
        with self._lock:
            known = set(self._siblings)
        rows, reached, places = list[Waiting](), list[int](), list[int]()
        for place, one in enumerate(left if seconds > 0 else ()):
            new = {hash(text): text for text in one.passage.siblings if hash(text) not in known}
            texts = (embedded_text(one.row.record), *new.values())
            work = sum(max(_SHORTEST, len(text[:most])) for text in texts)
            if work > room:
                continue
            if len(rows) == (_FIRST if each is None else _MOST) or sum(reached[-1:], work) > room:
                break
            known.update(new)
            rows.append(one)
            reached.append(sum(reached[-1:], work))
            places.append(place)
        size = len(rows) if each is None or len(rows) <= _LAST else max(1, bisect_right(reached, room / 2))
        return _AtOnce(rows[:size], sum(reached[size - 1 : size]), places[size - 1] + 1 if size else 0)

    def _keep(self, made: Sequence[Waiting], vectors: Float32[np.ndarray, "rows dim"], embedder: Embedder) -> None:
        with self._lock:
            for each, vector in zip(made, vectors, strict=True):
                self._kept[embedder.fingerprint, each.passage.digest] = vector
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        try:
            write(self._store, made, vectors, self._parent_key, embedder, wait=False)
            if not self._store.count_pending():
                self._store.write(lambda state: state.settle(), wait=False)
        except StoreError as error:  # another writer is at work, the disk is full, or this process may not write
            _log.debug("Vectors of a search stay in memory: %s", error)
