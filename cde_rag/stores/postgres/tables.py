"""Rows of a collection's tables, read and written inside one transaction."""

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from types import NoneType
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import CorpusError, StoreFormatError
from cde_rag.stores.base import Record, Row
from cde_rag.stores.checks import checksum_of, encodable_ids
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import Condition, Dialect, Element, flatten
from cde_rag.stores.manifests import GenerationRow, StoredManifest
from cde_rag.stores.postgres.schema import (
    FIELD_INDEXES,
    FORMAT,
    FROM_FORMAT_1,
    PREFIX,
    VECTORS,
    PgNames,
    escaped,
    quoted,
    unescaped,
)
from cde_rag.stores.postgres.words import check_postings, postings, sweep
from cde_rag.stores.text_analysis import TextAnalyzer, analyzer_of, with_newest

RECORD: Final = "r.id, r.title, r.text, r.metadata::text, r.checksum"
_AT_ONCE: Final = 1000  # records whose words are made anew together
_LONGEST_ID: Final = 2000  # bytes; an index of PostgreSQL takes 2 704
_TYPES: Final = {
    "records": ("int8", "text", "text", "text", "text", "int4", "bytea", "int8"),  # JSON goes over the wire as text
    "fields": ("int8", "bytea", "text", "numeric", "bytea", "text"),
    "words": ("text", "int8", "bytea", "bytea"),  # the bytes of arrays
    "vectors": ("int8", "text", "bytea", "bytea"),  # the bytes of a vector
}
_COLUMNS: Final[Mapping[str, type | tuple[type, ...]]] = {  # of the manifest, as JSON has them
    **dict.fromkeys(("format", "dim", "active", "last", "places", "texts", "words", "run"), int),
    **dict.fromkeys(("batches", "dead"), (int, NoneType)),
    **dict.fromkeys(("index", "quantization", "store", "lease"), (str, NoneType)),
    "settings": dict,
}
_LATER: Final = ("batches", "dead", "store", "lease")  # columns that version 0.2 does not have
_VECTOR: Final = struct.Struct(">2H")
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
        index: Kind of the index, or None.
        quantization: What the index holds, or None.
        places: Place of the record that was inserted last.
        texts: Number of records that have words.
        words: Number of words of all records together.
        run: Number of the run that had the lease last.
        store: Random id of the collection; None in one of version 0.2 that was not written since.
        lease: Random token of the run that had the lease last; None in one of version 0.2, or before the first.
    """

    format: int
    settings: dict[str, Any]
    index: str | None
    quantization: str | None
    places: int
    texts: int
    words: int
    run: int
    store: str | None
    lease: str | None

    @classmethod
    def read(cls, row: str, generations: str) -> "PgManifest":
        """Return the manifest of a row and of the generations, both in JSON.

        Raises:
            StoreFormatError: A column is missing or of another type.
        """
        found: dict[str, Any] = dict.fromkeys(_LATER) | json.loads(row)
        for name, kind in _COLUMNS.items():
            if name not in found or not isinstance(found[name], kind) or isinstance(found[name], bool):
                raise changed(f"manifest.{name}", found.get(name))
        states: list[GenerationRow] = []
        for number, fingerprint in json.loads(generations):
            if not isinstance(number, int) or not isinstance(fingerprint, str):
                raise changed("generations", (number, fingerprint))
            states.append(GenerationRow(number, fingerprint))
        kept = {name: value for name, value in found.items() if name in _COLUMNS and name not in ("batches", "dead")}
        return cls(generations=tuple(states), **kept)

    @property
    def analyzer(self) -> TextAnalyzer:
        """Analyzer of the words."""
        return analyzer_of(self.settings)


def condition(where: Filter | None, names: PgNames) -> Condition:
    """Translate a filter to SQL on the column `place`."""
    return Condition("TRUE", ()) if where is None else replace(_DIALECT, fields=names.fields).condition(where)


def read_record(id_: str, title: str, text: str, metadata: str, checksum: bytes) -> Record:
    """Return the record of a row.

    Raises:
        StoreFormatError: The row is not as it was written.
    """
    if not _are(str, id_, title, text, metadata) or checksum_of(id_, title, text, metadata) != checksum:
        raise StoreFormatError(
            f"Record {id_!a:.80}: expected it as it was written, found a changed row. Delete it with "
            "collection.store.delete([id]), run cde-rag reindex, and add it again."
        )
    return Record(unescaped(id_), unescaped(text), unescaped(title), json.loads(metadata))


def read_vector(place: int, digest: str, data: bytes, checksum: bytes) -> Float32[np.ndarray, " dim"]:
    """Return the vector of a row.

    Raises:
        StoreFormatError: The row is not as it was written.
    """
    if _are(str, digest) and _are(bytes, data):
        vector = np.frombuffer(data, ">f4", offset=4).astype(np.float32)  # after two 16-bit numbers
        if _vector_row_checksum(place, digest, vector) == checksum:
            return vector
    raise StoreFormatError(f"Vector at place {place}: expected it as it was written, found a changed row.")


def changed(what: str, found: object) -> StoreFormatError:
    """Return the error for a value of a column that somebody changed."""
    return StoreFormatError(
        f"{what}: expected the column as cde-rag made it, found {found!r:.80}. Undo the change, or restore a backup."
    )


def read_score(value: float | None) -> float:
    """Return a score that the server made of a vector or of words.

    Raises:
        StoreFormatError: It is null, since one of its columns is.
    """
    if value is None:
        raise changed("A score", value)
    return float(value)


def _are(kind: type, *values: object) -> bool:
    """Return True if all values are of a type; a column of another type, and null, give others."""
    return all(isinstance(value, kind) for value in values)


def vector_bytes(vector: Float32[np.ndarray, " dim"]) -> bytes:
    """Return the bytes of a vector as pgvector takes them in binary: 16 bits each for its length and 0, big-endian."""
    return _VECTOR.pack(len(vector), 0) + vector.astype(">f4").tobytes()


def _vector_row_checksum(place: int, digest: str, vector: Float32[np.ndarray, " dim"]) -> bytes:
    """Return the checksum of a vector's row."""
    return checksum_of(place, digest, np.ascontiguousarray(vector, "<f4").tobytes())


class PgTables:
    """The tables of a collection, through a connection in a transaction.

    Args:
        connection: Of `PgDatabase`.
        names: Names of the tables.
    """

    def __init__(self, connection: Any, names: PgNames) -> None:
        self._connection = connection
        self.names = names

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
        """Read the manifest.

        Raises:
            StoreFormatError: A column is missing or of another type.
        """
        found = self.rows(
            "SELECT to_json(m)::text, "  # noqa: S608
            "(SELECT coalesce(json_agg(json_build_array(number, fingerprint) ORDER BY number), '[]')::text "
            f"FROM {self.names.generations}) FROM {self.names.manifest} m"
        )
        return PgManifest.read(*found[0])

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        encoded = json.dumps(settings, ensure_ascii=False)
        self.run(f"UPDATE {self.names.manifest} SET settings = %s", encoded)  # noqa: S608

    def count(self, generation: int) -> int:
        """Return the number of vectors of a generation."""
        return self.rows(f"SELECT count(*) FROM {self.names.vectors(generation)}")[0][0]  # noqa: S608

    def begin(self, number: int, fingerprint: str, context: bytes, dim: int) -> None:
        """Make an empty generation."""
        columns = "(number, fingerprint, context, checksum)"
        self.run(
            f"INSERT INTO {self.names.generations} {columns} VALUES (%s, %s, %s, %s)",  # noqa: S608
            *(number, fingerprint, context, checksum_of(context)),
        )
        table = self.names.vectors(number)
        self._connection.execute(VECTORS.format(table=table, vector=self.names.pgvector("vector"), dim=dim))
        if self.restricted():
            self.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
            readers = "SELECT polname::text FROM pg_policy WHERE polrelid = %s::regclass"
            for (role,) in self.rows(readers, self.names.manifest):
                self.allow(table, role)

    def restricted(self) -> bool:
        """Return True if the tables have row-level security."""
        return self.rows("SELECT relrowsecurity FROM pg_class WHERE oid = %s::regclass", self.names.manifest)[0][0]

    def allow(self, table: str, role: str) -> None:
        """Let a role see all rows of a table with row-level security; the policy has the role's name."""
        self.run(f"CREATE POLICY {quoted(role)} ON {table} FOR SELECT TO {quoted(role)} USING (true)")

    def places(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the places of those ids that exist."""
        wanted = [escaped(id_) for id_ in encodable_ids(ids)]
        found = self.rows(f"SELECT id, place FROM {self.names.records} WHERE id = ANY(%s)", wanted)  # noqa: S608
        for id_, place in found:
            if not isinstance(id_, str) or not isinstance(place, int):
                raise changed("records", (id_, place))
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
            f"UPDATE {self.names.manifest} SET places = places + %s, batches = batches + 1 RETURNING batches",  # noqa: S608
            inserted,
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
        self.run(
            f"UPDATE {self.names.records} SET metadata = %s, checksum = %s WHERE place = %s",  # noqa: S608
            *(metadata, checksum, place),
        )
        self.run(f"DELETE FROM {self.names.fields} WHERE place = %s", place)  # noqa: S608
        self._put_fields([(place, record.metadata)])

    def delete(self, places: Sequence[int], manifest: PgManifest) -> None:
        """Remove records, and their vectors of all generations.

        Raises:
            StoreFormatError: The collection is of format 1.
        """
        check_postings(manifest.format)
        self._count([], self._remove(places))
        for state in manifest.generations:
            self.run(f"DELETE FROM {self.names.vectors(state.number)} WHERE place = ANY(%s)", list(places))  # noqa: S608

    def put_vectors(
        self, generation: int, places: Sequence[int], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> None:
        """Write or replace vectors of a generation."""
        self.run(f"DELETE FROM {self.names.vectors(generation)} WHERE place = ANY(%s)", list(places))  # noqa: S608
        rows = zip(places, digests, np.ascontiguousarray(vectors), strict=True)
        self.copy(
            "vectors",
            (
                (place, digest, vector_bytes(vector), _vector_row_checksum(place, digest, vector))
                for place, digest, vector in rows
            ),
            self.names.vectors(generation),
        )

    def vector_rows(self, generation: int) -> str:
        """Return the SQL that selects the rows of a generation for `read_vector`."""
        sent = self.names.pgvector("vector_send")
        return f"SELECT place, digest, {sent}(vector), checksum FROM {self.names.vectors(generation)}"  # noqa: S608

    def copy(self, kind: str, rows: Iterable[tuple[Any, ...]], table: str | None = None) -> None:
        """Load rows by binary COPY."""
        sql = f"COPY {table or self.names.table(kind)} FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(_TYPES[kind])
            for row in rows:
                copy.write_row(row)

    def found(self, generation: int, sql: str, *parameters: Any) -> list[Row]:
        """Return records with the digests of their vectors in the active generation.

        Args:
            generation: Number of the active generation.
            sql: The rest of the statement after `FROM records r LEFT JOIN vectors a USING (place)`.
            parameters: Parameters of it.
        """
        every = self.rows(
            f"SELECT {RECORD}, coalesce(a.digest, '') FROM {self.names.records} r "  # noqa: S608
            f"LEFT JOIN {self.names.vectors(generation)} a USING (place) {sql}",
            *parameters,
        )
        return [Row(read_record(*row[:-1]), row[-1]) for row in every]

    def put_words(self) -> None:
        """Make the words of all records anew, with the newest analyzer, and the tables in the newest format."""
        manifest = self.manifest()
        if manifest.format < FORMAT:
            self._connection.execute(FROM_FORMAT_1.format(schema=self.names.schema))
        self._connection.execute(FIELD_INDEXES.format(schema=self.names.schema))
        settings = with_newest(manifest.settings)
        ((batch,),) = self.rows(
            f"UPDATE {self.names.manifest} SET settings = %s, format = %s, texts = 0, words = 0, dead = 0, "  # noqa: S608
            "batches = batches + 1 RETURNING batches",
            *(json.dumps(settings, ensure_ascii=False), FORMAT),
        )
        self.run(f"TRUNCATE {self.names.words}")
        every = self.every_record()
        while part := list(islice(every, _AT_ONCE)):
            places = [place for place, _ in part]
            words = [Counter(analyzer_of(settings).record_terms(record)) for _, record in part]
            lengths = [count.total() for count in words]
            self.copy("words", postings(batch, places, words))
            self.run(
                f"UPDATE {self.names.records} r SET length = new.length, batch = %s "  # noqa: S608
                "FROM unnest(%s::bigint[], %s::integer[]) AS new (place, length) WHERE r.place = new.place",
                *(batch, places, lengths),
            )
            self._count(lengths, [])

    def every_record(self) -> Iterator[tuple[int, Record]]:
        """Yield all records with their places; they stay on the server until they are read."""
        for row in self.stream(f"SELECT {RECORD}, place FROM {self.names.records} r"):  # noqa: S608
            yield row[-1], read_record(*row[:-1])

    def _put_fields(self, metadata: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        self.copy("fields", (field_row(place, one) for place, found in metadata for one in flatten(found)))

    def _remove(self, places: Sequence[int]) -> list[int]:
        """Remove records and their fields; returns their lengths in words."""
        self.run(f"DELETE FROM {self.names.fields} WHERE place = ANY(%s)", list(places))  # noqa: S608
        gone = f"DELETE FROM {self.names.records} WHERE place = ANY(%s) RETURNING length"  # noqa: S608
        lengths = [length for (length,) in self.rows(gone, list(places))]
        if not _are(int, *lengths):
            raise changed("records.length", lengths)
        return lengths

    def _count(self, new: Sequence[int], gone: Sequence[int]) -> None:
        """Count records that came and went, by their lengths, and remove dead entries of words if they are many."""
        ((many,),) = self.rows(
            f"UPDATE {self.names.manifest} SET texts = texts + %s, words = words + %s, dead = dead + %s "  # noqa: S608
            "RETURNING dead > words",
            *(np.count_nonzero(new) - np.count_nonzero(gone), sum(new) - sum(gone), sum(gone)),
        )
        if many:
            self.run(sweep(self.names))
            self.run(f"UPDATE {self.names.manifest} SET dead = 0")  # noqa: S608


def field_row(place: int, element: Element) -> tuple[int, bytes, str, Decimal | None, bytes | None, str | None]:
    """Return the row of an element of metadata in the table `fields`."""
    text = str(element.value).encode() if element.kind == "text" else None
    number = None if element.kind == "text" else Decimal(element.value)
    return place, element.path.encode(), element.kind, number, text, element.instant


def _record_row(place: int, record: Record, metadata: str, words: Counter[str], batch: int) -> tuple[Any, ...]:
    columns = escaped(record.id), escaped(record.title), escaped(record.text), metadata
    return place, *columns, words.total(), checksum_of(*columns), batch
