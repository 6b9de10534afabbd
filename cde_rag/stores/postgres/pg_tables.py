"""Rows of a collection's tables, read and written inside one transaction."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import CorpusError, StoreFormatError
from cde_rag.stores.base import Record, Row
from cde_rag.stores.checks import checksum_of, encodable_ids
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import Condition, Dialect, Element, flatten
from cde_rag.stores.manifests import GenerationRow, StoredManifest
from cde_rag.stores.postgres.pg_postings import SWEEP, check_postings, postings
from cde_rag.stores.postgres.pgvector_index import PgIndex
from cde_rag.stores.postgres.schema import (
    FIELD_INDEXES,
    FORMAT,
    FROM_FORMAT_1,
    PREFIX,
    VECTORS,
    escaped,
    quoted,
    unescaped,
)
from cde_rag.stores.text_analysis import TextAnalyzer, analyzer_of, with_newest

RECORD: Final = "r.id, r.title, r.text, r.metadata::text, r.checksum"
VECTOR: Final = "place, digest, vector_send(vector), checksum"
_AT_ONCE: Final = 1000  # records whose words are made anew together
_LONGEST_ID: Final = 2000  # bytes; an index of PostgreSQL takes 2 704
_TYPES: Final = {
    "records": ("int8", "text", "text", "text", "text", "int4", "bytea", "int8"),  # JSON goes over the wire as text
    "fields": ("int8", "bytea", "text", "numeric", "bytea", "text"),
    "words": ("text", "int8", "bytea", "bytea"),  # the bytes of arrays
    "vectors": ("int8", "text", "vector", "bytea"),
}
_DIALECT: Final = Dialect(
    mark="%s",
    position="place",
    columns={"text": "value", "number": "number", "boolean": "number", "null": "number", "date": "instant"},
    key=lambda kind, key: key if kind == "date" else str(key).encode() if kind == "text" else Decimal(key),
    contains="position(%s in value) > 0",
    prefix=PREFIX,
)


@dataclass(frozen=True, slots=True)
class PgManifest(StoredManifest[GenerationRow]):
    """The manifest's row and the generations.

    Attributes:
        format: Format of the tables.
        settings: Settings of the collection.
        index: Settings of the index.
        places: Place of the record that was inserted last.
        run: Number of the run that had the lease last.
    """

    format: int
    settings: dict[str, Any]
    index: PgIndex
    places: int
    run: int

    @property
    def analyzer(self) -> TextAnalyzer:
        """Analyzer of the words."""
        return analyzer_of(self.settings)


def condition(where: Filter | None) -> Condition:
    """Translate a filter to SQL on the column `place`."""
    return Condition("TRUE", ()) if where is None else _DIALECT.condition(where)


def read_record(id_: str, title: str, text: str, metadata: str, checksum: bytes) -> Record:
    """Return the record of a row.

    Raises:
        StoreFormatError: The row is not as it was written.
    """
    if checksum_of(id_, title, text, metadata) != checksum:
        raise StoreFormatError(
            f"Record {unescaped(id_)!a:.80}: expected it as it was written, found a changed row. Delete it with "
            "collection.store.delete([id]), run cde-rag reindex, and add it again."
        )
    return Record(unescaped(id_), unescaped(text), unescaped(title), json.loads(metadata))


def read_vector(place: int, digest: str, data: bytes, checksum: bytes) -> Float32[np.ndarray, " dim"]:
    """Return the vector of a row.

    Raises:
        StoreFormatError: The row is not as it was written.
    """
    vector = np.frombuffer(data, ">f4", offset=4).astype(np.float32)  # after two 16-bit numbers
    if _vector_row_checksum(place, digest, vector) != checksum:
        raise StoreFormatError(f"Vector at place {place}: expected it as it was written, found a changed row.")
    return vector


def _vector_row_checksum(place: int, digest: str, vector: Float32[np.ndarray, " dim"]) -> bytes:
    """Return the checksum of a vector's row."""
    return checksum_of(place, digest, np.ascontiguousarray(vector, "<f4").tobytes())


class PgTables:
    """The tables of a collection, through a connection in a transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return self._connection.execute(sql, parameters).fetchall()

    def stream(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement, which stay on the server until they are read."""
        with self._connection.cursor(f"rows_{abs(hash(sql))}") as cursor:
            yield from cursor.execute(sql)

    def run(self, sql: str, *parameters: Any) -> int:
        """Execute a statement; returns the number of rows that it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def manifest(self) -> PgManifest:
        """Read the manifest."""
        ((dim, active, last, format_, settings, index, quantization, places, run),) = self.rows(
            "SELECT dim, active, last, format, settings, index, quantization, places, run FROM manifest"
        )
        generations = self.rows("SELECT number, fingerprint FROM generations ORDER BY number")
        states = tuple(GenerationRow(*row) for row in generations)
        return PgManifest(dim, active, last, states, format_, settings, PgIndex(index, quantization), places, run)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        self.run("UPDATE manifest SET settings = %s", json.dumps(settings, ensure_ascii=False))

    def count(self, generation: int) -> int:
        """Return the number of vectors of a generation."""
        return self.rows(f"SELECT count(*) FROM vectors_{generation}")[0][0]  # noqa: S608

    def begin(self, number: int, fingerprint: str, context: bytes, dim: int) -> None:
        """Make an empty generation."""
        self.run("INSERT INTO generations VALUES (%s, %s, %s, %s)", number, fingerprint, context, checksum_of(context))
        self._connection.execute(VECTORS.format(number=number, dim=dim))
        if self.restricted():
            self.run(f"ALTER TABLE vectors_{number} ENABLE ROW LEVEL SECURITY")
            readers = "SELECT polname::text FROM pg_policy WHERE polrelid = 'manifest'::regclass"
            for (role,) in self.rows(readers):
                self.allow(f"vectors_{number}", role)

    def restricted(self) -> bool:
        """Return True if the tables have row-level security."""
        return self.rows("SELECT relrowsecurity FROM pg_class WHERE oid = 'manifest'::regclass")[0][0]

    def allow(self, table: str, role: str) -> None:
        """Let a role see all rows of a table with row-level security; the policy has the role's name."""
        self.run(f"CREATE POLICY {quoted(role)} ON {table} FOR SELECT TO {quoted(role)} USING (true)")

    def places(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the places of those ids that exist."""
        wanted = [escaped(id_) for id_ in encodable_ids(ids)]
        found = self.rows("SELECT id, place FROM records WHERE id = ANY(%s)", wanted)
        return {unescaped(id_): place for id_, place in found}

    def put(self, records: Sequence[tuple[Record, str]], manifest: PgManifest) -> list[int]:
        """Insert records, or replace those of the same id; returns their places.

        Args:
            records: Each with its metadata in JSON.
            manifest: Names the analyzer, and the last place that is taken.

        Raises:
            CorpusError: An id is too long for an index.
            StoreFormatError: The collection is of format 1.
        """
        check_postings(manifest.format)
        for record, _ in records:
            if len(record.id.encode()) > _LONGEST_ID:
                raise CorpusError(
                    f"Record {record.id!a:.80}: expected an id of at most {_LONGEST_ID} bytes in PostgreSQL."
                )
        there = self.places(record.id for record, _ in records)
        gone = self._remove(list(there.values()))
        inserted = len(records) - len(there)
        numbers = iter(range(manifest.places + 1, manifest.places + 1 + inserted))
        placed = [there.get(record.id) or next(numbers) for record, _ in records]
        words = [Counter(manifest.analyzer.record_terms(record)) for record, _ in records]
        ((batch,),) = self.rows(
            "UPDATE manifest SET places = places + %s, batches = batches + 1 RETURNING batches", inserted
        )
        self.copy(
            "records",
            (_record_row(place, *one, count, batch) for place, one, count in zip(placed, records, words, strict=True)),
        )
        self._put_fields(zip(placed, (record.metadata for record, _ in records), strict=True))
        self.copy("words", postings(batch, placed, words))
        self._count([count.total() for count in words], gone)
        return placed

    def put_metadata(self, place: int, record: Record, metadata: str) -> None:
        """Replace the metadata of a record."""
        checksum = checksum_of(escaped(record.id), escaped(record.title), escaped(record.text), metadata)
        self.run("UPDATE records SET metadata = %s, checksum = %s WHERE place = %s", metadata, checksum, place)
        self.run("DELETE FROM fields WHERE place = %s", place)
        self._put_fields([(place, record.metadata)])

    def delete(self, places: Sequence[int], manifest: PgManifest) -> None:
        """Remove records, and their vectors of all generations.

        Raises:
            StoreFormatError: The collection is of format 1.
        """
        check_postings(manifest.format)
        self._count([], self._remove(places))
        for state in manifest.generations:
            self.run(f"DELETE FROM vectors_{state.number} WHERE place = ANY(%s)", list(places))  # noqa: S608

    def put_vectors(
        self, generation: int, places: Sequence[int], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> None:
        """Write or replace vectors of a generation."""
        self.run(f"DELETE FROM vectors_{generation} WHERE place = ANY(%s)", list(places))  # noqa: S608
        rows = zip(places, digests, np.ascontiguousarray(vectors), strict=True)
        self.copy(
            "vectors",
            ((place, digest, vector, _vector_row_checksum(place, digest, vector)) for place, digest, vector in rows),
            f"vectors_{generation}",
        )

    def copy(self, kind: str, rows: Iterable[tuple[Any, ...]], table: str | None = None) -> None:
        """Load rows by binary COPY."""
        sql = f"COPY {table or kind} FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(_TYPES[kind])
            for row in rows:
                copy.write_row(row)

    def found(self, generation: int, sql: str, *parameters: Any) -> list[Row]:
        """Return records with the digests of their vectors in the active generation.

        Args:
            generation: Number of the active generation.
            sql: What follows `FROM records r LEFT JOIN vectors a USING (place)`.
            parameters: Parameters of it.
        """
        every = self.rows(
            f"SELECT {RECORD}, coalesce(a.digest, '') FROM records r "  # noqa: S608
            f"LEFT JOIN vectors_{generation} a USING (place) {sql}",
            *parameters,
        )
        return [Row(read_record(*row[:-1]), row[-1]) for row in every]

    def put_words(self) -> None:
        """Make the words of all records anew, with the newest analyzer, and the tables in the newest format."""
        manifest = self.manifest()
        if manifest.format < FORMAT:
            self._connection.execute(FROM_FORMAT_1)
        self._connection.execute(FIELD_INDEXES)
        settings = with_newest(manifest.settings)
        ((batch,),) = self.rows(
            "UPDATE manifest SET settings = %s, format = %s, texts = 0, words = 0, dead = 0, batches = batches + 1 "
            "RETURNING batches",
            *(json.dumps(settings, ensure_ascii=False), FORMAT),
        )
        self.run("TRUNCATE words")
        every = self.every_record()
        while part := list(islice(every, _AT_ONCE)):
            places = [place for place, _ in part]
            words = [Counter(analyzer_of(settings).record_terms(record)) for _, record in part]
            lengths = [count.total() for count in words]
            self.copy("words", postings(batch, places, words))
            self.run(
                "UPDATE records r SET length = new.length, batch = %s FROM unnest(%s::bigint[], %s::integer[]) AS new "
                "(place, length) WHERE r.place = new.place",
                *(batch, places, lengths),
            )
            self._count(lengths, [])

    def every_record(self) -> Iterator[tuple[int, Record]]:
        """Yield all records with their places; they stay on the server until they are read."""
        for row in self.stream(f"SELECT {RECORD}, place FROM records r"):  # noqa: S608
            yield row[-1], read_record(*row[:-1])

    def _put_fields(self, metadata: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        self.copy("fields", (field_row(place, one) for place, found in metadata for one in flatten(found)))

    def _remove(self, places: Sequence[int]) -> list[int]:
        """Remove records and their fields; returns their lengths in words."""
        self.run("DELETE FROM fields WHERE place = ANY(%s)", list(places))
        removed = self.rows("DELETE FROM records WHERE place = ANY(%s) RETURNING length", list(places))
        return [length for (length,) in removed]

    def _count(self, new: Sequence[int], gone: Sequence[int]) -> None:
        """Count records that came and went, by their lengths, and remove dead entries of words if they are many."""
        ((many,),) = self.rows(
            "UPDATE manifest SET texts = texts + %s, words = words + %s, dead = dead + %s RETURNING dead > words",
            *(np.count_nonzero(new) - np.count_nonzero(gone), sum(new) - sum(gone), sum(gone)),
        )
        if many:
            self.run(SWEEP)
            self.run("UPDATE manifest SET dead = 0")


def field_row(place: int, element: Element) -> tuple[int, bytes, str, Decimal | None, bytes | None, str | None]:
    """Return the row of an element of metadata in the table `fields`."""
    text = str(element.value).encode() if element.kind == "text" else None
    number = None if element.kind == "text" else Decimal(element.value)
    return place, element.path.encode(), element.kind, number, text, element.instant


def _record_row(place: int, record: Record, metadata: str, words: Counter[str], batch: int) -> tuple[Any, ...]:
    columns = escaped(record.id), escaped(record.title), escaped(record.text), metadata
    return place, *columns, words.total(), checksum_of(*columns), batch
