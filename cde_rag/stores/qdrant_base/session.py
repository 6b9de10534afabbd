"""One state of a store of points, on a server or in a folder."""

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import StoreError, TextIndexError
from cde_rag.records import Record, Row
from cde_rag.stores.checks import sample_places
from cde_rag.stores.engine import Found, Place, Placed, Version, sampled
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.qdrant_base import point_writes
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.locks import ReadWriteLock
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.payload import StoredPoint, checked_vector, is_record, key_of, note, place_of, read
from cde_rag.stores.qdrant_base.points import Point, Points
from cde_rag.stores.qdrant_base.search import search, search_text
from cde_rag.stores.qdrant_base.selection import no


class GoneError(StoreError):
    """A record that a search found was replaced or deleted by another process before it was read."""


class PointSession(ABC):
    """Implements `cde_rag.stores.engine.Session` but for generations and settings. Each call that writes is atomic.

    Args:
        manifest: The manifest as it was read.
        lock: Lock of all objects of this process that use the store.
        exact: Search exactly, not by HNSW.
    """

    def __init__(self, manifest: PointsManifest, lock: ReadWriteLock, *, exact: bool) -> None:
        self._manifest = manifest
        self._lock = lock
        self._exact = exact
        self.wrote = False

    @property
    @abstractmethod
    def points(self) -> Points:
        """The points."""

    @property
    def manifest(self) -> PointsManifest:
        """The manifest."""
        return self._manifest

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the collection."""
        return json.loads(self._manifest.settings)

    @property
    def run(self) -> Hashable:
        """None: the lease cannot be lost."""
        return None

    def get(self, ids: Sequence[str]) -> dict[str, Row]:
        """Return the rows of those ids that exist, verified by their checksums."""
        found = point_writes.records_of(self.points, ids)
        rows = (self._read(point).row for point in found if point is not None)
        return {row.record.id: row for row in rows}

    def scan(self, where: Filter | None, *, after: Place, limit: int) -> list[Placed]:
        """Return matching rows after a place; points of one place are in order of their ids."""
        kept = self._filter(where)
        found = self.points.in_order(kept.selection, after=after, at_once=limit + 1)
        matching = itertools.islice((point for point in found if kept.passes(point)), limit)
        return [Placed((stored.order, stored.point), stored.row) for stored in map(self._read, matching)]

    def last_place(self) -> int:
        """Return the place of the last record."""
        return self.points.last_order()

    def count(self, where: Filter | None) -> int:
        """Count the matching records; by Qdrant as far as it can express the filter."""
        return self._filter(where).count()

    def sample(self, count: int, seed: int | None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        if seed is None:
            return sampled(self, count, seed)
        drawn = self.points.first_after(sample_places(self.last_place(), count, seed))
        found = {stored.point: stored.row for stored in map(self._read, drawn)}
        return list(found.values())

    def versions(self, ids: Sequence[str]) -> dict[str, Version]:
        """Return the versions of those ids that exist; their keys are points."""
        found = zip(ids, point_writes.records_of(self.points, ids), strict=True)
        active = self._manifest.serving.vector
        return {
            id_: Version(point, (note(point.payload or {}, active) or ("",))[0])
            for id_, point in found
            if point is not None
        }

    def vectors(self, generation: int, ids: Sequence[str]) -> dict[str, Float32[np.ndarray, " dim"]]:
        """Return vectors by id, verified by their checksums."""
        name = self._manifest.generation(generation).vector
        found: dict[str, Float32[np.ndarray, " dim"]] = {}
        for point in point_writes.records_of(self.points, ids, vectors=[name]):
            is_due = generation == self._manifest.active and not self._manifest.may_wait  # else it is damaged
            if point is not None and (is_due or note(point.payload or {}, name)):
                id_ = self._read(point).row.record.id
                found[id_] = checked_vector(point, name, self.points.place)
        return found

    def count_vectors(self, generation: int) -> int:
        """Count the vectors of a generation."""
        return self.points.count(self.points.having(self._manifest.generation(generation).vector))

    def lacking(self, generation: int, *, after: str | None, limit: int) -> list[Row]:
        """Return rows without a vector in a generation."""
        lacks = no(self.points.having(self._manifest.generation(generation).vector))
        found = self.points.in_order(lacks, after=self._place_of(after), at_once=limit + 1)
        return [self._read(point).row for point in itertools.islice(found, limit)]

    def nearest(
        self,
        generation: int,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        where: Filter | None,
        *,
        complete: bool,
    ) -> list[list[Found]]:
        """Return the nearest records of each query, rescored in float64."""
        return search(
            self.points,
            self._manifest.generation(generation).vector,
            queries,
            k,
            where=self._filter(where),
            exact=self._exact,
            prefix=self._manifest.prefix,
            complete=complete,
        )

    def matching(self, queries: Sequence[str], k: int, where: Filter | None, *, complete: bool) -> list[list[Found]]:
        """Return the best records of each query by the BM25 of qdrant_base/words.py."""
        if not self._manifest.words:
            expected = "expected words that can be searched, found a store that was made without"
            raise TextIndexError(f"{self.points.place}: {expected}. cde-rag reindex (store.index_texts()) adds them.")
        return search_text(self.points, self._manifest, queries, k, where=self._filter(where), complete=complete)

    def found(self, keys: Sequence[Any]) -> list[Record]:
        """Return the records of points that a search found, unless they changed since."""
        there = self.points.retrieve(sorted({id_ for id_, _ in keys}))
        points = [there.get(id_) for id_, _ in keys]
        records = list[Record]()
        for point, key in zip(points, keys, strict=True):
            if not is_record(point) or key_of(point) != key:
                found = "it replaced or deleted by another process"
                raise GoneError(f"{self.points.place}: expected a record as it was found, found {found}. Search again.")
            records.append(self._read(point).row.record)
        return records

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Upsert records as points with their vectors."""
        self._manifest.check_native(self.points.place)
        made = point_writes.new_points(self.points, self._manifest, records, digests, vectors)
        with self._writing():
            point_writes.put_points(self.points, made)
            self._check_written([record.id for record, _ in records])

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata in the payloads of records."""
        with self._writing():
            self._manifest.check_native(self.points.place)
            point_writes.put_metadata(self.points, metadata)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete the points of the given ids; return their number."""
        found = {str(point.id) for point in point_writes.records_of(self.points, ids) if point is not None}
        with self._writing():
            self.points.delete(sorted(found))
        return len(found)

    def put_vectors(
        self,
        generation: int,
        versions: Sequence[Version],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Write vectors of a generation to points that are as they were read."""
        found, state = [version.key for version in versions], self._manifest.generation(generation)
        with self._writing():
            return point_writes.put_vectors(self.points, self._manifest, state, found, digests, vectors)

    @abstractmethod
    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context."""

    @abstractmethod
    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""

    @abstractmethod
    def index_texts(self) -> None:
        """Rebuild the sparse vectors of all records, and their metadata for filters."""

    @abstractmethod
    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add a generation; return its number."""

    @abstractmethod
    def activate(self, generation: int) -> None:
        """Activate a generation."""

    @abstractmethod
    def drop(self, generation: int) -> None:
        """Drop an inactive generation."""

    def _check_written(self, ids: Sequence[str]) -> None:  # noqa: B027  # Edge has no other processes
        """Ensure that no other process's switch loses the records of these ids, which were just written."""

    @contextmanager
    def _writing(self) -> Generator[None, None, None]:
        """Keep readers and writers of this process out."""
        self.wrote = True
        with self._lock.writing():
            yield

    def _filter(self, where: Filter | None) -> PointFilter:
        return PointFilter(where, self.points, self._manifest)

    def _place_of(self, id_: str | None) -> Place:
        """Return the place of a record; before all others where it does not exist."""
        point_id = None if id_ is None else self.points.point_id(id_)
        found = None if point_id is None else self.points.retrieve([point_id]).get(point_id)
        return (0, "") if found is None else place_of(found, self.points.place)

    def _read(self, point: Point) -> StoredPoint:
        return read(point, self._manifest.serving.vector, self.points.place)
