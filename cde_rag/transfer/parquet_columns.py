"""The columns and the footer of an exported file."""

import base64
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.context.context import Context
from cde_rag.errors import require
from cde_rag.stores.base import Record, Row
from cde_rag.stores.checks import check_records, check_unit, encode
from cde_rag.stores.manifests import StoreManifest
from cde_rag.transfer.parquet_checksum import BLANK, checked_integrity, unreadable

EXTRA: Final = "files"
ROWS: Final = 4096  # of a row group, which is what is held in memory
FORMAT: Final = 1
_KEY: Final = "cde_rag"

Batch: TypeAlias = tuple[list[Row], Float32[np.ndarray, "rows dim"]]


@dataclass(frozen=True)
class Export:
    """An exported file whose integrity was checked.

    Attributes:
        path: Path of the file.
        integrity: Its digest, in hex.
        documents: Records in it.
        fingerprint: Names the vector space.
        dim: Length of a vector.
        settings: The collection's.
        context: The Context's bytes.
    """

    path: Path
    integrity: bytes
    documents: int
    fingerprint: str
    dim: int
    settings: dict[str, Any]
    context: bytes

    @classmethod
    def open(cls, path: Path) -> "Export":
        """Read the footer of a file, after a look at every byte.

        Raises:
            ContextFormatError: The Context in it is of a newer format.
            MissingExtraError: pyarrow is not installed.
            StoreError: It cannot be read.
            StoreFormatError: Truncated, changed, of a newer format, or no export.
        """
        parquet = require("pyarrow.parquet", EXTRA)
        integrity = checked_integrity(path)
        with _reading(path), parquet.ParquetFile(path) as file:
            fields: dict[str, Any] = json.loads(file.metadata.metadata[_KEY.encode()])
            if fields["format"] > FORMAT:
                raise unreadable(path, f"format {fields['format']}; update cde-rag to read it")
            context = base64.b64decode(fields["context"], validate=True)
            stated = {name: fields[name] for name in ("documents", "fingerprint", "dim", "settings")}
            export = cls(path=path, integrity=integrity, context=context, **stated)
            if file.schema_arrow != schema_of(export.dim):
                raise unreadable(path, f"other columns: {', '.join(file.schema_arrow.names)}")
        found = Context.from_bytes(context, where=f"The context in {path}").fingerprint
        if found != export.fingerprint:
            raise unreadable(path, f"vectors of {export.fingerprint[:16]}… beside a context of {found[:16]}…")
        return export

    def batches(self) -> Iterator[Batch]:
        """Yield rows with their vectors, checked one by one; at the end, check their number.

        Raises:
            StoreFormatError: A row is invalid, or rows are missing.
        """
        parquet, documents = require("pyarrow.parquet", EXTRA), 0
        with _reading(self.path), parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                if any(column.null_count for column in batch.columns):
                    raise unreadable(self.path, "a null")
                rows = [row_of(**values) for values in batch.drop_columns(["vector"]).to_pylist()]
                vectors: Any = batch.column("vector").flatten().to_numpy().reshape(-1, self.dim)
                check_unit(vectors, len(rows), self.dim)
                for _ in check_records(row.record for row in rows):
                    documents += 1
                yield rows, vectors
        if documents != self.documents:
            raise unreadable(self.path, f"{documents} records and not {self.documents}")


def schema_of(dim: int) -> Any:
    """Return the columns of a collection with vectors of length `dim`, as a `pyarrow.Schema`."""
    arrow = require("pyarrow", EXTRA)
    strings = ("id", "title", "text", "metadata", "digest")
    vector = arrow.field(
        "vector", arrow.list_(arrow.field("element", arrow.float32(), nullable=False), dim), nullable=False
    )
    return arrow.schema([*(arrow.field(name, arrow.string(), nullable=False) for name in strings), vector])


def table(rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"]) -> Any:
    """Convert rows and vectors to a `pyarrow.Table`."""
    arrow, records = require("pyarrow", EXTRA), [row.record for row in rows]
    schema = schema_of(vectors.shape[1])
    columns = (
        [record.id for record in records],
        [record.title for record in records],
        [record.text for record in records],
        [encode(record.metadata, f"Record {record.id!a:.80}") for record in records],
        [row.digest for row in rows],
    )
    flat = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), type=schema.field("vector").type)
    return arrow.Table.from_arrays([*(arrow.array(column, arrow.string()) for column in columns), flat], schema=schema)


def footer(manifest: StoreManifest, context: bytes, documents: int) -> dict[str, str]:
    """Return the footer's metadata of a collection, with a blank in place of the integrity."""
    fields = {
        "integrity": BLANK,
        "format": FORMAT,
        "documents": documents,
        "fingerprint": manifest.fingerprint,
        "dim": manifest.dim,
        "settings": dict(manifest.settings),
        "context": base64.b64encode(context).decode(),
    }
    return {_KEY: json.dumps(fields, separators=(",", ":"))}


def row_of(*, id: str, title: str, text: str, metadata: str, digest: str) -> Row:  # noqa: A002 -- a column's name
    """Return the row of a file's columns; TypeError for metadata that is no JSON object."""
    found: object = json.loads(metadata)
    if not isinstance(found, dict):
        raise TypeError(f"record {id!r:.80} has metadata that is no JSON object")
    return Row(Record(id, text, title, cast(dict[str, Any], found)), digest)


@contextmanager
def _reading(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except (ValueError, TypeError, LookupError, OSError) as error:  # as pyarrow's and our CorpusError are
        raise unreadable(path, f"what it cannot be: {error}") from error
