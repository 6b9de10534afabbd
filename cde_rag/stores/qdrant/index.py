"""Named vectors of a collection: making, removing and looking at them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qdrant_client import QdrantClient, models

from cde_rag.errors import StoreError
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant_base.index import Hnsw
from cde_rag.stores.qdrant_base.words import WORDS
from cde_rag.stores.quantization import prefix_dims

_NO_GRAPH: Final = models.HnswConfigDiff(m=0)
_CODES: Final[Mapping[str | None, models.QuantizationConfig]] = {
    "int8": models.ScalarQuantization(scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8)),
    "binary": models.BinaryQuantization(
        binary=models.BinaryQuantizationConfig(query_encoding=models.BinaryQuantizationQueryEncoding.SCALAR8BITS)
    ),
}
_NEEDED = "Named vectors are added to a collection by servers from Qdrant 1.18 on."


@dataclass(frozen=True, slots=True)
class QdrantIndexConfig:
    """Index configuration of named vectors.

    Attributes:
        graph: HNSW graph of full vectors, or of prefixes if there are any; None for the server's default.
        codes: Quantization of the full vectors.
        prefix: Number of dimensions of prefixes; None for no prefixes.
    """

    graph: models.HnswConfigDiff | None
    codes: models.QuantizationConfig | None
    prefix: int | None

    @classmethod
    def from_arguments(cls, quantization: str | None, hnsw: Hnsw | None) -> "QdrantIndexConfig":
        """Return the configuration for arguments of QdrantStore."""
        graph = None if hnsw is None else models.HnswConfigDiff(m=hnsw.m, ef_construct=hnsw.ef_construct)
        return cls(graph, _CODES.get(quantization), prefix_dims(quantization))

    @classmethod
    def from_params(cls, params: Mapping[str, models.VectorParams], names: list[str]) -> "QdrantIndexConfig":
        """Return the configuration of existing vectors, given the names of full ones and of prefixes."""
        whole, walked = params.get(names[0]), params.get(names[-1])
        prefix = walked.size if walked is not None and len(names) > 1 else None
        return cls(walked and walked.hnsw_config, whole and whole.quantization_config, prefix)

    def params(self, size: int) -> models.VectorParams:
        """Return the parameters of vectors of a length, compared by dot product, which keeps them unchanged."""
        walked = self.prefix is None or size == self.prefix
        return models.VectorParams(
            size=size,
            distance=models.Distance.DOT,
            hnsw_config=self.graph if walked else _NO_GRAPH,
            quantization_config=self.codes,
        )


def create_collection(
    client: QdrantClient, collection: str, sizes: Mapping[str, int], indexing: QdrantIndexConfig
) -> None:
    """Make a collection with vectors of those names and lengths."""
    vectors = {name: indexing.params(size) for name, size in sizes.items()}
    words = {WORDS: models.SparseVectorParams(modifier=models.Modifier.IDF)}
    call(lambda: client.create_collection(collection, vectors_config=vectors, sparse_vectors_config=words))


def vector_params(client: QdrantClient, collection: str) -> dict[str, models.VectorParams]:
    """Return the named dense vectors of a collection."""
    found = call(lambda: client.get_collection(collection)).config.params.vectors
    return found if isinstance(found, dict) else {}


def vector_size(client: QdrantClient, collection: str, name: str) -> int | None:
    """Return the length of the vectors of that name; None if there are none that are compared by dot product."""
    params = vector_params(client, collection).get(name)
    return None if params is None or params.distance != models.Distance.DOT else params.size


def create_vectors(
    client: QdrantClient, collection: str, sizes: Mapping[str, int], indexing: QdrantIndexConfig
) -> None:
    """Add named vectors of those lengths to a collection; nothing where they are there.

    Raises:
        StoreError: There is another of that name, or the server cannot do it.
    """
    there = vector_params(client, collection)
    for name, size in sizes.items():
        _create_vectors(client, collection, name, there.get(name), size)
    wanted = {name: indexing.params(size) for name, size in sizes.items()}
    diffs = {
        name: models.VectorParamsDiff(hnsw_config=one.hnsw_config, quantization_config=one.quantization_config)
        for name, one in wanted.items()
        if one.hnsw_config is not None or one.quantization_config is not None
    }
    if diffs:
        call(lambda: client.update_collection(collection, vectors_config=diffs))


def _create_vectors(
    client: QdrantClient, collection: str, name: str, params: models.VectorParams | None, dim: int
) -> None:
    if params is None:
        dense = models.DenseVectorConfig(size=dim, distance=models.Distance.DOT)
        config = models.DenseVectorNameConfig(dense=dense)
        try:
            call(lambda: client.create_vector_name(collection, name, config, wait=True))
        except StoreError as error:
            raise StoreError(f"{error} {_NEEDED}") from error
    elif (params.size, params.distance) != (dim, models.Distance.DOT):
        found = f"{params.size} and {params.distance.value}"
        raise StoreError(f"{collection}: expected vectors {name} of size {dim} and distance Dot, found {found}.")


def create_words(client: QdrantClient, collection: str) -> None:
    """Add the sparse vectors of words to a collection; nothing where they are there.

    Raises:
        StoreError: There are others of that name, or the server cannot do it.
    """
    params = _sparse_params(client, collection).get(WORDS)
    if params is None:
        config = models.SparseVectorNameConfig(sparse=models.SparseVectorConfig(modifier=models.Modifier.IDF))
        try:
            call(lambda: client.create_vector_name(collection, WORDS, config, wait=True))
        except StoreError as error:
            raise StoreError(f"{error} {_NEEDED}") from error
    elif params.modifier != models.Modifier.IDF:
        raise StoreError(f"{collection}: expected sparse vectors {WORDS} with the modifier IDF, found others.")


def delete_words(client: QdrantClient, collection: str) -> None:
    """Remove the sparse vectors of words from a collection; nothing where there are none."""
    if WORDS in _sparse_params(client, collection):
        call(lambda: client.delete_vector_name(collection, WORDS, wait=True))


def _sparse_params(client: QdrantClient, collection: str) -> dict[str, models.SparseVectorParams]:
    return call(lambda: client.get_collection(collection)).config.params.sparse_vectors or {}


def delete_vectors(client: QdrantClient, collection: str, name: str) -> None:
    """Remove a named vector from a collection; nothing where there is none."""
    if name in vector_params(client, collection):
        call(lambda: client.delete_vector_name(collection, name, wait=True))
