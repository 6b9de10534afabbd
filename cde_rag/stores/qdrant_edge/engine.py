"""Engine of a folder with a shard of Qdrant Edge; see the package's docstring."""

import dataclasses
import itertools
import json
import re
import shutil
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cde_rag._files import fsync_folder
from cde_rag.errors import StoreError
from cde_rag.stores.base import Damage
from cde_rag.stores.engine import Result, Session
from cde_rag.stores.files import check_folder, check_new
from cde_rag.stores.qdrant_base.locks import hold_lease
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.point_writes import put_derived
from cde_rag.stores.qdrant_base.session import PointSession
from cde_rag.stores.qdrant_edge import shard_generations
from cde_rag.stores.qdrant_edge.folder_handle import LOCK, handle_of
from cde_rag.stores.qdrant_edge.index import EdgeIndexConfig
from cde_rag.stores.qdrant_edge.shard import EdgeShard
from cde_rag.stores.qdrant_edge.tables import ShardPoints
from cde_rag.stores.qdrant_edge.verify import changed_files, find_damage
from cde_rag.stores.quantization import check_prefix, prefix_dims

_CREATED: Final = re.compile(
    rf"{re.escape(shard_generations.MANIFEST)}\.new|{re.escape(LOCK)}-journal|{shard_generations.DERIVED.pattern}"
)
_TRIES: Final = 8  # to replace the engine between two builds of indexes
_users = itertools.count()


class _BuildingError(BaseException):  # which no `work` catches
    """An index is being built; nothing was written yet."""


class EdgeSession(PointSession):
    """Implements `cde_rag.stores.engine.Session` while the engine holds a lock.

    Args:
        engine: Engine of the folder.
        manifest: Its manifest.
        waits: True to wait for an index that is being built, where it is in the way.
    """

    def __init__(self, engine: "EdgeEngine", manifest: PointsManifest, *, waits: bool = True) -> None:
        super().__init__(manifest, engine.lock, exact=engine.exact)
        self._engine = engine
        self._waits = waits

    @property
    def points(self) -> ShardPoints:
        """The points, each time of the shard that is open now; raises if another store is in its place."""
        return self._engine.points

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context."""
        return shard_generations.read_context(self._engine.folder, self._manifest.generation(generation))

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings in one write of the manifest."""
        encoded = json.dumps(settings, ensure_ascii=False)
        with self._lock.writing(), self._engine.errors():
            self._save(dataclasses.replace(self._manifest, settings=encoded))

    def index_texts(self) -> None:
        """Rebuild the sparse vectors of all records, and their metadata for filters; in a copy if it had no words."""
        manifest = self._manifest
        new = dataclasses.replace(manifest, words=True, native=True, settings=manifest.renewed_settings())
        with self._shaping():
            if not manifest.words:
                self._reshape(new)
            self._engine.shard.create_indexes()
            put_derived(self.points, new, self.points.in_order())
            self._save(new)
            self.points.remove_former()

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add a generation, in a copy of the shard.

        Raises:
            StoreError: There is one of that fingerprint.
        """
        with self._shaping():
            new = shard_generations.new_generation(self._engine.folder, self._manifest, fingerprint, context)
            self._reshape(new)
        return new.last

    def activate(self, generation: int) -> None:
        """Activate a generation in one write of the manifest."""
        with self._lock.writing(), self._engine.errors():
            self._save(dataclasses.replace(self._manifest, active=generation))

    def drop(self, generation: int) -> None:
        """Drop an inactive generation, in a copy of the shard."""
        with self._shaping():
            self._reshape(shard_generations.without(self._manifest, generation))

    def _save(self, manifest: PointsManifest) -> None:
        self._engine.handle.save(manifest)
        self._manifest = manifest

    @contextmanager
    def _shaping(self) -> Generator[None, None, None]:
        """Keep all others out, builders of indexes too, and remove unused files first."""
        if not self._engine.handle.shaping.acquire(blocking=self._waits or self.wrote):
            raise _BuildingError
        try:
            with self._writing(), self._engine.errors():
                self._engine.shard  # noqa: B018  # opens the folder, or refuses it
                shard_generations.sweep(self._engine.folder, self._manifest)
                yield
        finally:
            self._engine.handle.shaping.release()

    def _reshape(self, new: PointsManifest) -> None:
        handle, folder = self._engine.handle, self._engine.folder
        try:
            self._engine.shard.write()  # so that all is in the files
            shard = shard_generations.changed_shard(folder, self._manifest, new)
            self._save(new)
            handle.use(shard)
        except BaseException:
            handle.use(None)  # the next call opens what the manifest says by now
            raise
        shard_generations.sweep(folder, new)


class EdgeEngine:
    """Implements `cde_rag.stores.engine.Engine` in a folder that one process has open.

    Args:
        folder: The folder, made by `create`.
        indexing: Index configuration of a new store.
        exact: Search exactly, not by HNSW.

    Raises:
        ValueError: The quantization is unknown.
    """

    def __init__(self, folder: Path, indexing: EdgeIndexConfig, *, exact: bool) -> None:
        self._prefix = prefix_dims(indexing.quantization)
        self.folder = folder
        self.indexing = indexing
        self.exact = exact
        self.handle = handle_of(folder)
        self.lock = self.handle.read_write_lock
        self._user = next(_users)
        weakref.finalize(self, self.handle.leave, self._user)

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def shard(self) -> EdgeShard:
        """The shard, which is opened if necessary."""
        return self.handle.open(self._user)

    @property
    def points(self) -> ShardPoints:
        """The points of the shard."""
        return ShardPoints(self.shard, str(self.folder), search_beam=self.indexing.hnsw.ef)

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create the folder with an empty store and generation 1 active."""
        encoded, folder = json.dumps(settings, ensure_ascii=False), self.folder
        check_prefix(self._prefix, dim)
        with self.lock.writing(), self.errors():
            check_folder(folder)
            if self.exists():
                raise StoreError(f"{folder}: expected no store, found one. Open it with Collection.open(…).")
            check_new(folder, first=LOCK, others=_CREATED)
            folder.mkdir(parents=True, exist_ok=True)
            fsync_folder(folder.parent)
            self.handle.lock(self._user)
            manifest = shard_generations.first(folder, dim, fingerprint, context, encoded, self._prefix)
            shard = shard_generations.shard_of(folder, manifest)
            shutil.rmtree(shard, ignore_errors=True)  # of a creation that was interrupted
            self.handle.use(EdgeShard.create(shard, manifest.sizes(fingerprint), self.indexing))
            self.handle.save(manifest)

    def exists(self) -> bool:
        """Return True if the folder holds a store."""
        check_folder(self.folder)
        return (self.folder / shard_generations.MANIFEST).exists()

    def read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:  # noqa: ARG002
        """Call a function while no thread writes."""
        with self.lock.reading():
            return work(EdgeSession(self, self.load()))

    def write(self, work: Callable[[Session], Result], *, wait: bool = True) -> Result:
        """Call a function while no other thread writes; then build due indexes, while others read and write."""
        if not wait:
            with self.lock.alone(wait=False):
                return work(EdgeSession(self, self.load()))
        for last_try in (False,) * (_TRIES - 1) + (True,):
            try:
                with self.lock.alone():
                    session = EdgeSession(self, self.load(), waits=last_try)
                    result = work(session)
            except _BuildingError:
                with self.handle.shaping:  # until the index is built; others write meanwhile
                    continue
            if session.wrote:
                self._optimize()
            return result
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the lease among the threads of this process, which has the folder for itself."""
        self.handle.open(self._user)
        with hold_lease(self.lock.lease, str(self.folder)):
            yield

    def verify(self) -> list[Damage]:
        """Compare all data with its checksums; files of the engine only if no one has the store open."""
        with self.lock.reading(), self.errors():
            manifest = self.load()
            self.handle.lock(self._user)
            shard = shard_generations.shard_of(self.folder, manifest)
            damage = [] if self.handle.is_open else list(changed_files(shard, self.handle.checksums))
            return damage or list(find_damage(self.folder, manifest, lambda: self.points))

    def close(self) -> None:
        """Close the folder, unless other objects of this process use it."""
        self.handle.leave(self._user)  # each time: a call after `close` opens it again

    def load(self) -> PointsManifest:
        """Read the manifest.

        Raises:
            StoreError: There is no store, or another is in place of the one that is open.
            StoreFormatError: Damaged, or of a newer format.
        """
        self.handle.check()
        return shard_generations.load(self.folder)

    @contextmanager
    def errors(self) -> Generator[None, None, None]:
        """Raise errors of files as StoreErrors."""
        try:
            yield
        except OSError as error:
            hint = "Is the disk full, or the folder not writable?"
            raise StoreError(f"{self.folder}: expected to read or write it, found: {error}. {hint}") from error

    def _optimize(self) -> None:
        """Build due indexes; one thread at a time."""
        if self.handle.shaping.acquire(blocking=False):
            try:
                self.shard.optimize()
            finally:
                self.handle.shaping.release()
