"""Calls of a store, and one state of it: all checks of arguments and all rules of generations, over a session.

Long because each call of a store stands here with its checks, and nowhere else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, TypeVar

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_ids, check_list
from cde_rag.errors import StoreError
from cde_rag.records import Hit, Hits, Row, embedded_text, encode
from cde_rag.stores.base import Completion, ProcessBound
from cde_rag.stores.checks import check_k, check_once, check_records, check_rows, check_unit, plain_settings
from cde_rag.stores.engine import START, Found, Placed, Session, Version
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filters import parse
from cde_rag.stores.manifests import PENDING, Generation, LeasedGenerations, StoreManifest, check_space
from cde_rag.stores.text_analysis import updated

_FILLED_AT_ONCE: Final = 1000  # records that `last` of `activate` gets
Result = TypeVar("Result")


class StoreCalls(ProcessBound):
    """Calls of a store, and of one state of it. Every call is atomic.

    All vectors are float32, `(rows, dim)`, unit norm. Every call that reads or writes vectors of the active generation
    names the fingerprint of the space it means and raises `ContextMismatchError` where that generation has another.
    """

    _leased: LeasedGenerations

    def _read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:
        raise NotImplementedError

    def _write(self, work: Callable[[Session], Result]) -> Result:
        raise NotImplementedError

    def manifest(self) -> StoreManifest:
        """Return the store's manifest.

        Raises:
            StoreError: The store does not exist.
            StoreFormatError: Damaged, or of a newer format.
        """

        def read(session: Session) -> StoreManifest:
            manifest = session.manifest
            return StoreManifest(manifest.dim, manifest.serving.fingerprint, manifest.active, session.settings)

        return self._read(read)

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context, as given (default: the active generation's).

        Raises:
            StoreError: There is no such generation.
        """

        def read(session: Session) -> bytes:
            manifest = session.manifest
            number = manifest.active if generation is None else self._own(session, generation, active=True)
            return session.context(number)

        return self._read(read)

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"] | None, *, fingerprint: str) -> None:
        """Insert rows, or replace rows of the same id (which keep their place in the order).

        In other generations a record keeps its vector if that was made from the same digest, and loses it otherwise.
        Without vectors, None, the rows wait for theirs: they have the digest "" until `add_pending` or `add` gives them
        one.

        Raises:
            CorpusError: A record cannot be stored: an id empty or twice, a lone surrogate, metadata that is not JSON.
            ValueError: `vectors` are not float32 of norm 1, one for each row.
        """
        records = list(check_records(row.record for row in rows))
        digests = [row.digest for row in rows]

        def write(session: Session) -> None:
            manifest = session.manifest
            check_space(manifest.serving, fingerprint)
            if vectors is not None:
                check_unit(vectors, len(rows), manifest.dim)
            elif PENDING not in (settings := session.settings):
                session.put_settings({**settings, PENDING: True})  # first: a server has no transactions
            session.put(records, digests, vectors)

        self._write(write)

    def add_pending(
        self, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str
    ) -> int:
        """Write vectors of rows that wait for theirs; return the number of rows that were not skipped.

        Args:
            rows: Rows as they were read. Those deleted since, with another title or text, or with a vector by now, are
                skipped.
            digests: Digests of the embedded texts.
            vectors: One per row.
            fingerprint: Fingerprint of the active generation's space.

        Raises:
            CorpusError: An id is repeated.
        """
        check_once(rows)

        def write(session: Session) -> int:
            manifest = session.manifest
            check_space(manifest.serving, fingerprint)
            waiting = [place for place, row in enumerate(rows) if not row.digest]
            return _put_same(
                session,
                manifest.active,
                [rows[place] for place in waiting],
                [digests[place] for place in waiting],
                vectors[waiting],
            )

        return self._write(write)

    def pending(self, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return up to `limit` rows that wait for their vector, in order of insertion; arguments as of `lacking`."""
        limit, last = check_rows(limit, "limit"), None if after is None else after.record.id

        def read(session: Session) -> list[Row]:
            return session.lacking(session.manifest.active, after=last, limit=limit) if _may_wait(session) else []

        return self._read(read)

    def count_pending(self) -> int:
        """Count the rows that wait for their vector."""
        return self._read(pending_in)

    def settle(self) -> bool:
        """Note that no row waits for its vector, if that is so; return True if none does."""

        def write(session: Session) -> bool:
            if not _may_wait(session):
                return True
            if session.lacking(session.manifest.active, after=None, limit=1):
                return False
            session.put_settings({name: value for name, value in session.settings.items() if name != PENDING})
            return True

        return self._write(write)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of the given ids; vectors and digests stay. An unknown id raises `KeyError`."""
        check_ids(metadata, call="update_metadata")
        encoded = {id_: encode(new, f"Record {id_!a:.80}: its metadata") for id_, new in metadata.items()}
        self._write(lambda session: session.put_metadata(encoded))

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection; the others stay.

        Raises:
            CorpusError: `changes` is no JSON object.
            ValueError: It names the analyzer, which only `index_texts` changes.
        """
        new = plain_settings(changes)
        self._write(lambda session: session.put_settings(updated(session.settings, new)))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete rows from every generation; return their number. Unknown ids are skipped."""
        ids = check_ids(ids, call="delete")
        return self._write(lambda session: session.delete(ids))

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, in the order of the ids."""
        ids = check_ids(ids, call="get")
        rows = self._read(lambda session: session.get(ids))
        return [rows[id_] for id_ in ids if id_ in rows]

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Count the rows that match the filter; without one, all rows."""
        condition = _parsed(where)
        return self._read(lambda session: session.count(condition))

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Yield all matching rows, in order of insertion; they are read lazily, `page` at a time.

        The store may be written to during the scan, by the caller too: a row that exists all the time is returned once.
        Rows deleted and added again during the scan may be returned twice or not at all. Rows appended after the scan
        started are not returned.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            ValueError: `page` is below 1.
        """
        page = check_rows(page, "page")
        return self._scrolled(_parsed(where), page)

    def _scrolled(self, where: Filter | None, page: int) -> Iterator[Row]:
        def first(session: Session) -> tuple[int | None, list[Placed]]:
            found = session.scan(where, after=START, limit=page)
            return session.last_place() if len(found) == page else None, found

        last, found = self._read(first)
        while True:
            yield from (row for place, row in found if last is None or place[0] <= last)
            if last is None or len(found) < page or found[-1].place[0] > last:
                return
            after = found[-1].place
            found = self._read(lambda session: session.scan(where, after=after, limit=page))  # noqa: B023  # called at once

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return `count` rows spread over the order of insertion, or all rows if there are fewer.

        No more than `count` rows are read; if many were deleted, fewer may be returned.

        Args:
            count: Maximum number of rows.
            seed: Random seed to draw the position of each row; by default rows are from a few blocks, which is faster.

        Raises:
            ValueError: `count` is below 1.
        """
        count = check_rows(count, "count")
        return self._read(lambda session: session.sample(count, seed))

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        """Return min(k, matching rows) hits for each query, best first; equal scores in order of insertion.

        Rows that wait for their vector are not found; the `Hits` say how many there are.

        Args:
            queries: Unit vectors.
            k: Maximum number of hits.
            fingerprint: Fingerprint of the generation's space.
            where: A filter over the metadata.
            generation: Number of the generation (default: the active one); rows without a vector in it are not found.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            ValueError: `k` is below 1, or `queries` are not float32 of norm 1.
        """
        condition, k = _parsed(where), check_k(k)

        def read(session: Session) -> list[list[Hit]]:
            found = nearest(session, queries, k, condition, fingerprint, generation, complete=True)
            pending = pending_in(session) if generation is None else 0
            return [Hits(hits_of(session, some), pending) for some in found]

        return self._read(read, once=True)

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Return up to k matching records per query that share a term with it, best first by BM25.

        The analyzer that the settings name makes the terms of title and text; see `cde_rag.stores.text_analysis`. A
        term that is repeated in a query counts repeatedly; each engine documents its BM25. Equal scores are in order of
        insertion. A filter changes no score. Text search is independent of generations.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            TextIndexError: The store was made without a text index; `index_texts` adds it.
            ValueError: `k` is below 1.
        """
        check_list(queries, call="search_text", what="queries")
        condition, k = _parsed(where), check_k(k)

        def read(session: Session) -> list[list[Hit]]:
            return [hits_of(session, some) for some in session.matching(queries, k, condition, complete=True)]

        return self._read(read, once=True)

    def index_texts(self) -> None:
        """Rebuild the text index of all records with the newest analyzer, which the settings name from then on.

        Raises:
            StoreError: This store cannot have a text index here.
        """
        self._write(lambda session: session.index_texts())

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of the given ids; unknown ids, and those without a vector, raise `KeyError`."""
        ids = check_ids(ids, call="vectors")

        def read(session: Session) -> Float32[np.ndarray, "ids dim"]:
            manifest = session.manifest
            check_space(manifest.serving, fingerprint)
            known = session.vectors(manifest.active, ids)
            if missing := [id_ for id_ in ids if id_ not in known]:
                others = f"found {len(missing)} others, such as {missing[0]!r:.80}"
                raise KeyError(f"Expected ids of stored records, {others}.")
            return np.array([known[id_] for id_ in ids], np.float32).reshape(-1, manifest.dim)

        return self._read(read)

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first."""

        def read(session: Session) -> list[Generation]:
            manifest = session.manifest
            self._leased.see(manifest.generations)
            return [
                Generation(
                    state.number,
                    state.fingerprint,
                    state.number == manifest.active,
                    session.count_vectors(state.number),
                )
                for state in manifest.generations
            ]

        return self._read(read)

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Create another, empty, inactive generation; return its number.

        Raises:
            StoreError: There is a generation of that fingerprint.
        """

        def write(session: Session) -> int:
            self._leased.check_run(session.run)
            for state in session.manifest.generations:
                if state.fingerprint == fingerprint:
                    hint = "One of the same space needs no other vectors: drop it, or activate it."
                    raise StoreError(f"Expected a new fingerprint, found that of generation {state.number}. {hint}")
            number = session.begin(fingerprint, context)
            self._leased.check(session.manifest.generation(number))
            return number

        return self._write(write)

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return up to `limit` rows that have no vector in an inactive generation, in order of insertion.

        Args:
            generation: Its number.
            limit: Maximum number of rows.
            after: The last row of the previous call: rows inserted up to that one are not read again. If it was deleted
                meanwhile, the call starts with the first row.

        Raises:
            StoreError: The generation is active, or does not exist.
            ValueError: `limit` is below 1.
        """
        limit, last = check_rows(limit, "limit"), None if after is None else after.record.id
        return self._read(lambda session: session.lacking(self._own(session, generation), after=last, limit=limit))

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation.

        Args:
            generation: Its number.
            rows: Rows as they were read; those deleted since, or with another digest, are skipped.
            digests: Digests of the texts embedded for this generation.
            vectors: One per row.

        Returns:
            Number of rows that were not skipped.

        Raises:
            CorpusError: An id is repeated.
            StoreError: The generation is active, or does not exist.
        """
        check_once(rows)
        return self._write(lambda session: self._fill(session, generation, rows, digests, vectors))

    def activate(
        self,
        generation: int,
        *,
        last: Completion | None = None,
        waiting: AbstractSet[str] | Literal["all"] = frozenset(),
    ) -> int:
        """Activate a generation.

        Args:
            generation: Its number.
            last: Called while other writers wait, to embed any rows still missing a vector; readers are not blocked.
                Without it there must be none. (On a Qdrant server other processes are not locked out.)
            waiting: Ids of rows that have no vector in the active generation either, and wait for one in this; "all"
                such rows.

        Returns:
            Number of vectors that `last` made and that were written.

        Raises:
            StoreError: A vector of some row is missing, or the generation is active or does not exist.
        """

        def write(session: Session) -> int:
            self._own(session, generation)
            made = 0
            if last is not None:
                for rows in _unfilled(session, generation, waiting):
                    made += self._fill(session, generation, rows, *last(rows))
            missing = next(_unfilled(session, generation, waiting), None)  # counts may hide one behind a stray vector
            if missing is not None:
                count, there = session.count(None), session.count_vectors(generation)
                hint = f"Record {missing[0].record.id!a:.80} lacks one. Add the others with add_to_generation."
                raise StoreError(f"Expected a vector for each of {count} records, found {there}. {hint}")
            session.activate(generation)
            return made

        return self._write(write)

    def drop(self, generation: int) -> None:
        """Remove a generation and its vectors.

        Raises:
            StoreError: It is active, or does not exist.
        """
        self._write(lambda session: session.drop(self._own(session, generation)))

    def _own(self, session: Session, generation: int, *, active: bool = False) -> int:
        """Return the number of a generation, unless this run has lost its lease, or saw another one of that number."""
        self._leased.check_run(session.run)
        manifest = session.manifest
        self._leased.check(manifest.generation(generation) if active else manifest.inactive(generation))
        return generation

    def _fill(
        self,
        session: Session,
        generation: int,
        rows: Sequence[Row],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Give rows that are as they were read their vectors in an inactive generation; return their number."""
        return _put_same(session, self._own(session, generation), rows, digests, vectors)


class StoreState(StoreCalls):
    """One state of a store, inside `Store.read` or `Store.write`; after it every call raises `StoreError`.

    Args:
        session: Session of the engine.
        leased: Generations that the store's run has seen.
    """

    def __init__(self, session: Session, leased: LeasedGenerations) -> None:
        self._opened: Session | None = session
        self._leased = leased

    def end(self) -> None:
        """Refuse further calls; the session's connection may be in use elsewhere, in another state of the store."""
        self._opened = None

    @property
    def _session(self) -> Session:
        if self._opened is None:
            hint = "Read its results inside, for instance as list(state.scroll())."
            raise StoreError(f"This state of the store ended with the read or write that it was given to. {hint}")
        return self._opened

    def _read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:  # noqa: ARG002
        return work(self._session)

    def _write(self, work: Callable[[Session], Result]) -> Result:
        return work(self._session)

    def nearest(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
    ) -> list[list[Found]]:
        """Search the active generation like `search`, without reading the records; see `hits`."""
        condition = _parsed(where)
        return nearest(self._session, queries, check_k(k), condition, fingerprint, None, complete=False)

    def matching(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Found]]:
        """Search like `search_text`, without reading the records; see `hits`."""
        condition = _parsed(where)
        return self._session.matching(queries, check_k(k), condition, complete=False)

    def hits(self, found: Sequence[Found]) -> list[Hit]:
        """Return results of `nearest` and `matching` as hits."""
        return hits_of(self._session, found)


def _put_same(
    session: Session,
    generation: int,
    rows: Sequence[Row],
    digests: Sequence[str],
    vectors: Float32[np.ndarray, "rows dim"],
) -> int:
    """Write vectors of those rows that are as they were read; return their number."""
    check_unit(vectors, len(rows), session.manifest.dim)
    now, same, versions = session.versions([row.record.id for row in rows]), list[int](), list[Version]()
    ids = [row.record.id for row in rows if not row.digest]  # which no digest tells from one another
    waiting = session.get(ids) if ids else {}
    for place, row in enumerate(rows):
        version, there = now.get(row.record.id), waiting.get(row.record.id, row)
        text = embedded_text(there.record) == embedded_text(row.record)
        if version is not None and version.digest == row.digest and text:
            same.append(place)
            versions.append(version)
    return session.put_vectors(generation, versions, [digests[place] for place in same], vectors[same])


def _unfilled(session: Session, generation: int, waiting: AbstractSet[str] | Literal["all"]) -> Iterator[list[Row]]:
    """Yield the rows that an inactive generation lacks, but for some ids, or all, that the active one lacks, too."""
    if waiting == "all" and not session.count_vectors(session.manifest.active):
        return  # as of a folder that was just read: no row has to be looked at
    after = None
    while rows := session.lacking(generation, after=after, limit=_FILLED_AT_ONCE):
        if due := [row for row in rows if row.digest or (waiting != "all" and row.record.id not in waiting)]:
            yield due
        after = rows[-1].record.id


def _may_wait(session: Session) -> bool:
    return PENDING in session.settings


def pending_in(session: Session) -> int:
    """Count the rows that wait for their vector."""
    if not _may_wait(session):
        return 0
    return session.count(None) - session.count_vectors(session.manifest.active)


def _parsed(where: Mapping[str, Any] | None) -> Filter | None:
    return None if where is None else parse(where)


def nearest(
    session: Session,
    queries: Float32[np.ndarray, "queries dim"],
    k: int,
    where: Filter | None,
    fingerprint: str,
    generation: int | None,
    *,
    complete: bool,
) -> list[list[Found]]:
    """Find the k best records for each query in a generation of a fingerprint (default: the active one)."""
    manifest = session.manifest
    state = manifest.serving if generation is None else manifest.generation(generation)
    check_space(state, fingerprint)
    check_unit(queries, len(queries), manifest.dim)
    return session.nearest(state.number, queries, k, where, complete=complete)


def hits_of(session: Session, found: Sequence[Found]) -> list[Hit]:
    """Return the results of a search as hits; reads the records that it did not read."""
    unread = [key for key, _, record in found if record is None]
    read = iter(session.found(unread) if unread else [])
    records = [next(read) if record is None else record for _, _, record in found]
    return [
        Hit(record.id, score, record.title, record.text, record.metadata)
        for record, (_, score, _) in zip(records, found, strict=True)
    ]
