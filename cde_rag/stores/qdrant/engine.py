"""Engine of a collection of Qdrant; see the package's docstring."""

import json
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient

from cde_rag.errors import CDEWarning, ContextMismatchError, StoreError, warn_user
from cde_rag.records import Record, Row
from cde_rag.stores.base import Damage
from cde_rag.stores.engine import Result, Session, Version
from cde_rag.stores.qdrant import generations
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import CONTEXTS, metadata_of, read_context
from cde_rag.stores.qdrant.index import QdrantIndexConfig
from cde_rag.stores.qdrant.lease import leased, lock_of
from cde_rag.stores.qdrant.manifest import ChangedMeanwhileError, find, home_of, is_store, load_from
from cde_rag.stores.qdrant.tables import ClientPoints
from cde_rag.stores.qdrant.verify import find_damage
from cde_rag.stores.qdrant_base.locks import hold_lease
from cde_rag.stores.qdrant_base.manifest import PointsGeneration, PointsManifest, full_name, vector_name
from cde_rag.stores.qdrant_base.selection import every, no
from cde_rag.stores.qdrant_base.session import GoneError, PointSession

LOCAL_POINTS: Final = 2000  # more than these are slow in a local folder, which commits each point
_TRIES: Final = 8  # to read or to change what another process changes meanwhile
_DEFAULT: Final = QdrantIndexConfig(None, None, None)


class QdrantSession(PointSession):
    """Implements `cde_rag.stores.engine.Session` over a manifest that was read.

    Args:
        engine: Engine of the collection.
        manifest: The manifest.
        is_sure: True if it was found by the collection's metadata; False if its point alone was read.
    """

    def __init__(self, engine: "QdrantEngine", manifest: PointsManifest, *, is_sure: bool = True) -> None:
        super().__init__(manifest, engine.lock, exact=engine.exact)
        self._engine = engine
        self._is_sure = is_sure
        self._points = engine.points(adopted=manifest.adopted)
        self._may_be_late = False  # texts were embedded since the manifest was read

    @property
    def points(self) -> ClientPoints:
        """The points."""
        return self._points

    @property
    def is_sure(self) -> bool:
        """True if the manifest is that of the collection whose points were read.

        All records of a collection note a vector in its active generation, and in no generation that its manifest does
        not name. So the last record that was read tells whether the name still is that of the same collection, if no
        other has a generation of that key.
        """
        if self._is_sure or self._points.last_read is None or not self._manifest.serving.run:
            return self._is_sure
        noted = {key for key in self._points.last_read if full_name(key) == key}
        known = {state.vector for state in self._manifest.generations} | set(map(vector_name, self._manifest.leftover))
        return self._manifest.serving.vector in noted and noted <= known

    @property
    def run(self) -> Hashable:
        """Token of the run that took the lease last."""
        return self._manifest.run

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context."""
        key = self._manifest.generation(generation).key
        return read_context(self._engine.client, self._engine.collection, key)

    def lacking(self, generation: int, *, after: str | None, limit: int) -> list[Row]:
        """Return rows without a vector in a generation."""
        self._may_be_late = True
        return super().lacking(generation, after=after, limit=limit)

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Upsert records as points with their vectors; warns of large collections in a local folder."""
        written = self._manifest.serving
        try:
            super().put(records, digests, vectors)
        except StoreError as error:
            if not self.wrote:
                raise
            now = self._engine.load().serving
            if now.key != written.key:  # also of the same space, made again meanwhile
                raise ContextMismatchError(expected=now.fingerprint, found=written.fingerprint) from error
            raise
        self._engine.check_size()

    def put_vectors(
        self,
        generation: int,
        versions: Sequence[Version],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Write vectors of a generation to points that are as they were read.

        Raises:
            ChangedMeanwhileError: Another run took the lease.
        """
        if self._may_be_late:
            self._check_run()
        try:
            return super().put_vectors(generation, versions, digests, vectors)
        except StoreError:
            self._check_run()
            raise

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings in one write of the manifest, if it is as it was read."""
        encoded = json.dumps(settings, ensure_ascii=False)
        with self._lock.writing():
            self._manifest = generations.replace_settings(self._points, self._manifest, encoded)
        self.wrote = True

    def index_texts(self) -> None:
        """Rebuild the sparse vectors of all records, and their metadata for filters."""
        with self._writing():
            self._manifest = generations.derive(self._points)

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add a generation.

        Raises:
            StoreError: The server is older than 1.18.
        """
        with self._writing():
            self._manifest = generations.begin(self._points, self._manifest, fingerprint, context)
        return self._manifest.last

    def activate(self, generation: int) -> None:
        """Activate a generation, once nobody writes between the count of its vectors and the switch."""
        with self._writing():
            self._manifest = generations.activate(self._points, self._manifest, generation, self._check_complete)

    def drop(self, generation: int) -> None:
        """Drop an inactive generation."""
        with self._writing():
            self._manifest = generations.remove(self._points, self._manifest, generation)

    @contextmanager
    def _writing(self) -> Generator[None, None, None]:
        if not self.is_sure and not self._engine.has_own_manifest():
            raise ChangedMeanwhileError(self._engine.collection)
        with super()._writing():
            yield

    def _check_run(self) -> None:
        now = self._engine.load()
        if now.run != self._manifest.run:
            raise ChangedMeanwhileError(self._engine.collection)

    def _check_written(self, ids: Sequence[str]) -> None:
        generations.check_written(self._points, self._manifest, ids)

    def _check_complete(self, state: PointsGeneration) -> None:
        due = no(self._points.having(state.vector))
        if self._manifest.may_wait:  # those that the active generation lacks, too, may go on waiting
            due = every(due, self._points.having(self._manifest.serving.vector))
        if lacking := self._points.count(due):
            hint = "Add the others with add_to_generation."
            raise StoreError(f"Expected a vector for each record, found {lacking} without. {hint}")


class QdrantEngine:
    """Implements `cde_rag.stores.engine.Engine` in a collection of Qdrant.

    A server has no transactions. A read that fails is made again if the manifest has changed meanwhile; a write is
    checked against the manifest when it is done (generations.py).

    Args:
        client: As for QdrantStore.
        collection: As for QdrantStore.
        exact: As for QdrantStore.
        indexing: Index configuration of a new store.
        search_beam: Candidates of HNSW for each query; the server's default where None.
    """

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        indexing: QdrantIndexConfig = _DEFAULT,
        *,
        exact: bool = False,
        search_beam: int | None = None,
    ) -> None:
        self.client = client
        self.collection = collection
        self._contexts = collection + CONTEXTS
        self.exact = exact
        self.lock = lock_of(client, collection)
        self._indexing = indexing
        self._search_beam = search_beam
        self._indexed = set[str]()
        self._is_folder = client.init_options.get("path") is not None
        self.local = self._is_folder or client.init_options.get("location") == ":memory:"
        self._has_own_name = False  # the collection had this name, which then was no alias

    def __str__(self) -> str:
        return self.collection

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create an empty store; an existing collection without points keeps its vectors and gets ours in addition."""
        encoded = json.dumps(settings, ensure_ascii=False)
        with self.lock.writing():
            generations.first(self.points(), dim, fingerprint, context, encoded, self._indexing)

    def exists(self) -> bool:
        """Return True if the collection's metadata is that of a store."""
        return is_store(metadata_of(self.client, self.collection))

    def read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:  # noqa: ARG002
        """Call a function; again, if it fails after another process changed the manifest."""
        with self.lock.reading():
            return self._followed(work)

    def write(self, work: Callable[[Session], Result], *, wait: bool = True) -> Result:
        """Call a function while no other thread writes; again, if it fails before it wrote, as in `read`."""
        with self.lock.alone(wait=wait):
            return self._followed(work)

    @contextmanager
    def lease(self) -> Generator[Hashable, None, None]:
        """Hold the lease; on a server it outlives a killed process by half a minute.

        A run that was suspended for longer, so that another took the lease, cannot create, fill, activate or drop a
        generation any more: its token is no longer that in the manifest, which each such call compares and swaps.
        """
        with hold_lease(self.lock.lease, self.collection) if self.local else leased(self.client, self.collection):
            if not self.exists():
                yield None
                return
            with self.lock.writing():
                run = generations.take_over(self.points())
            yield run

    def verify(self) -> list[Damage]:
        """Compare all points, the manifest and all Contexts with their checksums."""
        with self.lock.reading():
            manifest = self.load()
            return find_damage(self.points(adopted=manifest.adopted), manifest)

    def close(self) -> None:
        """Do nothing: the client stays open, and is closed by the caller."""

    def load(self) -> PointsManifest:
        """Read the manifest, found by the collection's metadata.

        Raises:
            StoreError: There is no store.
            StoreFormatError: Damaged, or of a newer format.
        """
        name, manifest = find(self.client, self.collection)
        self._has_own_name = name == self._contexts
        return manifest

    def points(self, *, adopted: bool = False) -> ClientPoints:
        """Return the points of the collection; `adopted` as of the manifest."""
        return ClientPoints(
            self.client,
            self.collection,
            local=self.local,
            adopted=adopted,
            search_beam=self._search_beam,
            indexed=self._indexed,
        )

    def has_own_manifest(self) -> bool:
        """Return True if the manifest is in the collection named after this one: its name is not an alias."""
        return home_of(self.client, self.collection) == self._contexts

    def check_size(self) -> None:
        """Warn of a large collection in a local folder."""
        if self._is_folder and call(lambda: self.client.count(self.collection)).count > LOCAL_POINTS:
            hint = "Use a server, or QdrantEdgeStore."
            warn_user(f"A folder of Qdrant takes about 150 records a second. {hint}", CDEWarning)

    def _followed(self, work: Callable[[Session], Result]) -> Result:
        session = self._glanced() or self._session(self.load())
        for last_try in (False,) * (_TRIES - 1) + (True,):
            try:
                result = work(session)
                if session.wrote or session.is_sure or self.has_own_manifest():
                    return result
                now = self.load()
            except Exception as error:
                if last_try or session.wrote or (session.is_sure and not isinstance(error, StoreError)):
                    raise
                now = self.load()
                if now == session.manifest and not isinstance(error, GoneError):
                    raise
            session = self._session(now)
        raise AssertionError("the last try returns or raises")

    def _glanced(self) -> QdrantSession | None:
        """Return a session whose manifest was read in one request: its point's collection is known by the name."""
        if not self._has_own_name:
            return None
        manifest = load_from(self.client, self._contexts, self.collection)
        return None if manifest is None else self._session(manifest, is_sure=False)

    def _session(self, manifest: PointsManifest, *, is_sure: bool = True) -> QdrantSession:
        return QdrantSession(self, manifest, is_sure=is_sure)
