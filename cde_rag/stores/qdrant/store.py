"""QdrantStore; its collections are described in the package's docstring."""

from typing import cast

from qdrant_client import QdrantClient

from cde_rag.errors import StoreError
from cde_rag.stores.qdrant.engine import QdrantEngine
from cde_rag.stores.qdrant.index import QdrantIndexConfig
from cde_rag.stores.qdrant_base.index import Hnsw
from cde_rag.stores.store import Store


class QdrantStore(Store):
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
        self.client = client
        self.collection = collection
        indexing, beam = QdrantIndexConfig.from_arguments(quantization, hnsw), None if hnsw is None else hnsw.ef
        self._engine = QdrantEngine(client, collection, indexing, exact=exact, search_beam=beam)
        super().__init__(self._engine)
