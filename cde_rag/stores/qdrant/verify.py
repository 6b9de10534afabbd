"""Reading every point of a store and comparing it with its checksums."""

import hashlib
from collections.abc import Iterator

from qdrant_client import QdrantClient, models

from cde_rag.errors import ContextError
from cde_rag.stores.base import Damage
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import read_context
from cde_rag.stores.qdrant.index import vector_size
from cde_rag.stores.qdrant.tables import OURS, ClientPoints
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.payload import ID
from cde_rag.stores.qdrant_base.verify import damaged_points


def find_damage(points: ClientPoints, manifest: PointsManifest) -> list[Damage]:
    """Read the complete store and return all damage. Points that were deleted leave no trace.

    Raises:
        StoreError: The server was unavailable, or refused a request.
    """
    return [
        *_generations(points.client, points.collection, manifest),
        *_strays(points),
        *damaged_points(points, manifest),
    ]


def _generations(client: QdrantClient, collection: str, manifest: PointsManifest) -> Iterator[Damage]:
    for state in manifest.generations:
        where = f"generation {state.number}"
        try:
            found = hashlib.sha256(read_context(client, collection, state.key)).hexdigest()
            if found != state.context_sha256:
                yield Damage(
                    where, f"Expected a context with sha256 {state.context_sha256[:16]}…, found {found[:16]}…."
                )
        except ContextError as error:
            yield Damage(where, str(error))
        for name, wanted in manifest.sizes(state.key).items():
            size = vector_size(client, collection, name)
            if size != wanted:
                yield Damage(where, f"Expected vectors {name[:20]}… of {wanted} dimensions, found {size}.")


def _strays(points: ClientPoints) -> Iterator[Damage]:
    """Yield damage if points of the store have lost their position, and so are never found."""
    nobody = models.IsEmptyCondition(is_empty=models.PayloadField(key=ID))
    where = models.Filter(must_not=[OURS, nobody])
    count = call(lambda: points.client.count(points.collection, where, exact=True)).count
    if count:
        yield Damage(points.collection, f"Expected a place in the order for every record, found {count} without.")
