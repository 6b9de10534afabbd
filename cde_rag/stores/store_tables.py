"""Tables of a store: records, vectors and blobs as bytes with checksums, inside one transaction.

blobs      name → bytes: the manifest, and a Context for each generation
records    id → bytes: title, text and metadata, in order of insertion
vectors    generation, id → the digest and the bytes of a vector
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import StoreFormatError
from cde_rag.stores.base import Record
from cde_rag.stores.checks import checksum_of


class RecordRow(NamedTuple):
    """A record as a table keeps it.

    Attributes:
        place: Ascends in order of insertion; stays when the record is replaced.
        id: The record's id.
        data: Opaque bytes.
    """

    place: int
    id: str
    data: bytes


class VectorRow(NamedTuple):
    """A vector as a table keeps it; both parts are opaque."""

    digest: str
    data: bytes


@runtime_checkable
class Tables(Protocol):
    """The tables of a store, inside one transaction."""

    def blob(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None."""
        ...

    def put_blob(self, name: str, data: bytes | None) -> None:
        """Write or replace the bytes of a name; None removes them."""
        ...

    def records(self, ids: Sequence[str]) -> dict[str, RecordRow]:
        """Return the records of those ids that exist."""
        ...

    def scan(self, after: int, limit: int) -> list[RecordRow]:
        """Return up to `limit` records whose place is above `after`, in order of place; the first place is above 0."""
        ...

    def put_records(self, records: Mapping[str, bytes]) -> None:
        """Append records, or replace the data of those that exist, which keep their place."""
        ...

    def delete_records(self, ids: Sequence[str]) -> None:
        """Remove records, and their vectors of all generations."""
        ...

    def vectors(self, generation: int, ids: Sequence[str] | None = None) -> dict[str, VectorRow]:
        """Return the vectors of a generation by id: those that exist of the given ids, or all."""
        ...

    def put_vectors(self, generation: int, vectors: Mapping[str, VectorRow]) -> None:
        """Write or replace vectors of a generation."""
        ...

    def delete_vectors(self, generation: int, ids: Sequence[str] | None = None) -> None:
        """Remove vectors of a generation: those of the given ids, or all."""
        ...


def pack_record(record: Record) -> bytes:
    """Return the bytes of a record, with their checksum first."""
    body = json.dumps([record.title, record.text, dict(record.metadata)], ensure_ascii=False).encode()
    return checksum_of(record.id, body) + body


def read_record(stored: RecordRow) -> Record:
    """Return the record of a row.

    Raises:
        StoreFormatError: The bytes are not those that were written.
    """
    body = stored.data[32:]
    if checksum_of(stored.id, body) != stored.data[:32]:
        raise StoreFormatError(f"Record {stored.id!a:.80}: expected it as it was written, found other bytes.")
    title, text, metadata = json.loads(body)
    return Record(stored.id, text, title, metadata)


def pack_vectors(digests: Mapping[str, str], vectors: Float32[np.ndarray, "rows dim"]) -> dict[str, VectorRow]:
    """Return rows of vectors, which are in the order of `digests`, with their checksums."""
    rows: dict[str, VectorRow] = {}
    for (id_, digest), vector in zip(digests.items(), vectors, strict=True):
        body = np.ascontiguousarray(vector, "<f4").tobytes()
        rows[id_] = VectorRow(digest, checksum_of(id_, digest, body) + body)
    return rows


def read_vector(stored: VectorRow, id_: str) -> Float32[np.ndarray, " dim"]:
    """Return the vector of a row.

    Raises:
        StoreFormatError: The bytes are not those that were written.
    """
    body = stored.data[32:]
    if checksum_of(id_, stored.digest, body) != stored.data[:32]:
        raise StoreFormatError(f"Vector of {id_!a:.80}: expected it as it was written, found other bytes.")
    return np.frombuffer(body, "<f4")
