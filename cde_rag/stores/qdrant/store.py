"""QdrantStore; its collections are described in the package's docstring."""

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient

from cde_rag.errors import CDEWarning, StoreError
from cde_rag.stores.base import Damage, Row
from cde_rag.stores.checks import encode
from cde_rag.stores.qdrant import generations
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.client_points import ClientPoints
from cde_rag.stores.qdrant.collection_verification import find_damage
from cde_rag.stores.qdrant.context_points import metadata_of, read_context
from cde_rag.stores.qdrant.manifest_point import ChangedMeanwhileError, is_store, load
from cde_rag.stores.qdrant.named_vectors import QdrantIndexConfig
from cde_rag.stores.qdrant.server_lease import leased, lock_of
from cde_rag.stores.qdrant_base.hnsw import Hnsw
from cde_rag.stores.qdrant_base.locks import hold_lease
from cde_rag.stores.qdrant_base.points_manifest import PointsGeneration, PointsManifest
from cde_rag.stores.qdrant_base.store import PointStore

LOCAL_POINTS: Final = 2000  # more than these are slow in a local folder, which commits each point


class QdrantStore(PointStore):
    """Records, vectors and contexts in a collection of Qdrant.

    Args:
        client: Client of a server (HTTP or gRPC), or in local mode (`QdrantClient(":memory:")`); the caller closes it.
        collection: Name of the collection, or an alias of it; `create` makes it if necessary.
        exact: Search exactly, not by HNSW. Local mode always does, except with prefixes.
        quantization: Codes that HNSW searches: `int8` or `binary`, or the first dimensions of a Matryoshka model
            (`prefix-128`); results are rescored with the full vectors. None for full vectors. Like `hnsw` it applies to
            a new store; an existing one keeps its own, for later generations too.
        hnsw: Parameters of the index; the server's by default.

    Raises:
        TypeError: `client` is no QdrantClient.
        ValueError: `quantization` is another name.
    """

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        *,
        exact: bool = False,
        quantization: str | None = None,
        hnsw: Hnsw | None = None,
    ) -> None:
        if not isinstance(cast(object, client), QdrantClient):
            raise TypeError(f"Expected a qdrant_client.QdrantClient, such as QdrantClient(url), found {client!r:.80}.")
        if not collection:
            raise StoreError("The name of the Qdrant collection is empty. Is a variable unset? Name the collection.")
        super().__init__(lock_of(client, collection), exact=exact)
        self._indexing = QdrantIndexConfig.from_arguments(quantization, hnsw)
        self._search_beam = None if hnsw is None else hnsw.ef
        self.client = client
        self.collection = collection
        self._adopted = False
        self._run: str | None = None
        self._indexed = set[str]()
        self._folder = client.init_options.get("path") is not None
        self.local = self._folder or client.init_options.get("location") == ":memory:"

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create an empty store; an existing collection without points keeps its vectors and gets ours in addition."""
        encoded = encode(settings, "The store's settings")
        with self._lock.writing():
            generations.first(self._points, dim, fingerprint, context, encoded, self._indexing)

    def exists(self) -> bool:
        """Return True if the collection's metadata is that of a store."""
        return is_store(metadata_of(self.client, self.collection))

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Upsert rows as points with their vectors; warns of large collections in a local folder."""
        super().add(rows, vectors, fingerprint=fingerprint)
        if self._folder and call(lambda: self.client.count(self.collection)).count > LOCAL_POINTS:
            hint = "Use a server, or QdrantEdgeStore."
            warnings.warn(f"A folder of Qdrant takes about 150 records a second. {hint}", CDEWarning, stacklevel=2)

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection, in one write of the manifest."""
        encode(changes, "The store's settings")
        with self._lock.writing():
            self._load()  # there has to be a store
            generations.update_settings(self._points, changes)

    def index_texts(self) -> None:
        """Rebuild the sparse vectors of all records, and their metadata for filters."""
        with self._lock.writing():
            self._load()  # says whether it is adopted
            generations.derive(self._points)

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the lease; on a server it outlives a killed process by half a minute.

        A run that was suspended for longer, so that another took the lease, cannot create, fill, activate or drop a
        generation any more: its token is no longer that in the manifest, which each such call compares and swaps.
        """
        with hold_lease(self._lock.lease, self.collection) if self.local else leased(self.client, self.collection):
            if self.exists():
                with self._lock.writing():
                    self._run = generations.take_over(self._points)
            try:
                yield
            finally:
                self._run = None

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Create another, empty, inactive generation; return its number.

        Raises:
            StoreError: There is a generation of that fingerprint, or the server is older than 1.18.
        """
        with self._lock.writing():
            return generations.begin(self._points, self._load_own(), fingerprint, context)

    def drop(self, generation: int) -> None:
        """Drop an inactive generation."""
        with self._lock.writing():
            generations.remove(self._points, self._load_own(), generation)

    def verify(self) -> list[Damage]:
        """Compare all points, the manifest and all Contexts with their checksums."""
        with self._lock.reading():
            return find_damage(self._points, self._load())

    def __repr__(self) -> str:
        return f"QdrantStore({self.collection!r})"

    def __str__(self) -> str:
        return self.collection  # in errors

    def close(self) -> None:
        """Do nothing: the client stays open, and is closed by the caller."""

    @property
    def _points(self) -> ClientPoints:
        return ClientPoints(
            self.client,
            self.collection,
            local=self.local,
            adopted=self._adopted,
            search_beam=self._search_beam,
            indexed=self._indexed,
        )

    def _load(self) -> PointsManifest:
        manifest = load(self.client, self.collection)
        self._adopted = manifest.adopted
        return manifest

    def _load_own(self) -> PointsManifest:
        manifest = self._load()
        if self._run is not None and manifest.run != self._run:
            raise ChangedMeanwhileError(self.collection)
        return manifest

    def _check_written(self, manifest: PointsManifest, ids: Sequence[str]) -> None:
        generations.check_written(self._points, manifest, ids)

    def _activate(self, generation: int) -> None:
        with self._lock.writing():
            generations.activate(self._points, self._load_own(), generation, self._check_complete)

    def _context(self, state: PointsGeneration) -> bytes:
        return read_context(self.client, self.collection, state.key)
