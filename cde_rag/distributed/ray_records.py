"""Records as Arrow tables: the rows that go from one Ray task to another.

The columns are `id`, `title`, `text`, `metadata` (JSON), `position` in the dataset, `bucket`, and `passages`, the
number of passages of the record's document; null for a record that is no passage of a text document.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from cde_rag._files import user_path
from cde_rag.context.sampling import sample_random
from cde_rag.embedders.contextual import as_model
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, require
from cde_rag.indexing.headers import with_headers
from cde_rag.indexing.replacement import DocumentRecords
from cde_rag.readers import Fields, ReadingRules, RecordReader
from cde_rag.readers.columns import UnusableError
from cde_rag.readers.passages import document_of
from cde_rag.readers.tables import arrow_rows
from cde_rag.readers.tables import records as found_records
from cde_rag.records import Record, embedded_text, encode, parent_of

EXTRA: Final = "ray"
POSITION: Final = "__cde_rag_position"  # column of a dataset's rows
RECORD: Final = "__cde_rag_record"  # column of records in JSON
PASSAGES: Final = "__cde_rag_passages"  # column beside it: as `passages` of a record table
_ROWS: Final = 1024  # records of one block that is read


def records_of(table: Any, fields: Fields) -> Iterator[Record]:
    """Yield the records of a dataset's rows.

    Args:
        table: A `pyarrow.Table`; its column POSITION is passed over. With a column RECORD, as of `read_sources`, each
            row is a record already.
        fields: Columns of id, text, title and parent; every other column is metadata.

    Raises:
        CorpusError: A row is no usable record.
    """
    if RECORD in table.column_names:
        yield from (Record(**json.loads(value)) for value in table.column(RECORD).to_pylist())
        return
    columns = table.drop_columns([POSITION]) if POSITION in table.column_names else table
    rows = arrow_rows(columns.to_batches(), "the dataset", fields)
    for place, (where, found) in enumerate(found_records(rows, fields)):
        if isinstance(found, UnusableError):
            text = columns.column(fields.text)[place].as_py() if fields.text in columns.column_names else None
            row = "" if text is None else f", {text!r:.60}"  # Ray keeps no positions in files
            raise CorpusError(f"{where} of a block{row}: {found}.")
        yield found


def read_sources(
    sources: Sequence[str],
    fields: Fields,
    *,
    max_line_bytes: int,
    max_characters: int | None = None,
    reading: ReadingRules | None = None,
    model: str | None = None,
    kept_fields: Fields | None = None,
    roots: Iterable[Path] = (),
) -> Any:
    """Return a `ray.data.Dataset` of the records in files and folders; each source is read by one task.

    Args:
        sources: As of `RecordReader`, at the same path on every machine.
        fields: As of `RecordReader`.
        max_line_bytes: As of `RecordReader`.
        max_characters: As of `RecordReader`.
        reading: As of `RecordReader`; that of new collections by default.
        model: Name or folder of the model whose tokens are counted; by default cde-mini.
        kept_fields: As of `RecordReader`.
        roots: As of `RecordReader`, besides the folders among the sources.

    Raises:
        CorpusError: Here, if a source does not exist; in tasks, if one cannot be read, or holds a bad record.
    """
    read = _ReadSource(fields, max_characters, reading, model, max_line_bytes, kept_fields, frozenset(roots))
    together = read.reader(*sources)
    if max_characters is None:  # source code is read of all sources, or of none
        read = replace(read, reading=together.decided)
    read = replace(read, roots=together.roots)
    files = require("ray.data", EXTRA).from_items(
        [{"source": str(user_path(source))} for source in sources], override_num_blocks=len(sources)
    )
    return files.map_batches(read, batch_format="pyarrow", batch_size=1)


@dataclass(frozen=True)
class _ReadSource:
    """Reads the records of one source.

    Attributes:
        fields: As of `RecordReader`.
        max_characters: As of `RecordReader`.
        reading: As of `RecordReader`.
        model: Name or folder of the model whose tokens are counted.
        max_line_bytes: As of `RecordReader`.
        kept_fields: As of `RecordReader`.
        roots: As of `RecordReader`.
    """

    fields: Fields
    max_characters: int | None
    reading: ReadingRules | None
    model: str | None
    max_line_bytes: int
    kept_fields: Fields | None
    roots: frozenset[Path]

    def reader(self, *sources: str) -> RecordReader:
        """Return the reader of some sources."""
        reader = RecordReader(
            *sources,
            fields=self.fields,
            max_characters=self.max_characters,
            max_line_bytes=self.max_line_bytes,
            reading=self.reading,
        )
        reader.roots |= self.roots
        reader.kept_fields = self.kept_fields
        return reader

    def __call__(self, table: Any) -> Iterator[Any]:
        """Yield tables with the columns RECORD and PASSAGES; raises as `RecordReader`."""
        arrow = require("pyarrow", EXTRA)
        for source in table.column("source").to_pylist():
            reader = self.reader(source)
            if self.model is not None:
                model = as_model(self.model)
                reader.count_tokens_of(model)
            records = iter(reader)
            while part := list(islice(records, _ROWS)):
                passages = [reader.documents.get(document_of(record) or "") for record in part]
                yield arrow.table(
                    {
                        RECORD: [json.dumps(asdict(record)) for record in part],
                        PASSAGES: arrow.array(passages, arrow.int64()),
                    }
                )


@dataclass(frozen=True)
class ToRecordTable:
    """Converts rows of a dataset to rows of a record table.

    Attributes:
        fields: Columns of the dataset.
        buckets: Number of buckets.
    """

    fields: Fields
    buckets: int

    def __call__(self, table: Any) -> Any:
        """Convert a `pyarrow.Table`; raises as `records_of`."""
        arrow = require("pyarrow", EXTRA)
        records = list(records_of(table, self.fields))
        columns = {
            "id": [record.id for record in records],
            "title": [record.title for record in records],
            "text": [record.text for record in records],
            "metadata": [encode(record.metadata, f"Record {record.id!a:.80}") for record in records],
        }
        buckets = [_bucket_of(record, self.fields.parent, self.buckets) for record in records]
        read = PASSAGES in table.column_names
        return arrow.table(
            {name: arrow.array(column, arrow.string()) for name, column in columns.items()}
            | {
                "position": table.column(POSITION),
                "bucket": arrow.array(buckets, arrow.int64()),
                "passages": table.column(PASSAGES) if read else arrow.nulls(len(records), arrow.int64()),
            }
        )


@dataclass(frozen=True)
class DrawSample:
    """Draws the sample of a block's texts, as they are embedded.

    Attributes:
        fields: Columns of the dataset.
        headers: Headers of the collection.
        embedder: Counts the tokens of headers; None without headers.
        size: Context documents wanted.
        seed: Random seed of the sample.
    """

    fields: Fields
    headers: list[str]
    embedder: Embedder | None
    size: int
    seed: int

    def __call__(self, table: Any) -> Any:
        """Return a table of one row, `documents` and `documents_seen`; raises as `records_of`."""
        records: Iterable[Record] = records_of(table, self.fields)
        if self.embedder is not None:
            records = with_headers(records, {"headers": self.headers}, self.embedder)
        sample = sample_random((embedded_text(record) for record in records), self.size, seed=self.seed)
        arrow = require("pyarrow", EXTRA)
        return arrow.table({"documents": [sample.documents], "documents_seen": [sample.documents_seen]})


def _bucket_of(record: Record, parent_key: str | None, buckets: int) -> int:
    """Return the bucket of a record: of its parent, else of the document that it is a passage of, else of its id."""
    parent = parent_of(record, parent_key)
    key = f"id {document_of(record) or record.id}" if parent is None else f"parent {json.dumps(parent)}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % buckets


def in_order(table: Any) -> DocumentRecords:
    """Return the records of a record table by position."""
    rows = table.sort_by("position").select(["id", "title", "text", "metadata", "passages"]).to_pylist()
    records = [Record(row["id"], row["text"], row["title"], json.loads(row["metadata"])) for row in rows]
    counts = [(document_of(record), row["passages"]) for record, row in zip(records, rows, strict=True)]
    return DocumentRecords(records, {name: count for name, count in counts if name is not None and count is not None})
