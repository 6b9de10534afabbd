"""QdrantEdgeStore; its folder is described in the package's docstring."""

import dataclasses
import itertools
import re
import shutil
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._files import fsync_folder, given_path
from cde_rag.errors import StoreError
from cde_rag.stores.base import Damage, Row
from cde_rag.stores.checks import encode
from cde_rag.stores.files import check_folder, check_new
from cde_rag.stores.qdrant_base.hnsw import Hnsw
from cde_rag.stores.qdrant_base.locks import hold_lease
from cde_rag.stores.qdrant_base.point_verification import damaged_points
from cde_rag.stores.qdrant_base.point_writes import put_derived
from cde_rag.stores.qdrant_base.points_manifest import PointsGeneration, PointsManifest
from cde_rag.stores.qdrant_base.store import PointStore
from cde_rag.stores.qdrant_edge import shard_generations
from cde_rag.stores.qdrant_edge.checksums import changed_files
from cde_rag.stores.qdrant_edge.engine import EdgeIndexConfig, EdgeShard
from cde_rag.stores.qdrant_edge.folder_handle import LOCK, handle_of
from cde_rag.stores.qdrant_edge.shard_points import ShardPoints
from cde_rag.stores.quantization import check_prefix, prefix_dims

FLAT_ROWS: Final = 100_000  # up to about so many vectors are not indexed, and searched exactly
_CREATED: Final = re.compile(
    rf"{re.escape(shard_generations.MANIFEST)}\.new|{re.escape(LOCK)}-journal|{shard_generations.DERIVED.pattern}"
)
_users = itertools.count()


class QdrantEdgeStore(PointStore):
    """Records, vectors and contexts in the folder `path`.

    The first call that needs it opens the folder, and `close` or the end of the last object that uses it closes it;
    in between, other processes are refused.

    Args:
        path: The folder, made by `create`.
        exact: Search exactly, not by HNSW.
        flat_rows: Approximate number of vectors up to which there is no index, and search is exact. Like `quantization`
            and `hnsw` it applies to a new store; an existing one keeps its own.
        quantization: Codes that HNSW searches: `int8` or `binary`, or the first dimensions of a Matryoshka model
            (`prefix-128`); results are rescored with the full vectors. None for full vectors.
        hnsw: Parameters of the index.

    Raises:
        ValueError: `quantization` is another name, or `flat_rows` is negative.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        exact: bool = False,
        flat_rows: int = FLAT_ROWS,
        quantization: str | None = None,
        hnsw: Hnsw | None = None,
    ) -> None:
        self._prefix = prefix_dims(quantization)
        if flat_rows < 0:
            raise ValueError(f"flat_rows: expected a number of vectors, found {flat_rows}.")
        self._folder = given_path(path, "The folder of a store")
        self._indexing = EdgeIndexConfig(flat_rows, quantization, hnsw or Hnsw())
        self._handle = handle_of(self._folder)
        self._user = next(_users)
        weakref.finalize(self, self._handle.leave, self._user)
        super().__init__(self._handle.read_write_lock, exact=exact)

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create the folder with an empty store and generation 1 active."""
        encoded = encode(settings, "The store's settings")
        check_prefix(self._prefix, dim)
        with self._lock.writing(), self._errors():
            check_folder(self._folder)
            if self.exists():
                raise StoreError(f"{self._folder}: expected no store, found one. Open it with Collection.open(…).")
            check_new(self._folder, first=LOCK, others=_CREATED)
            self._folder.mkdir(parents=True, exist_ok=True)
            fsync_folder(self._folder.parent)
            self._handle.lock(self._user)
            manifest = shard_generations.first(self._folder, dim, fingerprint, context, encoded, self._prefix)
            shard = shard_generations.shard_of(self._folder, manifest)
            shutil.rmtree(shard, ignore_errors=True)  # of a creation that was interrupted
            self._handle.use(EdgeShard.create(shard, manifest.sizes(fingerprint), self._indexing))
            self._handle.save(manifest)

    def exists(self) -> bool:
        """Return True if the folder holds a store."""
        check_folder(self._folder)
        return (self._folder / shard_generations.MANIFEST).exists()

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Upsert rows as points; builds an index if due, while others read and write."""
        super().add(rows, vectors, fingerprint=fingerprint)
        self._optimize()

    def delete(self, ids: Sequence[str]) -> int:
        """Delete the points of the given ids; return their number."""
        deleted = super().delete(ids)
        self._optimize()
        return deleted

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection, in one write of the manifest."""
        encode(changes, "The store's settings")
        with self._shaping() as manifest:
            self._handle.save(dataclasses.replace(manifest, settings=manifest.updated_settings(changes)))

    def index_texts(self) -> None:
        """Rebuild the sparse vectors of all records, and their metadata for filters; in a copy if it had no words."""
        with self._shaping() as manifest:
            new = dataclasses.replace(manifest, words=True, native=True, settings=manifest.renewed_settings())
            if not manifest.words:
                self._reshape(manifest, new)
            self._handle.open(self._user).create_indexes()
            put_derived(self._points, new, self._points.in_order())
            self._handle.save(new)
            self._points.remove_former()

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the lease among the threads of this process, which has the folder for itself."""
        self._handle.open(self._user)
        with hold_lease(self._lock.lease, str(self._folder)), self._leased.held():
            yield

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Create another, empty, inactive generation in a copy of the shard; return its number.

        Raises:
            StoreError: There is a generation of that fingerprint.
        """
        with self._shaping() as manifest:
            new = shard_generations.new_generation(self._folder, manifest, fingerprint, context)
            self._leased.check(new.generation(new.last))
            self._reshape(manifest, new)
        return new.last

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation."""
        added = super().add_to_generation(generation, rows, digests, vectors)
        self._optimize()
        return added

    def drop(self, generation: int) -> None:
        """Drop an inactive generation, in a copy of the shard."""
        with self._shaping() as manifest:
            self._leased.check(manifest.inactive(generation))
            self._reshape(manifest, shard_generations.without(manifest, generation))
        self._optimize()

    def verify(self) -> list[Damage]:
        """Compare all data with its checksums; files of the engine only if no one has the store open."""
        with self._lock.reading(), self._errors():
            manifest = self._load()
            self._handle.lock(self._user)
            shard = shard_generations.shard_of(self._folder, manifest)
            damage = [] if self._handle.is_open else list(changed_files(shard, self._handle.checksums))
            return damage or list(self._damage(manifest, shard.name))

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return self._folder

    def at(self, folder: Path) -> "QdrantEdgeStore":
        """Return a QdrantEdgeStore in another folder, with the same configuration."""
        made = self._indexing
        return QdrantEdgeStore(
            folder,
            exact=self._exact,
            flat_rows=made.flat_rows,
            quantization=made.quantization,
            hnsw=made.hnsw,
        )

    def __repr__(self) -> str:
        return f"QdrantEdgeStore({str(self._folder)!r})"

    def __str__(self) -> str:
        return str(self._folder)  # in errors

    def close(self) -> None:
        """Close the folder, unless other objects of this process use it."""
        self._handle.leave(self._user)  # each time: a call after `close` opens it again

    @property
    def _points(self) -> ShardPoints:
        beam = self._indexing.hnsw.ef
        return ShardPoints(self._handle.open(self._user), str(self._folder), search_beam=beam)

    def _load(self) -> PointsManifest:
        self._handle.check()
        return shard_generations.load(self._folder)

    def _check_written(self, manifest: PointsManifest, ids: Sequence[str]) -> None:
        """Do nothing: all writers of a folder are in one process and lock each other out."""

    def _activate(self, generation: int) -> None:
        with self._lock.writing(), self._errors():
            manifest = self._load()
            self._check_complete(self._leased.check(manifest.inactive(generation)))
            self._handle.save(dataclasses.replace(manifest, active=generation))

    def _context(self, state: PointsGeneration) -> bytes:
        return shard_generations.read_context(self._folder, state)

    def _optimize(self) -> None:
        """Build due indexes; one thread at a time, while others read and write."""
        if self._handle.shaping.acquire(blocking=False):
            try:
                self._handle.open(self._user).optimize()
            finally:
                self._handle.shaping.release()

    @contextmanager
    def _shaping(self) -> Generator[PointsManifest, None, None]:
        """Hold all locks, of writers and of index builds, and remove unused files first."""
        with self._handle.shaping, self._lock.writing(), self._errors():
            manifest = self._load()
            self._handle.open(self._user)
            shard_generations.sweep(self._folder, manifest)
            yield manifest

    def _reshape(self, old: PointsManifest, new: PointsManifest) -> None:
        try:
            self._handle.open(self._user).write()  # so that all is in the files
            engine = shard_generations.changed_shard(self._folder, old, new)
            self._handle.save(new)
            self._handle.use(engine)
        except BaseException:
            self._handle.use(None)  # the next call opens what the manifest says by now
            raise
        shard_generations.sweep(self._folder, new)

    def _damage(self, manifest: PointsManifest, shard: str) -> Iterator[Damage]:
        yield from shard_generations.damaged_contexts(self._folder, manifest)
        try:
            points = self._points
            found, count = sum(1 for _ in points.in_order()), points.count()
        except StoreError as error:
            yield Damage(shard, str(error))
            return
        if found != count:
            yield Damage(shard, f"Expected a place in the order for each of {count} records, found {found}.")
        yield from damaged_points(points, manifest)

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            hint = "Is the disk full, or the folder not writable?"
            raise StoreError(f"{self._folder}: expected to read or write it, found: {error}. {hint}") from error
