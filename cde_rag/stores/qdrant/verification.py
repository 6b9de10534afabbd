"""Reading every point of a store and comparing it with its checksums."""

import hashlib
from collections.abc import Iterator

from qdrant_client import QdrantClient, models

from cde_rag.errors import ContextError, StoreError, StoreFormatError
from cde_rag.stores.base import Damage
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import read_context
from cde_rag.stores.qdrant.fields import fields
from cde_rag.stores.qdrant.manifest import GenerationState, Manifest
from cde_rag.stores.qdrant.points import OURS, Points
from cde_rag.stores.qdrant.rows import ID, note, read, vector_checksum, vector_of
from cde_rag.stores.qdrant.space import vector_size


def find_damage(points: Points, manifest: Manifest) -> list[Damage]:
    """Everything that is not as it was written; reads the whole store. Points that are gone as a whole leave no trace.

    Raises:
        StoreError: The server was away, or refused it.
    """
    return [*_generations(points.client, points.collection, manifest), *_strays(points), *_points(points, manifest)]


def _generations(client: QdrantClient, collection: str, manifest: Manifest) -> Iterator[Damage]:
    for state in manifest.generations:
        where = f"generation {state.number}"
        try:
            found = hashlib.sha256(read_context(client, collection, state.fingerprint)).hexdigest()
            if found != state.context_sha256:
                yield Damage(
                    where, f"Expected a context with sha256 {state.context_sha256[:16]}…, found {found[:16]}…."
                )
        except ContextError as error:
            yield Damage(where, str(error))
        size = vector_size(client, collection, state.vector)
        if size != manifest.dim:
            yield Damage(where, f"Expected vectors {state.vector[:20]}… of {manifest.dim} dimensions, found {size}.")


def _strays(points: Points) -> Iterator[Damage]:
    """Points of ours that have lost their place and so are never found."""
    nobody = models.IsEmptyCondition(is_empty=models.PayloadField(key=ID))
    where = models.Filter(must_not=[OURS, nobody])
    count = call(lambda: points.client.count(points.collection, where, exact=True)).count
    if count:
        yield Damage(points.collection, f"Expected a place in the order for every record, found {count} without.")


def _points(points: Points, manifest: Manifest) -> Iterator[Damage]:
    try:
        for point in points.in_order(complete=True):
            yield from _point(point, points.collection, manifest)
    except StoreFormatError as error:
        yield Damage(points.collection, str(error))


def _point(point: models.Record, collection: str, manifest: Manifest) -> Iterator[Damage]:
    payload = point.payload or {}
    id_ = str(payload.get(ID))
    where = f"{collection}, record {id_!r:.80}"
    try:
        stored = read(point, manifest.serving.vector, collection)
    except StoreError as error:
        yield Damage(where, str(error))
        return
    for key, expected in fields(stored.row.record.metadata).items():
        if payload.get(key) != expected:
            yield Damage(where, f"Expected {key} as its metadata says, found other.")
    for state in manifest.generations:
        yield from _vector(point, id_, state, where)


def _vector(point: models.Record, id_: str, state: GenerationState, where: str) -> Iterator[Damage]:
    noted, vector = note(point.payload or {}, state.vector), vector_of(point, state.vector)
    if noted is None:  # what generations still lack is no damage
        return
    digest, checksum = noted
    if vector is None or vector_checksum(id_, state.vector, digest, vector) != checksum:
        found = "none" if vector is None else "another"
        yield Damage(f"{where}, generation {state.number}", f"Expected a vector with its checksum, found {found}.")
