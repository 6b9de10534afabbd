"""Columns, footer and checksum of an exported file."""

import base64
import hashlib
import json
import mmap
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.context.context import Context
from cde_rag.errors import StoreError, StoreFormatError, require
from cde_rag.records import Record, Row, encode
from cde_rag.stores.checks import check_records, check_unit
from cde_rag.stores.manifests import StoreManifest

EXTRA: Final = "files"
ROWS: Final = 4096  # of a row group, which is what is held in memory
FORMAT: Final = 2  # format 1 has a checksum of the bytes of the file
COLUMNS: Final = ("id", "title", "text", "metadata", "digest")  # strings; then `vector`
_KEY: Final = "cde_rag"
_CHANGED: Final = "contents that were changed: their sha256 is another"

Batch: TypeAlias = tuple[list[Row], Float32[np.ndarray, "rows dim"]]


class Checksum:
    """The sha256 of rows in their order, then of the footer.

    Row groups, compression and encodings do not enter: a tool that keeps the footer's key may write the file anew.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, columns: Sequence[Sequence[str]], vectors: Float32[np.ndarray, "rows dim"]) -> None:
        """Add rows: the columns of strings, and the vectors."""
        for strings, vector in zip(zip(*columns, strict=True), vectors.astype("<f4", copy=False), strict=True):
            self._digest.update(json.dumps(strings).encode())
            self._digest.update(vector.tobytes())

    def of(self, fields: Mapping[str, Any]) -> str:
        """Return the checksum, in hex, of the rows and the footer's fields."""
        self._digest.update(json.dumps({**fields, "integrity": ""}, sort_keys=True).encode())
        return self._digest.hexdigest()


@dataclass(frozen=True)
class Export:
    """An exported file. Its checksum is verified by the end of `batches`.

    Attributes:
        path: Path of the file.
        fields: The footer as it is written.
        integrity: Its checksum, in hex.
        documents: Records in it.
        fingerprint: Names the vector space.
        dim: Length of a vector.
        settings: The collection's.
        context: The Context's bytes.
    """

    path: Path
    fields: dict[str, Any]
    integrity: str
    documents: int
    fingerprint: str
    dim: int
    settings: dict[str, Any]
    context: bytes

    @classmethod
    def open(cls, path: Path) -> "Export":
        """Read the footer of a file.

        Raises:
            ContextFormatError: The Context in it is damaged, or of a newer format.
            MissingExtraError: pyarrow is not installed.
            StoreError: It cannot be read.
            StoreFormatError: Truncated, changed, of a newer format, or no export.
        """
        parquet = require("pyarrow.parquet", EXTRA)
        if path.is_dir():
            raise StoreFormatError(
                f"{path}: expected a file that cde-rag export wrote, found a folder. cde-rag restore reads backups."
            )
        with _reading(path), parquet.ParquetFile(path) as file:
            fields: dict[str, Any] = json.loads(file.metadata.metadata[_KEY.encode()])
            if fields["format"] > FORMAT:
                raise unreadable(path, f"format {fields['format']}; update cde-rag to read it")
            if fields["format"] == 1 and fields["integrity"] != _checksum_of_file(path, fields["integrity"]):
                raise unreadable(path, _CHANGED)
            context = base64.b64decode(fields["context"], validate=True)
            stated = {name: fields[name] for name in ("integrity", "documents", "fingerprint", "dim", "settings")}
            export = cls(path=path, fields=fields, context=context, **stated)
            if file.schema_arrow != schema_of(export.dim):
                raise unreadable(path, f"other columns: {', '.join(file.schema_arrow.names)}")
        found = Context.from_bytes(context, where=f"The context in {path}").fingerprint
        if found != export.fingerprint:
            raise unreadable(path, f"vectors of {export.fingerprint[:16]}… next to a context of {found[:16]}…")
        return export

    def batches(self) -> Iterator[Batch]:
        """Yield rows with their vectors, checked one by one; at the end, check their number and the checksum.

        Raises:
            StoreFormatError: A row is invalid, or the contents are not those that were exported.
        """
        parquet, documents, checksum = require("pyarrow.parquet", EXTRA), 0, Checksum()
        with _reading(self.path), parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                if any(column.null_count for column in batch.columns):
                    raise unreadable(self.path, "a null")
                strings: list[list[str]] = [batch.column(name).to_pylist() for name in COLUMNS]
                rows = [row_of(*values) for values in zip(*strings, strict=True)]
                vectors: Any = batch.column("vector").flatten().to_numpy().reshape(-1, self.dim)
                checksum.add(strings, vectors)
                check_unit(vectors, len(rows), self.dim)
                for _ in check_records(row.record for row in rows):
                    documents += 1
                yield rows, vectors
        if documents != self.documents:
            raise unreadable(self.path, f"{documents} records and not {self.documents}")
        if self.fields["format"] > 1 and checksum.of(self.fields) != self.integrity:
            raise unreadable(self.path, _CHANGED)


def schema_of(dim: int) -> Any:
    """Return the columns of a collection with vectors of length `dim`, as a `pyarrow.Schema`."""
    arrow = require("pyarrow", EXTRA)
    vector = arrow.field(
        "vector", arrow.list_(arrow.field("element", arrow.float32(), nullable=False), dim), nullable=False
    )
    return arrow.schema([*(arrow.field(name, arrow.string(), nullable=False) for name in COLUMNS), vector])


def columns_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return the columns of strings."""
    records = [row.record for row in rows]
    return [
        [record.id for record in records],
        [record.title for record in records],
        [record.text for record in records],
        [encode(record.metadata, f"Record {record.id!a:.80}") for record in records],
        [row.digest for row in rows],
    ]


def table(columns: Sequence[Sequence[str]], vectors: Float32[np.ndarray, "rows dim"]) -> Any:
    """Convert columns and vectors to a `pyarrow.Table`."""
    arrow, schema = require("pyarrow", EXTRA), schema_of(vectors.shape[1])
    flat = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), type=schema.field("vector").type)
    return arrow.Table.from_arrays([*(arrow.array(column, arrow.string()) for column in columns), flat], schema=schema)


def footer(manifest: StoreManifest, context: bytes, documents: int, checksum: Checksum) -> dict[str, str]:
    """Return the footer's metadata of a collection whose rows were added to the checksum."""
    fields = {
        "integrity": "",
        "format": FORMAT,
        "documents": documents,
        "fingerprint": manifest.fingerprint,
        "dim": manifest.dim,
        "settings": dict(manifest.settings),
        "context": base64.b64encode(context).decode(),
    }
    return {_KEY: json.dumps({**fields, "integrity": checksum.of(fields)}, separators=(",", ":"))}


def unreadable(path: Path, found: str) -> StoreFormatError:
    """Return the error for a damaged export."""
    return StoreFormatError(f"{path}: expected an intact export of a collection, found {found}. Restore a copy.")


def row_of(id: str, title: str, text: str, metadata: str, digest: str) -> Row:  # noqa: A002 -- a column's name
    """Return the row of a file's columns; TypeError for metadata that is no JSON object."""
    found: object = json.loads(metadata)
    if not isinstance(found, dict):
        raise TypeError(f"record {id!r:.80} has metadata that is no JSON object")
    return Row(Record(id, text, title, cast(dict[str, Any], found)), digest)


def _checksum_of_file(path: Path, stated: str) -> str:
    """Compute the checksum of format 1: of the bytes of the file, with zeros in place of the checksum."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.rfind(stated.encode())
        digest = hashlib.sha256(memoryview(data)[:place])
        digest.update(b"0" * len(stated))
        digest.update(memoryview(data)[place + len(stated) :])
    return digest.hexdigest()


@contextmanager
def _reading(path: Path) -> Generator[None, None, None]:
    arrow = require("pyarrow", EXTRA)
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{path}: not readable ({error.strerror}).") from error
    except (ValueError, TypeError, LookupError, OSError, MemoryError, arrow.ArrowException) as error:
        raise unreadable(path, f"impossible values: {error!s:.200}") from error
