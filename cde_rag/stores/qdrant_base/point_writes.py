"""Write operations of a store on its points."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.records import Record, encode
from cde_rag.stores.qdrant_base.manifest import PointsGeneration, PointsManifest, full_name
from cde_rag.stores.qdrant_base.metadata_paths import METADATA, index_kinds
from cde_rag.stores.qdrant_base.payload import (
    ID,
    OURS,
    RECORD,
    is_record,
    metadata_payload,
    note,
    read,
    record_payload,
    vector_payload,
)
from cde_rag.stores.qdrant_base.points import DerivedData, NewPoint, NewVector, Point, Points
from cde_rag.stores.qdrant_base.words import WORDS, named_weights, weights

_AT_ONCE: Final = 512  # records whose derived data are written together


def new_points(
    points: Points,
    manifest: PointsManifest,
    records: Sequence[tuple[Record, str]],
    digests: Sequence[str],
    vectors: Float32[np.ndarray, "rows dim"] | None,
) -> list[NewPoint]:
    """Return the points of records, given with their metadata in JSON, for `put_points`.

    A point is written completely, with the parts of the old one that stay valid: its position, its vectors in other
    generations if they were made from the same digest, and data of other applications.
    """
    ids = [str(points.point_id(record.id)) for record, _ in records]
    old = points.retrieve(ids, vectors=True)
    new: Iterator[int] | None = None
    made: list[NewPoint] = []
    analyzer = manifest.analyzer
    given = itertools.repeat(None, len(ids)) if vectors is None else vectors
    for (record, metadata), id_, digest, vector in zip(records, ids, digests, given, strict=True):
        was = old.get(id_)
        if is_record(was):
            order = read(was, manifest.serving.vector, points.place).order
        else:
            new = new or itertools.count(points.last_order() + 1)
            order = next(new)
        payload, kept = ({}, {}) if was is None else _kept(was, manifest, digest)
        payload |= record_payload(record, order) | metadata_payload(record.id, metadata)
        words = named_weights(record, analyzer) if manifest.words else {}
        named = dict[str, Any]()
        if vector is not None:
            payload |= vector_payload(record.id, manifest.serving.vector, digest, vector)
            named = manifest.named(manifest.serving, vector)
        made.append(NewPoint(id_, payload, kept | named | words))
    return made


def put_points(points: Points, made: Sequence[NewPoint]) -> None:
    """Upsert points that `new_points` made."""
    _index_metadata(points, [new.payload for new in made])
    points.upsert(made)


def put_metadata(points: Points, metadata: Mapping[str, str]) -> None:
    """Replace the metadata, given in JSON, of records.

    Raises:
        KeyError: An id is unknown.
    """
    ids = list(metadata)
    missing = [id_ for id_, point in zip(ids, records_of(points, ids), strict=True) if point is None]
    if missing:
        raise KeyError(f"Expected ids of stored records, found {len(missing)} others, such as {missing[0]!r:.80}.")
    payloads = {str(points.point_id(id_)): metadata_payload(id_, new) for id_, new in metadata.items()}
    _index_metadata(points, payloads.values())
    points.set_payloads(payloads)


def _index_metadata(points: Points, payloads: Iterable[Mapping[str, Any]]) -> None:
    """Create the payload indexes that filters of these payloads need."""
    points.index(index_kinds((payload[METADATA] for payload in payloads), points.metadata_key))


def put_derived(points: Points, manifest: PointsManifest, found: Iterable[Point]) -> None:
    """Rewrite the data derived from records: words, and metadata as filters read it.

    A record that another process replaces meanwhile keeps the data of its new text and metadata.

    Args:
        points: Points of the store.
        manifest: Names the active generation and the analyzer.
        found: Points of records.
    """
    each = iter(found)
    while some := list(itertools.islice(each, _AT_ONCE)):
        records = [read(point, manifest.serving.vector, points.place).row.record for point in some]
        metadata = [metadata_payload(record.id, encode(record.metadata, record.id)) for record in records]
        _index_metadata(points, metadata)
        points.set_derived(
            [
                DerivedData(
                    str(point.id),
                    str((point.payload or {})[RECORD]),
                    payload["cde_metadata"]["checksum"],
                    {} if payload.items() <= (point.payload or {}).items() else payload,
                    weights(record, manifest.analyzer),
                )
                for point, record, payload in zip(some, records, metadata, strict=True)
            ]
        )


def put_vectors(
    points: Points,
    manifest: PointsManifest,
    state: PointsGeneration,
    found: Sequence[Point],
    digests: Sequence[str],
    vectors: Float32[np.ndarray, "rows dim"],
) -> int:
    """Give records their vectors in a generation, if they are as they were read.

    Args:
        points: Points of the store.
        manifest: Names the active generation.
        state: The generation; of the active one, the records have no vectors.
        found: Points of the records, as they were read.
        digests: Digests of the texts embedded for this generation.
        vectors: One per record.

    Returns:
        Number of the vectors that are there now.
    """
    active, made = manifest.serving.vector, list[NewVector]()
    for point, digest, vector in zip(found, digests, vectors, strict=True):
        there = point.payload or {}
        noted, before = note(there, active), note(there, state.vector)
        payload = vector_payload(str(there[ID]), state.vector, digest, vector)
        checksum, replaced = (None if one is None else one[1] for one in (noted, before))
        named = manifest.named(state, vector)
        made.append(NewVector(str(point.id), named, payload, active, checksum, str(there.get(RECORD)), replaced))
    points.set_vectors(made)
    written = points.retrieve([new.point for new in made])
    return sum(
        (written[new.point].payload or {}).get(state.vector) == new.noted[state.vector]
        for new in made
        if new.point in written
    )


def records_of(points: Points, ids: Sequence[str], *, vectors: list[str] | bool = False) -> list[Point | None]:
    """Return the points of records, in the order of the ids; None for unknown ids."""
    wanted = [points.point_id(id_) for id_ in ids]
    found = points.retrieve(sorted({id_ for id_ in wanted if id_ is not None}), vectors=vectors)
    return [point if is_record(point := found.get(str(id_))) else None for id_ in wanted]


def _kept(was: Point, manifest: PointsManifest, digest: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a point that stay valid when its record is replaced: payload and vectors."""
    payload = was.payload or {}
    found = was.vector
    vectors = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    if isinstance(found, list):
        vectors = {"": cast(list[float], found)}
    ours = {state.vector for state in manifest.generations}
    noted = {key for key in payload if full_name(key) == key and note(payload, key)}
    kept = {name for name in noted & ours if (note(payload, name) or ("",))[0] == digest} - {manifest.serving.vector}
    gone = (ours | noted) - kept  # also in a generation that another process began since the manifest was read
    return (
        {key: value for key, value in payload.items() if key not in OURS | gone},
        {name: vector for name, vector in vectors.items() if name != WORDS and (full_name(name) or name) not in gone},
    )
