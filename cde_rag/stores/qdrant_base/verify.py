"""Comparing every point of a store with its checksums."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.records import encode
from cde_rag.stores.base import Damage
from cde_rag.stores.qdrant_base.manifest import PointsGeneration, PointsManifest
from cde_rag.stores.qdrant_base.metadata_paths import METADATA
from cde_rag.stores.qdrant_base.payload import ID, metadata_payload, note, read, vector_checksum, vector_of
from cde_rag.stores.qdrant_base.points import Point, Points
from cde_rag.stores.qdrant_base.words import is_as_written

_SAME: Final = 1e-6  # largest difference of a stored prefix from the one computed again


def damaged_points(points: Points, manifest: PointsManifest) -> Iterator[Damage]:
    """Yield the damage of the store's points."""
    try:
        for point in points.in_order(complete=True):
            yield from _point(point, points.place, manifest)
    except StoreFormatError as error:
        yield Damage(points.place, str(error))


def _point(point: Point, place: str, manifest: PointsManifest) -> Iterator[Damage]:
    payload = point.payload or {}
    id_ = str(payload.get(ID))
    where = f"{place}, record {id_!r:.80}"
    try:
        stored = read(point, manifest.serving.vector, place)
    except StoreError as error:
        yield Damage(where, str(error))
        return
    metadata = metadata_payload(id_, encode(stored.row.record.metadata, where))
    if metadata["cde_metadata"]["filters"] == "cde-rag":  # the object may be an approximation
        del metadata[METADATA]
    if manifest.native and metadata != {key: payload.get(key) for key in metadata}:
        yield Damage(where, "Expected metadata that filters find, found other. Mend it: cde-rag reindex.")
    if manifest.words and not is_as_written(point.vector, stored.row.record, manifest.analyzer):
        yield Damage(
            where,
            "Expected the words of its text, found others. Mend them: cde-rag reindex.",
        )
    for state in manifest.generations:
        yield from _vector(point, id_, state, manifest, where)


def _vector(point: Point, id_: str, state: PointsGeneration, manifest: PointsManifest, where: str) -> Iterator[Damage]:
    noted, vector = note(point.payload or {}, state.vector), vector_of(point, state.vector)
    if noted is None and (state is not manifest.serving or manifest.may_wait):  # what is still to come is no damage
        return
    if noted is None:
        yield Damage(where, "Expected a vector in the active generation, found none. Add it again, or recontextualize.")
        return
    digest, checksum = noted
    if vector is None or vector_checksum(id_, state.vector, digest, vector) != checksum:
        found = "none" if vector is None else "another"
        yield Damage(f"{where}, generation {state.number}", f"Expected a vector with its checksum, found {found}.")
        return
    for name, values in manifest.named(state, vector).items():
        there = vector_of(point, name)
        if there is None or not np.allclose(there, values, rtol=0, atol=_SAME):
            found = "none" if there is None else "another"
            yield Damage(f"{where}, generation {state.number}", f"Expected the prefix of its vector, found {found}.")
