"""QdrantStore; the package's docstring says what is in its collections."""

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient

from cde_rag.errors import CDEWarning
from cde_rag.stores.base import Damage, Row
from cde_rag.stores.checks import encode
from cde_rag.stores.qdrant import generations
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.client_points import ClientPoints
from cde_rag.stores.qdrant.collection_verification import find_damage
from cde_rag.stores.qdrant.context_points import metadata_of, read_context
from cde_rag.stores.qdrant.manifest_point import ChangedMeanwhileError, is_store, load
from cde_rag.stores.qdrant.named_vectors import QdrantIndexConfig
from cde_rag.stores.qdrant.server_lease import leased, turns_of
from cde_rag.stores.qdrant_base.hnsw import Hnsw
from cde_rag.stores.qdrant_base.locks import held
from cde_rag.stores.qdrant_base.points_manifest import PointsGeneration, PointsManifest
from cde_rag.stores.qdrant_base.store import PointStore

LOCAL_POINTS: Final = 2000  # beyond that local mode with a folder, which commits point by point, is no fun


class QdrantStore(PointStore):
    """Records, vectors and contexts in a collection of Qdrant. Implements `cde_rag.stores.base.Store`.

    Args:
        client: Of a server (HTTP or gRPC), or in local mode (`QdrantClient(":memory:")`); the caller closes it.
        collection: Name of the collection, or an alias of it; `create` makes it where it is not there.
        exact: Search exactly, not by HNSW. Local mode always does, but for prefixes.
        quantization: What HNSW walks over: `int8` or `binary` codes, or the first dimensions of a Matryoshka model
            (`prefix-128`), in place of the vectors, which then score what was found; None for the vectors themselves.
            Like `hnsw` it says how `create` makes a store; one that is there keeps its own, later generations too.
        hnsw: Parameters of the index; the server's by default.

    Raises:
        TypeError: That is no client.
        ValueError: `quantization` is none of these.
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
        super().__init__(turns_of(client, collection), exact=exact)
        self._indexing = QdrantIndexConfig.asked(quantization, hnsw)
        self._search_beam = None if hnsw is None else hnsw.ef
        self.client = client
        self.collection = collection
        self._adopted = False
        self._run: str | None = None
        self._indexed = set[str]()
        self._folder = client.init_options.get("path") is not None
        self.local = self._folder or client.init_options.get("location") == ":memory:"

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """See `Store.create`. A collection without points that is there keeps its vectors and gets ours beside them."""
        encoded = encode(settings, "The store's settings")
        with self._turns.writing():
            generations.first(self._points, dim, fingerprint, context, encoded, self._indexing)

    def exists(self) -> bool:
        """See `Store.exists`."""
        return is_store(metadata_of(self.client, self.collection))

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """See `Store.add`."""
        super().add(rows, vectors, fingerprint=fingerprint)
        if self._folder and call(lambda: self.client.count(self.collection)).count > LOCAL_POINTS:
            hint = "Use a server, or QdrantEdgeStore."
            warnings.warn(f"A folder of Qdrant takes about 150 records a second. {hint}", CDEWarning, stacklevel=2)

    def index_texts(self) -> None:
        """See `Store.index_texts`."""
        with self._turns.writing():
            self._load()  # says whether it is adopted
            generations.add_words(self._points)

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """See `Store.lease`. On a server it outlives a killed process by half a minute.

        A run that was suspended for longer, so that another took it, makes, fills, activates and drops no generation
        more: its token is no longer that in the manifest, which each such call compares and swaps.
        """
        with held(self._turns.lease, self.collection) if self.local else leased(self.client, self.collection):
            if self.exists():
                with self._turns.writing():
                    self._run = generations.take_over(self._points)
            try:
                yield
            finally:
                self._run = None

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """See `Store.create_generation`.

        Raises:
            StoreError: There is a generation of that fingerprint, or the server is older than 1.18.
        """
        with self._turns.writing():
            return generations.begin(self._points, self._load_own(), fingerprint, context)

    def drop(self, generation: int) -> None:
        """See `Store.drop`."""
        with self._turns.writing():
            generations.remove(self._points, self._load_own(), generation)

    def verify(self) -> list[Damage]:
        """See `Store.verify`."""
        with self._turns.reading():
            return find_damage(self._points, self._load())

    def __repr__(self) -> str:
        return f"QdrantStore({self.collection!r})"

    def close(self) -> None:
        """See `Store.close`. The client stays open: it is the caller's."""

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

    def _check_written(self, state: PointsGeneration) -> None:
        generations.check_written(self._points, state)

    def _activate(self, generation: int) -> None:
        with self._turns.writing():
            generations.activate(self._points, self._load_own(), generation, self._check_complete)

    def _context(self, state: PointsGeneration) -> bytes:
        return read_context(self.client, self.collection, state.key)
