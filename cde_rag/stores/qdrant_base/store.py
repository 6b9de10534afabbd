"""Common base class of the stores of points."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_ids, check_list
from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.stores.base import SAMPLE_BLOCKS, Completion, Hit, Row
from cde_rag.stores.call_by_call import CallByCall
from cde_rag.stores.checks import check_k, check_once, check_records, check_rows, check_unit, encode, sample_places
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filters import parse
from cde_rag.stores.manifests import Generation, LeasedGenerations, StoreManifest, check_space
from cde_rag.stores.qdrant_base import point_writes
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.locks import ReadWriteLock
from cde_rag.stores.qdrant_base.payload import StoredPoint, checked_vector, place_of, read
from cde_rag.stores.qdrant_base.points import Point, Points
from cde_rag.stores.qdrant_base.points_manifest import PointsGeneration, PointsManifest
from cde_rag.stores.qdrant_base.search import search
from cde_rag.stores.qdrant_base.selection import no
from cde_rag.stores.qdrant_base.sparse_search import search_text

_TRIES: Final = 8  # to read what another process moves meanwhile
Result = TypeVar("Result")


class PointStore(CallByCall, ABC):
    """Records, vectors and contexts as points.

    Args:
        lock: Lock of all objects of this process that use the store.
        exact: Search exactly, not by HNSW.
    """

    def __init__(self, lock: ReadWriteLock, *, exact: bool) -> None:
        self._lock = lock
        self._exact = exact
        self._leased = LeasedGenerations()

    @property
    @abstractmethod
    def _points(self) -> Points:
        """The points."""

    @abstractmethod
    def _load(self) -> PointsManifest:
        """Read the manifest.

        Raises:
            StoreError: There is no store.
            StoreFormatError: Damaged, or of a newer format.
        """

    @abstractmethod
    def _check_written(self, manifest: PointsManifest, ids: Sequence[str]) -> None:
        """Ensure that a concurrent switch does not lose rows just written, and that they have the collection's terms.

        Args:
            manifest: The manifest by which they were written, to its active generation.
            ids: Ids of the rows.

        Raises:
            ContextMismatchError: Another generation is active now: the rows must be written again, to that one.
        """

    def _load_own(self) -> PointsManifest:
        """Read the manifest, for a call of the run that has the lease."""
        return self._load()

    @abstractmethod
    def _activate(self, generation: int) -> None:
        """Activate a generation that has a vector for every record, in one write of the manifest."""

    @abstractmethod
    def _context(self, state: PointsGeneration) -> bytes:
        """Return the bytes of a generation's Context."""

    def manifest(self) -> StoreManifest:
        """Return the store's manifest."""
        return self._load().public()

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context."""
        with self._lock.reading(), self._owned():
            manifest = self._load()
            if generation is None:
                return self._context(manifest.serving)
            return self._context(self._leased.check(manifest.generation(generation)))

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Upsert rows as points with their vectors."""
        records = list(check_records(row.record for row in rows))
        with self._lock.writing(), self._in(fingerprint) as manifest:
            check_unit(vectors, len(rows), manifest.dim)
            manifest.check_native(self._points.place)
            point_writes.put_rows(self._points, manifest, records, [row.digest for row in rows], vectors)
            self._check_written(manifest, [row.record.id for row in rows])

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata in the payloads of the given ids."""
        check_ids(metadata, call="update_metadata")
        encoded = {id_: encode(new, f"Record {id_!a:.80}: its metadata") for id_, new in metadata.items()}
        with self._lock.writing():
            self._load().check_native(self._points.place)
            point_writes.put_metadata(self._points, encoded)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete the points of the given ids; return their number."""
        ids = check_ids(ids, call="delete")
        with self._lock.writing():
            self._load()  # there has to be a store
            found = {str(point.id) for point in point_writes.records_of(self._points, ids) if point is not None}
            self._points.delete(sorted(found))
        return len(found)

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, verified by their checksums."""
        ids = check_ids(ids, call="get")

        def read(manifest: PointsManifest) -> list[Row]:
            found = point_writes.records_of(self._points, ids)
            return [self._read(point, manifest.serving.vector).row for point in found if point is not None]

        return self._follow(read)

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Count the rows that match the filter; by Qdrant as far as it can express the filter."""
        condition = None if where is None else parse(where)

        def read(manifest: PointsManifest) -> int:
            return PointFilter(condition, self._points, manifest).count()

        return self._follow(read)

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Yield all matching rows, in order of insertion, `page` per request."""
        page = check_rows(page, "page")
        return self._scrolled(None if where is None else parse(where), page)

    def _scrolled(self, where: Filter | None, page: int) -> Iterator[Row]:
        with self._lock.reading():
            self._load()
            last = self._points.last_order()
        after = (0, "")
        while True:
            found = self._rows_after(after, where, page)
            yield from (stored.row for stored in found if stored.order <= last)
            if len(found) < page or found[-1].order > last:
                return
            after = (found[-1].order, found[-1].point)

    def _rows_after(self, after: tuple[int, str], where: Filter | None, limit: int) -> list[StoredPoint]:
        """Return the first matching rows after a position and point id."""
        return self._follow(
            lambda manifest: list(
                itertools.islice(self._matching(manifest, where, after=after, at_once=limit + 1), limit)
            )
        )

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        count = check_rows(count, "count")
        with self._lock.reading():
            self._load()
            last = self._points.last_order()
        found: list[StoredPoint] = []
        if seed is not None:
            for order in sample_places(last, count, seed):
                read = (found[-1].order, found[-1].point) if found else (0, "")
                found += self._rows_after(max((order, "~"), read), None, 1)
            return [stored.row for stored in found]
        for block in range(SAMPLE_BLOCKS):
            read = (found[-1].order, found[-1].point) if found else (0, "")
            place = (block * last // SAMPLE_BLOCKS, "~")  # which no id of a point sorts after
            if limit := (count - len(found)) // (SAMPLE_BLOCKS - block):
                found += self._rows_after(max(place, read), None, limit)
        return [stored.row for stored in found]

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        """Return the nearest rows of each query, rescored in float64."""
        condition = None if where is None else parse(where)
        k = check_k(k)
        with self._lock.reading(), self._in(fingerprint, generation) as manifest:
            check_unit(queries, len(queries), manifest.dim)
            state = manifest.serving if generation is None else manifest.generation(generation)
            return search(
                self._points,
                state.vector,
                queries,
                k,
                where=PointFilter(condition, self._points, manifest),
                exact=self._exact,
                prefix=manifest.prefix,
            )

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Return the best records of each query by the BM25 of qdrant_base/sparse_text.py."""
        check_list(queries, call="search_text", what="queries")
        condition = None if where is None else parse(where)
        k = check_k(k)

        def read(manifest: PointsManifest) -> list[list[Hit]]:
            if not manifest.words:
                expected = "expected words that can be searched, found a store that was made without"
                raise StoreError(f"{self._points.place}: {expected}. cde-rag reindex (store.index_texts()) adds them.")
            return search_text(self._points, manifest, queries, k, where=PointFilter(condition, self._points, manifest))

        return self._follow(read)

    @abstractmethod
    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection."""

    @abstractmethod
    def index_texts(self) -> None:
        """Rebuild the sparse vectors of all records."""

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of the given ids, verified by their checksums."""
        ids = check_ids(ids, call="vectors")
        with self._lock.reading(), self._in(fingerprint) as manifest:
            name = manifest.serving.vector
            found = point_writes.found_points(self._points, ids, vectors=[name])
            matrix = np.empty((len(found), manifest.dim), np.float32)
            for number, point in enumerate(found):
                matrix[number] = checked_vector(point, self._read(point, name), name, self._points.place)
            return matrix

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first, with their numbers of vectors."""
        with self._lock.reading():
            manifest = self._load()
            self._leased.see(manifest.generations)
            return [
                Generation(state.number, state.fingerprint, state.number == manifest.active, self._vectors(state))
                for state in manifest.generations
            ]

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return rows that have no vector in an inactive generation."""
        limit = check_rows(limit, "limit")

        def read(manifest: PointsManifest) -> list[Row]:
            lacks = no(self._points.having(self._leased.check(manifest.inactive(generation)).vector))
            place = (0, "") if after is None else self._place_of(after.record.id)
            found = itertools.islice(self._points.in_order(lacks, after=place, at_once=limit + 1), limit)
            return [self._read(point, manifest.serving.vector).row for point in found]

        with self._owned():
            return self._follow(read)

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation."""
        check_once(rows)
        return self._put_vectors(generation, rows, digests, vectors)

    def activate(self, generation: int, *, last: Completion | None = None) -> None:
        """Activate a generation in one write of the manifest, once all vectors are there."""
        with self._lock.alone():
            after: Row | None = None
            while last is not None and (lacking := self.lacking(generation, after=after)):
                self._put_vectors(generation, lacking, *last(lacking))
                after = lacking[-1]
            self._activate(generation)

    def _check_complete(self, state: PointsGeneration) -> None:
        """Refuse a generation that lacks vectors."""
        count, vectors = self._points.count(), self._vectors(state)
        if vectors != count:
            hint = "Add the others with add_to_generation."
            raise StoreError(f"Expected a vector for each of {count} records, found {vectors}. {hint}")

    def _put_vectors(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        with self._lock.writing(), self._owned():
            manifest = self._load_own()
            state = self._leased.check(manifest.inactive(generation))
            check_unit(vectors, len(rows), manifest.dim)
            return point_writes.put_vectors(self._points, manifest, state, rows, digests, vectors)

    def _place_of(self, id_: str) -> tuple[int, str]:
        """Place and point id of a record in the order of insertion; before all others where it is not there."""
        point_id = self._points.point_id(id_)
        found = None if point_id is None else self._points.retrieve([point_id]).get(point_id)
        return (0, "") if found is None else place_of(found, self._points.place)

    def _read(self, point: Point, name: str) -> StoredPoint:
        return read(point, name, self._points.place)

    def _matching(
        self, manifest: PointsManifest, where: Filter | None, *, after: tuple[int, str] = (0, ""), at_once: int = 512
    ) -> Iterator[StoredPoint]:
        """Return matching rows, in order of insertion, after a position and point id."""
        kept = PointFilter(where, self._points, manifest)
        found = self._points.in_order(kept.selection, after=after, at_once=at_once)
        return (self._read(point, manifest.serving.vector) for point in found if kept.passes(point))

    def _vectors(self, state: PointsGeneration) -> int:
        return self._points.count(self._points.having(state.vector))

    @contextmanager
    def _in(self, fingerprint: str, generation: int | None = None) -> Generator[PointsManifest, None, None]:
        """Yield the manifest; check before and after that a generation (default: active) has that space."""

        def checked() -> tuple[PointsManifest, PointsGeneration]:
            manifest = self._load()
            state = manifest.serving if generation is None else manifest.generation(generation)
            check_space(state, fingerprint)
            return manifest, state

        manifest, state = checked()
        try:
            yield manifest
        except StoreError as error:
            if checked()[1].key != state.key:  # of the same space, made again meanwhile
                raise ContextMismatchError(expected=fingerprint, found=fingerprint) from error
            raise

    @contextmanager
    def _owned(self) -> Generator[None, None, None]:
        """Replace a StoreError by the error of a lost lease, if the run has lost its lease."""
        try:
            yield
        except StoreError:
            self._load_own()
            raise

    def _follow(self, read: Callable[[PointsManifest], Result]) -> Result:
        """Call `read`; retry if it fails because another process activated another generation meanwhile."""
        for last_try in (False,) * (_TRIES - 1) + (True,):
            with self._lock.reading():
                manifest = self._load()
                try:
                    return read(manifest)
                except StoreError:
                    if last_try or self._load().serving.key == manifest.serving.key:
                        raise
        raise AssertionError("the last try returns or raises")
