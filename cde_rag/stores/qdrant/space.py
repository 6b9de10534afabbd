"""Named vectors of a collection: making, removing and looking at them."""

from qdrant_client import QdrantClient, models

from cde_rag.errors import StoreError
from cde_rag.stores.qdrant.calls import call

_NEEDED = "Named vectors are added to a collection by servers from Qdrant 1.18 on."


def create_collection(client: QdrantClient, collection: str, name: str, dim: int) -> None:
    """Make a collection with vectors of that name. Dot products leave them as they were given."""
    vectors = {name: models.VectorParams(size=dim, distance=models.Distance.DOT)}
    call(lambda: client.create_collection(collection, vectors_config=vectors))


def vector_params(client: QdrantClient, collection: str) -> dict[str, models.VectorParams]:
    """The named dense vectors of a collection."""
    found = call(lambda: client.get_collection(collection)).config.params.vectors
    return found if isinstance(found, dict) else {}


def vector_size(client: QdrantClient, collection: str, name: str) -> int | None:
    """How long the vectors of that name are; None where there are none, or none that are compared by dot product."""
    params = vector_params(client, collection).get(name)
    return None if params is None or params.distance != models.Distance.DOT else params.size


def create_vectors(client: QdrantClient, collection: str, name: str, dim: int) -> None:
    """Add a named vector to a collection; nothing where it is there.

    Raises:
        StoreError: There is another of that name, or the server cannot do it.
    """
    params = vector_params(client, collection).get(name)
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


def delete_vectors(client: QdrantClient, collection: str, name: str) -> None:
    """Remove a named vector from a collection; nothing where there is none."""
    if name in vector_params(client, collection):
        call(lambda: client.delete_vector_name(collection, name, wait=True))
