"""Rows of a collection's tables, read and written inside one transaction."""

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import count, islice
from types import NoneType
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import CorpusError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.checks import checksum_of, encodable_ids
from cde_rag.stores.engine import Placed, Version
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

ALL: Final = Condition("TRUE", ())
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
_COUNTS: Final = ("batches", "dead", "texts", "words")  # columns that statements alone use
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
    """The manifest's row and the generations; equal where searches are the same.

    Attributes:
        format: Format of the tables.
        settings: Settings of the collection.
        index: Kind of the index, or None.
        quantization: What the index holds, or None.
        store: Random id of the collection; None in one of version 0.2 that was not written since.
        places: Place of the record that was inserted last.
        run: Number of the run that had the lease last.
        lease: Random token of the run that had the lease last; None in one of version 0.2, or before the first.
    """

    format: int
    settings: dict[str, Any]
    index: str | None
    quantization: str | None
    store: str | None
    places: int = field(compare=False)
    run: int = field(compare=False)
    lease: str | None = field(compare=False)

    @classmethod
    def of(cls, row: Mapping[str, Any], generations: Sequence[Sequence[Any]]) -> "PgManifest":
        """Return the manifest of a row's columns and of generations, each a number and a fingerprint.

        Raises:
            StoreFormatError: A column is missing or of another type.
        """
        found: dict[str, Any] = {**dict.fromkeys(_LATER), **row}
        for name, kind in _COLUMNS.items():
            if name not in found or not isinstance(found[name], kind) or isinstance(found[name], bool):
                raise changed(f"manifest.{name}", found.get(name))
        states: list[GenerationRow] = []
        for number, fingerprint in generations:
            if not isinstance(number, int) or not isinstance(fingerprint, str):
                raise changed("generations", (number, fingerprint))
            states.append(GenerationRow(number, fingerprint))
        kept = {name: value for name, value in found.items() if name in _COLUMNS and name not in _COUNTS}
        return cls(generations=tuple(states), **kept)

    @property
    def analyzer(self) -> TextAnalyzer:
        """Analyzer of the words."""
        return analyzer_of(self.settings)


def manifest_sql(names: PgNames) -> str:
    """Return the SQL that reads the manifest's row and the generations, both in JSON."""
    return (
        "SELECT to_json(m)::text, "  # noqa: S608
        "(SELECT coalesce(json_agg(json_build_array(number, fingerprint) ORDER BY number), '[]')::text "
        f"FROM {names.generations}) FROM {names.manifest} m"
    )


def condition(where: Filter | None, names: PgNames) -> Condition:
    """Translate a filter to SQL on the column `place`."""
    return ALL if where is None else replace(_DIALECT, fields=names.fields).condition(where)


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
    return set(map(type, values)) <= {kind}  # all(isinstance(…)) took as long as the checksums


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
        row: Columns of the manifest's row, as this transaction read it; none of a collection that is made.
        generations: Number and fingerprint of each generation, likewise.
    """

    def __init__(
        self, connection: Any, names: PgNames, row: Mapping[str, Any] = {}, generations: Sequence[Sequence[Any]] = ()
    ) -> None:
        self._connection = connection
        self._read = row, generations
        self._manifest: PgManifest | None = None
        self.names = names

    @property
    def manifest(self) -> PgManifest:
        """Manifest, as this transaction left it.

        Raises:
            StoreFormatError: A column is missing or of another type.
        """
        if self._manifest is None:
            self._manifest = PgManifest.of(*self._read)
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: PgManifest) -> None:
        self._manifest = manifest

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

    def copy(self, kind: str, rows: Iterable[tuple[Any, ...]], table: str | None = None) -> None:
        """Load rows by binary COPY."""
        sql = f"COPY {table or self.names.table(kind)} FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(_TYPES[kind])
            for row in rows:
                copy.write_row(row)

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

    def count(self, table: str, where: Condition = ALL) -> int:
        """Count the rows of a table for which a condition holds."""
        return self.rows(f"SELECT count(*) FROM {table} WHERE {where.sql}", *where.parameters)[0][0]  # noqa: S608

    def found(self, sql: str, *parameters: Any) -> list[Placed]:
        """Return records with the digests of their vectors in the active generation, and their places.

        Args:
            sql: The rest of the statement after `FROM records r LEFT JOIN vectors a USING (place)`.
            parameters: Parameters of it.
        """
        every = self.rows(
            f"SELECT place, coalesce(a.digest, ''), {RECORD} FROM {self.names.records} r "  # noqa: S608
            f"LEFT JOIN {self.names.vectors(self.manifest.active)} a USING (place) {sql}",
            *parameters,
        )
        for place, digest, *_ in every:
            if not _are(int, place) or not _are(str, digest):
                raise changed("records.place, vectors.digest", (place, digest))
        store = self.manifest.store or ""
        return [Placed((place, store), Row(read_record(*record), digest)) for place, digest, *record in every]

    def versions(self, ids: Iterable[str]) -> dict[str, Version]:
        """Return the places of those ids that exist, and their digests in the active generation, "" without any."""
        found = self.rows(
            f"SELECT id, place, coalesce(digest, '') FROM {self.names.records} "  # noqa: S608
            f"LEFT JOIN {self.names.vectors(self.manifest.active)} USING (place) WHERE id = ANY(%s)",
            wanted(ids),
        )
        for id_, place, digest in found:
            if not _are(str, id_, digest) or not _are(int, place):
                raise changed("records", (id_, place, digest))
        return {unescaped(id_): Version(place, digest) for id_, place, digest in found}

    def vectors(self, generation: int, ids: Iterable[str]) -> dict[str, Float32[np.ndarray, " dim"]]:
        """Return the vectors of those ids that have one in a generation."""
        found = self.rows(
            f"SELECT id, v.* FROM ({self.vector_rows(generation)}) v JOIN {self.names.records} USING (place) "  # noqa: S608
            "WHERE id = ANY(%s)",
            wanted(ids),
        )
        if not _are(str, *(id_ for id_, *_ in found)):
            raise changed("records.id", found[0][0])
        return {unescaped(id_): read_vector(*row) for id_, *row in found}

    def put(self, records: Sequence[tuple[Record, str]]) -> list[int]:
        """Insert records, given with their metadata in JSON, or replace those of the same id; returns their places.

        Raises:
            CorpusError: An id is too long for an index.
            StoreFormatError: The collection is of format 1.
        """
        analyzer, last = self.manifest.analyzer, self.manifest.places
        check_postings(self.manifest.format)
        for record, _ in records:
            if len(record.id.encode()) > _LONGEST_ID:
                raise CorpusError(
                    f"Record {record.id!a:.80}: expected an id of at most {_LONGEST_ID} bytes in PostgreSQL."
                )
        there = self.versions(record.id for record, _ in records)
        gone = self._remove([version.key for version in there.values()])
        numbers = count(last + 1)
        placed = [there[record.id].key if record.id in there else next(numbers) for record, _ in records]
        words = [Counter(analyzer.record_terms(record)) for record, _ in records]
        inserted, lengths = len(records) - len(there), [counted.total() for counted in words]
        batch, sweeping = self._count(lengths, gone, inserted=inserted, written=1)
        self.copy(
            "records",
            (
                _record_row(place, *one, length, batch)
                for place, one, length in zip(placed, records, lengths, strict=True)
            ),
        )
        self._put_fields(zip(placed, (metadata for _, metadata in records), strict=True))
        self.copy("words", postings(batch, placed, words))
        if sweeping:
            self._sweep()
        return placed

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata, in JSON, of records by id. An unknown id raises `KeyError`."""
        found = self.rows(
            f"SELECT place, {RECORD} FROM {self.names.records} r WHERE id = ANY(%s)",  # noqa: S608
            wanted(metadata),
        )
        records = {record.id: (place, record) for place, record in ((row[0], read_record(*row[1:])) for row in found)}
        rows = [(*records[id_], new) for id_, new in metadata.items()]
        places = [place for place, _, _ in rows]
        self.run(
            f"UPDATE {self.names.records} r SET metadata = new.metadata::json, checksum = new.checksum "  # noqa: S608
            "FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) AS new (place, metadata, checksum) "
            "WHERE r.place = new.place",
            *(places, [new for *_, new in rows], [checksum_of(*_columns(record, new)) for _, record, new in rows]),
        )
        self.run(f"DELETE FROM {self.names.fields} WHERE place = ANY(%s)", places)  # noqa: S608
        self._put_fields((place, new) for place, _, new in rows)

    def delete(self, places: Sequence[int]) -> None:
        """Remove records, and their vectors of all generations.

        Raises:
            StoreFormatError: The collection is of format 1.
        """
        check_postings(self.manifest.format)
        _, sweeping = self._count([], self._remove(places))
        if sweeping:
            self._sweep()
        for state in self.manifest.generations:
            self.drop_vectors(state.number, places)

    def put_vectors(
        self, generation: int, places: Sequence[int], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> None:
        """Write or replace vectors of a generation."""
        table = self.names.vectors(generation)
        self.drop_vectors(generation, places)
        rows = zip(places, digests, np.ascontiguousarray(vectors), strict=True)
        self.copy(
            "vectors",
            (
                (place, digest, vector_bytes(vector), _vector_row_checksum(place, digest, vector))
                for place, digest, vector in rows
            ),
            table,
        )

    def drop_vectors(self, generation: int, places: Sequence[int]) -> None:
        """Remove the vectors of records in a generation."""
        self.run(f"DELETE FROM {self.names.vectors(generation)} WHERE place = ANY(%s)", list(places))  # noqa: S608

    def drop_stale(self, generation: int, places: Sequence[int], digests: Sequence[str]) -> None:
        """Remove the vectors of records in a generation that were made from another digest."""
        self.run(
            f"DELETE FROM {self.names.vectors(generation)} old "  # noqa: S608
            "USING unnest(%s::bigint[], %s::text[]) AS new (place, digest) "
            "WHERE old.place = new.place AND old.digest != new.digest",
            *(places, digests),
        )

    def vector_rows(self, generation: int) -> str:
        """Return the SQL that selects the rows `v` of a generation for `read_vector`."""
        sent = self.names.pgvector("vector_send")
        return f"SELECT place, digest, {sent}(vector), v.checksum FROM {self.names.vectors(generation)} v"  # noqa: S608

    def put_words(self) -> None:
        """Make the words of all records anew, with the newest analyzer, and the tables in the newest format."""
        if self.manifest.format < FORMAT:
            self._connection.execute(FROM_FORMAT_1.format(schema=self.names.schema))
        self._connection.execute(FIELD_INDEXES.format(schema=self.names.schema))
        settings = with_newest(self.manifest.settings)
        ((batch,),) = self.rows(
            f"UPDATE {self.names.manifest} SET settings = %s, format = %s, texts = 0, words = 0, dead = 0, "  # noqa: S608
            "batches = batches + 1 RETURNING batches",
            *(json.dumps(settings, ensure_ascii=False), FORMAT),
        )
        self.manifest = replace(self.manifest, settings=settings, format=FORMAT)
        self.run(f"TRUNCATE {self.names.words}")
        every = self.stream(f"SELECT place, {RECORD} FROM {self.names.records} r")  # noqa: S608
        while part := list(islice(every, _AT_ONCE)):
            places = [row[0] for row in part]
            words = [Counter(analyzer_of(settings).record_terms(read_record(*row[1:]))) for row in part]
            lengths = [counted.total() for counted in words]
            self.copy("words", postings(batch, places, words))
            self.run(
                f"UPDATE {self.names.records} r SET length = new.length, batch = %s "  # noqa: S608
                "FROM unnest(%s::bigint[], %s::integer[]) AS new (place, length) WHERE r.place = new.place",
                *(batch, places, lengths),
            )
            self._count(lengths, [])

    def _put_fields(self, metadata: Iterable[tuple[int, str]]) -> None:
        """Load the rows of metadata, given as JSON by place."""
        self.copy("fields", (field_row(place, one) for place, data in metadata for one in flatten(json.loads(data))))

    def _remove(self, places: Sequence[int]) -> list[int]:
        """Remove records and their fields; returns their lengths in words."""
        if not places:
            return []
        self.run(f"DELETE FROM {self.names.fields} WHERE place = ANY(%s)", list(places))  # noqa: S608
        gone = f"DELETE FROM {self.names.records} WHERE place = ANY(%s) RETURNING length"  # noqa: S608
        lengths = [length for (length,) in self.rows(gone, list(places))]
        if not _are(int, *lengths):
            raise changed("records.length", lengths)
        return lengths

    def _count(
        self, new: Sequence[int], gone: Sequence[int], *, inserted: int = 0, written: int = 0
    ) -> tuple[int, bool]:
        """Count records that came and went, by their lengths in words.

        Returns:
            Number of the write, and whether dead entries of words are many.
        """
        ((batch, many),) = self.rows(
            f"UPDATE {self.names.manifest} SET places = places + %s, batches = batches + %s, "  # noqa: S608
            "texts = texts + %s, words = words + %s, dead = dead + %s RETURNING batches, dead > words",
            *(inserted, written, np.count_nonzero(new) - np.count_nonzero(gone), sum(new) - sum(gone), sum(gone)),
        )
        self.manifest = replace(self.manifest, places=self.manifest.places + inserted)
        return batch, many

    def _sweep(self) -> None:
        self.run(sweep(self.names))
        self.run(f"UPDATE {self.names.manifest} SET dead = 0")  # noqa: S608


def field_row(place: int, element: Element) -> tuple[int, bytes, str, Decimal | None, bytes | None, str | None]:
    """Return the row of an element of metadata in the table `fields`."""
    text = str(element.value).encode() if element.kind == "text" else None
    number = None if element.kind == "text" else Decimal(element.value)
    return place, element.path.encode(), element.kind, number, text, element.instant


def wanted(ids: Iterable[str]) -> list[str]:
    """Return ids as the column has them, without those that no column holds."""
    return [escaped(id_) for id_ in encodable_ids(ids)]


def _columns(record: Record, metadata: str) -> tuple[str, str, str, str]:
    return escaped(record.id), escaped(record.title), escaped(record.text), metadata


def _record_row(place: int, record: Record, metadata: str, length: int, batch: int) -> tuple[Any, ...]:
    columns = _columns(record, metadata)
    return place, *columns, length, checksum_of(*columns), batch
