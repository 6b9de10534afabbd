"""Conversion of records to payloads of points, and back.

    text, title, metadata      of the record; metadata as JSON text where it cannot be an object
    cde_id, cde_order          the record's id, and its position in the order of insertion, from 1 on
    cde_record                 checksum over these
    cde_metadata               checksum of the metadata; who compares it (metadata_paths.py); its exact JSON if Qdrant
                               would not return it unchanged
    cde_<fingerprint>          digest of the text embedded by the vector of this name, and a checksum over both

Other keys of a payload belong to other applications, and are kept.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.qdrant_base.metadata_paths import METADATA, compared, is_object, rounded
from cde_rag.stores.qdrant_base.points import Point

ID: Final = "cde_id"
ORDER: Final = "cde_order"
RECORD: Final = "cde_record"
FILTERS: Final = "cde_metadata.filters"
FORMER: Final = ("cde_tokens", "cde_numbers")  # that filters used before format 5
OURS: Final = frozenset({"text", "title", METADATA, ID, ORDER, RECORD, "cde_metadata", *FORMER})
_NAMES: Final = uuid.UUID("8a3f0c52-1d0b-4f6e-8f5d-6f0f3a1c9e24")  # namespace of the points' ids


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """Row with the digest of its vector in one generation.

    Attributes:
        point: Id of the point.
        order: Position in the order of insertion.
        row: The record, and the digest of its embedded text; "" if the generation has no vector of it.
    """

    point: str
    order: int
    row: Row


def point_id(id_: str) -> str | None:
    """Return the id of the point with that record; None if no record can have the id."""
    try:
        return str(uuid.uuid5(_NAMES, id_))
    except UnicodeEncodeError:  # a lone surrogate
        return None


def record_payload(record: Record, order: int) -> dict[str, Any]:
    """Return the payload of a record without its metadata."""
    checksum = _checksum_of(record.id, order, record.title, record.text)
    return {ID: record.id, ORDER: order, "title": record.title, "text": record.text, RECORD: checksum}


def metadata_payload(id_: str, metadata: str) -> dict[str, Any]:
    """Return the payload of a record's metadata, given as JSON by `encode`."""
    content, checksum = json.loads(metadata), _checksum_of(id_, _canonical(json.loads(metadata)))
    if not is_object(content):
        return {METADATA: metadata, "cde_metadata": {"checksum": checksum, "filters": "cde-rag"}}
    noted = {"checksum": checksum, "filters": compared(content)}
    exact = {} if noted["filters"] == "qdrant" else {"exact": metadata}
    return {METADATA: rounded(content), "cde_metadata": noted | exact}


def vector_payload(id_: str, name: str, digest: str, vector: Float32[np.ndarray, "dim"]) -> dict[str, Any]:
    """Return the payload of a record's vector: digest and checksum."""
    return {name: {"digest": digest, "checksum": vector_checksum(id_, name, digest, vector)}}


def vector_checksum(id_: str, name: str, digest: str, vector: Float32[np.ndarray, "dim"]) -> str:
    """Compute the checksum over the record's id, the vector's name, its digest and its bytes."""
    return _checksum_of(id_, name, digest, vector.astype("<f4").tobytes())


def read(point: Point, name: str, where: str) -> StoredPoint:
    """Read the row in a point, with the digest of its vector of that name, and verify its checksums.

    A record lacks its vector in the active generation if a writer's request arrived after another process had activated
    that generation, and the writer was killed then. Adding it again, or recontextualizing, repairs it.

    Raises:
        StoreFormatError: The point is damaged; `where` is for the message.
    """
    payload = point.payload or {}
    id_, order, title, text = (payload.get(key) for key in (ID, ORDER, "title", "text"))
    if not (isinstance(id_, str) and isinstance(order, int) and isinstance(title, str) and isinstance(text, str)):
        raise damaged(where, f"a record in point {point.id}, found none")
    if str(point.id) not in (point_id(id_), id_) or _checksum_of(id_, order, title, text) != payload.get(RECORD):
        raise damaged(where, f"record {id_!r:.80} with its checksum, found another")
    metadata = metadata_of(point, where)
    if _checksum_of(id_, _canonical(metadata)) != _noted(payload).get("checksum"):
        raise damaged(where, f"the metadata of record {id_!r:.80} with its checksum, found other")
    digest, _ = note(payload, name) or ("", "")
    return StoredPoint(str(point.id), order, Row(Record(id_, text, title, metadata), digest))


def metadata_of(point: Point, where: str) -> dict[str, Any]:
    """Return the metadata of a record's point, not verified.

    Raises:
        StoreFormatError: It is no JSON object; `where` is for the message.
    """
    payload = point.payload or {}
    stored = _noted(payload).get("exact", payload.get(METADATA))
    try:
        found: object = json.loads(stored) if isinstance(stored, str) else stored
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise damaged(where, f"the metadata of record {payload.get(ID)!r:.80}, found no JSON object")
    return cast(dict[str, Any], found)


def _noted(payload: Mapping[str, Any]) -> Mapping[str, object]:
    found = payload.get("cde_metadata")
    return cast(Mapping[str, object], found) if isinstance(found, Mapping) else {"checksum": found}  # before format 5


def is_record(point: Point | None) -> TypeGuard[Point]:
    """Return True if a point exists and holds a record, damaged or not; others may belong to other applications."""
    return point is not None and ID in (point.payload or {})


def note(payload: Mapping[str, Any], name: str) -> tuple[str, str] | None:
    """Digest and checksum that are noted of a vector; None where there is no such vector."""
    noted = payload.get(name)
    if not isinstance(noted, Mapping):
        return None
    digest, checksum = (cast(Mapping[str, object], noted).get(key) for key in ("digest", "checksum"))
    return (digest, checksum) if isinstance(digest, str) and isinstance(checksum, str) else None


def key_of(point: Point) -> tuple[str, object]:
    """Return the point's id and the checksum of its record, which changes if the record is replaced."""
    return str(point.id), (point.payload or {}).get(RECORD)


def place_of(point: Point, where: str) -> tuple[int, str]:
    """Return the sort key of the order of insertion: the position, and the point's id to break ties.

    Raises:
        StoreFormatError: It has no position; `where` is for the message.
    """
    order = (point.payload or {}).get(ORDER)
    if not isinstance(order, int):
        raise damaged(where, f"a whole number as {ORDER} of point {point.id}, found {order!r:.80}")
    return order, str(point.id)


def vector_of(point: Point, name: str) -> Float32[np.ndarray, "dim"] | None:
    """Return a point's vector of that name, or None."""
    vectors = point.vector
    found = cast(dict[str, Any], vectors).get(name) if isinstance(vectors, dict) else None
    return None if found is None else np.array(found, np.float32)


def checked_vector(point: Point, name: str, where: str) -> Float32[np.ndarray, "dim"]:
    """Return a point's vector of that name, verified by its checksum.

    Raises:
        StoreFormatError: It is missing or damaged; `where` is for the message.
    """
    payload = point.payload or {}
    id_, noted, vector = str(payload.get(ID)), note(payload, name), vector_of(point, name)
    if vector is None or noted is None or vector_checksum(id_, name, noted[0], vector) != noted[1]:
        raise damaged(where, f"the vector and digest of record {id_!r:.80}, found others")
    return vector


def damaged(where: str, what: str) -> StoreFormatError:
    """Return the error for damaged data."""
    return StoreFormatError(f"{where}: expected {what}. Restore a snapshot, or add it again.")


def _canonical(metadata: Mapping[str, Any]) -> str:
    """Serialise a JSON object for checksums with sorted keys, since Qdrant does not keep their order."""
    return json.dumps(metadata, ensure_ascii=False, allow_nan=False, sort_keys=True)


def _checksum_of(*parts: str | bytes | int) -> str:
    return checksum_of(*parts).hex()[:32]
