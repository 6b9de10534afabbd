"""PgVectorStore; its tables are described in schema.py."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_list
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError, StoreFormatError
from cde_rag.stores.base import Completion, Damage, Hit, Row
from cde_rag.stores.checks import check_k, check_records, check_rows, check_unit, encode, sample_places, seal
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import flatten
from cde_rag.stores.filters import parse
from cde_rag.stores.manifests import Generation, StoreManifest
from cde_rag.stores.postgres.address import Address
from cde_rag.stores.postgres.ann_index import AnnIndex
from cde_rag.stores.postgres.database import Database, Result
from cde_rag.stores.postgres.schema import FORMAT, unescaped
from cde_rag.stores.postgres.tables import (
    RECORD,
    VECTOR,
    GenerationRow,
    Manifest,
    Tables,
    condition,
    field_row,
    read_record,
    read_vector,
)
from cde_rag.stores.text_analysis import words_in, words_of

_LEASES: Final = 0x636465  # first half of the keys of our advisory locks
_K1, _B = 1.2, 0.75  # of BM25


class PgVectorStore:
    """Records, vectors and contexts in PostgreSQL with pgvector. Implements `cde_rag.stores.base.Store`.

    `search_text` is BM25 over all records, made in the server from the table `words`: for each word of the query, as
    often as it comes, `idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · l / mean l))`, with `idf = ln(1 + (N − n + 0.5) /
    (n + 0.5))` of N records with words and n with this one.

    Args:
        dsn: Address of the database for libpq, such as `postgresql://user@host/database`.
        name: Name of the collection, which gets a schema of this name.
        index: `hnsw`, `ivfflat` or None, which compares a query with every vector. Stored by `create`; built once a
            generation has 10 000 records.
        quantization: `half` or `binary` for what the index holds; the table keeps full vectors, which give the scores.

    Raises:
        MissingExtraError: psycopg is not installed.
        StoreError: An address that cannot be read, or a name that no schema can have.
        ValueError: `index` or `quantization` is none of these.
    """

    def __init__(self, dsn: str, name: str, *, index: str | None = None, quantization: str | None = None) -> None:
        self._index = AnnIndex(index, quantization).check()
        self._database = Database(dsn, name)
        self._run: int | None = None  # of the run that has the lease through this object

    @classmethod
    def at_address(cls, address: str) -> "PgVectorStore":
        """Return the store at `postgresql://user@host/database/collection`.

        Raises:
            StoreError: The address is another.
        """
        return cls(*Address.parse(address))

    @property
    def name(self) -> str:
        """Name of the collection and of its schema."""
        return self._database.name

    def named(self, name: str) -> "PgVectorStore":
        """Return a store of another name in the same database, with the same kind of index."""
        return PgVectorStore(self._database.dsn, name, index=self._index.kind, quantization=self._index.quantization)

    def names(self, prefix: str) -> list[str]:
        """Return the names of this database's collections that begin so, sorted.

        Raises:
            StoreError: No connection.
        """
        return self._database.names(prefix)

    def grant_read(self, role: str) -> None:
        """Let a role of the database read this collection, its later generations too, and write nothing.

        Raises:
            StoreError: There is no such role, or this one may not grant it.
        """
        quoted = '"' + role.replace('"', '""') + '"'
        statements = (
            f'GRANT USAGE ON SCHEMA "{self.name}" TO {quoted}',
            f'GRANT SELECT ON ALL TABLES IN SCHEMA "{self.name}" TO {quoted}',
            f'ALTER DEFAULT PRIVILEGES IN SCHEMA "{self.name}" GRANT SELECT ON TABLES TO {quoted}',
        )
        self._write(lambda tables: [tables.run(statement) for statement in statements])

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make the schema and its tables in one transaction."""
        encoded = encode(settings, "The store's settings")
        index = self._index.check(dim)

        def fill(connection: Any) -> None:
            tables = Tables(connection)
            tables.run(
                "INSERT INTO manifest VALUES (true, %s, %s, 1, 1, %s, %s, %s, 0, 0, 0, 0)",
                *(FORMAT, dim, encoded, index.kind, index.quantization),
            )
            tables.begin(1, fingerprint, context, dim)

        self._database.create(fill)

    def exists(self) -> bool:
        """Return True if the schema holds a collection."""
        return self._database.exists()

    def manifest(self) -> StoreManifest:
        """Return the store's manifest."""
        found = self._read(Tables.manifest)
        return StoreManifest(found.dim, found.serving.fingerprint, found.active, found.settings)

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context."""

        def read(tables: Tables) -> bytes:
            manifest = tables.manifest()
            state = manifest.serving if generation is None else manifest.generation(generation)
            ((context, checksum),) = tables.rows(
                "SELECT context, checksum FROM generations WHERE number = %s", state.number
            )
            if seal(context) != checksum:
                raise StoreFormatError(
                    f"{self!r}: expected the context of generation {state.number} as it was written, found other "
                    "bytes. Restore a backup."
                )
            return context

        return self._read(read)

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Upsert rows and their vectors in one transaction."""
        records = list(check_records(row.record for row in rows))
        digests = [row.digest for row in rows]

        def write(tables: Tables) -> None:
            manifest = tables.manifest()
            _check_space(manifest.serving, fingerprint)
            check_unit(vectors, len(rows), manifest.dim)
            places = tables.put(records, manifest.places)
            for state in manifest.generations:
                if state.number != manifest.active:
                    tables.run(
                        f"DELETE FROM vectors_{state.number} old USING unnest(%s::bigint[], %s::text[]) AS new "  # noqa: S608
                        "(place, digest) WHERE old.place = new.place AND old.digest != new.digest",
                        places,
                        digests,
                    )
            tables.put_vectors(manifest.active, places, digests, vectors)
            self._build_index(tables, manifest, manifest.active)

        self._write(write)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of records; vectors and digests stay."""
        encoded = {id_: encode(new, f"Record {id_!a:.80}: its metadata") for id_, new in metadata.items()}

        def write(tables: Tables) -> None:
            places = tables.places(metadata)
            for id_, new in metadata.items():
                place = places[id_]  # KeyError for an unknown id
                ((*columns,),) = tables.rows(f"SELECT {RECORD} FROM records r WHERE place = %s", place)  # noqa: S608
                tables.put_metadata(place, replace(read_record(*columns), metadata=dict(new)), encoded[id_])

        self._write(write)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows from every generation; returns their number."""
        check_list(ids, call="delete", what="ids")

        def write(tables: Tables) -> int:
            places = list(tables.places(ids).values())
            tables.delete(places, tables.manifest().generations)
            return len(places)

        return self._write(write)

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, in the order of `ids`."""
        check_list(ids, call="get", what="ids")

        def read(tables: Tables) -> list[Row]:
            places = list(tables.places(ids).values())
            return tables.found(tables.manifest().active, "WHERE place = ANY(%s)", places)

        rows = {row.record.id: row for row in self._read(read)}
        return [rows[id_] for id_ in ids if id_ in rows]

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of rows that match a filter."""
        kept = condition(None if where is None else parse(where))
        sql = f"SELECT count(*) FROM records WHERE {kept.sql}"  # noqa: S608
        return self._read(lambda tables: tables.rows(sql, *kept.parameters)[0][0])

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Iterate over all rows that match a filter, in order of insertion."""
        page = check_rows(page, "page")
        return self._scrolled(None if where is None else parse(where), page)

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        count = check_rows(count, "count")

        def read(tables: Tables) -> list[Row]:
            manifest = tables.manifest()
            ((there,),) = tables.rows("SELECT count(*) FROM records")
            if there <= count:
                return tables.found(manifest.active, "ORDER BY place")
            if seed is None:
                places = [number * manifest.places // count for number in range(count)]
            else:
                places = sample_places(manifest.places, count, seed)
            return tables.found(
                manifest.active,
                "WHERE place IN (SELECT (SELECT min(place) FROM records WHERE place > after) FROM unnest(%s::bigint[]) "
                "AS drawn (after)) ORDER BY place",
                places,
            )

        return self._read(read)

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        """Search a generation by the dot product: with every vector, or with candidates from its index."""
        kept, k = None if where is None else parse(where), check_k(k)

        def read(tables: Tables) -> list[list[Hit]]:
            manifest = tables.manifest()
            state = manifest.serving if generation is None else manifest.generation(generation)
            _check_space(state, fingerprint)
            check_unit(queries, len(queries), manifest.dim)
            table = f"vectors_{state.number}"
            there = "SELECT FROM pg_indexes WHERE schemaname = %s AND indexname = %s"
            if manifest.index.kind is None or not tables.rows(there, self.name, f"nearest_{state.number}"):
                return [_exact(tables, table, query, k, kept) for query in queries]
            return [_approximate(tables, table, manifest, query, k, kept) for query in queries]

        return self._read(read)

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Search by words with BM25 over all records."""
        check_list(queries, call="search_text", what="queries")
        kept, k = condition(None if where is None else parse(where)), check_k(k)
        return self._read(lambda tables: [_by_words(tables, query, k, kept) for query in queries])

    def index_texts(self) -> None:
        """Make the table of words anew."""
        self._write(Tables.put_words)

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of ids in the active generation."""
        check_list(ids, call="vectors", what="ids")

        def read(tables: Tables) -> Float32[np.ndarray, "ids dim"]:
            manifest = tables.manifest()
            _check_space(manifest.serving, fingerprint)
            places = tables.places(ids)
            wanted = [places[id_] for id_ in ids]  # KeyError for an unknown id
            found = _vectors(tables, manifest.active, wanted)
            return np.array([found[place] for place in wanted], np.float32).reshape(-1, manifest.dim)

        return self._read(read)

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first."""

        def read(tables: Tables) -> list[Generation]:
            manifest = tables.manifest()
            return [
                Generation(number, fingerprint, number == manifest.active, _count(tables, number))
                for number, fingerprint in manifest.generations
            ]

        return self._read(read)

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the lease: an advisory lock of a connection, and a number that fences off runs that lost theirs."""
        self._read(Tables.manifest)
        taken = f"{self!r}: another run holds the lease to change its context. Wait for it to finish."
        with self._database.session() as connection:
            key = [_LEASES, self.name]
            if not connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", key).fetchone()[0]:
                raise StoreError(taken)
            self._run = self._write(lambda tables: tables.rows("UPDATE manifest SET run = run + 1 RETURNING run")[0][0])
            try:
                yield
            finally:
                self._run = None

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Begin an empty, inactive generation; returns its number."""

        def write(tables: Tables) -> int:
            manifest = self._fenced(tables)
            tables.begin(manifest.last + 1, fingerprint, context, manifest.dim)
            tables.run("UPDATE manifest SET last = last + 1")
            return manifest.last + 1

        return self._write(write)

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return rows that have no vector in an inactive generation."""
        limit = check_rows(limit, "limit")

        def read(tables: Tables) -> list[Row]:
            manifest = tables.manifest()
            manifest.inactive(generation)
            place = 0 if after is None else tables.places([after.record.id]).get(after.record.id, 0)
            return tables.found(
                manifest.active,
                f"WHERE place > %s AND NOT EXISTS (SELECT FROM vectors_{generation} n WHERE n.place = r.place) "
                "ORDER BY place LIMIT %s",
                place,
                limit,
            )

        return self._read(read)

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation; returns the number of rows that were as they were read."""
        if len({row.record.id for row in rows}) != len(rows):
            raise CorpusError("Expected each id once in one call of add_to_generation, found one twice.")

        def write(tables: Tables) -> int:
            manifest = self._fenced(tables)
            manifest.inactive(generation)
            check_unit(vectors, len(rows), manifest.dim)
            places = tables.places(row.record.id for row in rows)
            found = tables.rows(
                f"SELECT place, digest FROM vectors_{manifest.active} WHERE place = ANY(%s)",  # noqa: S608
                list(places.values()),
            )
            now = dict(found)
            same = [
                number
                for number, row in enumerate(rows)
                if row.record.id in places and now.get(places[row.record.id]) == row.digest
            ]
            wanted = [places[rows[number].record.id] for number in same]
            tables.put_vectors(generation, wanted, [digests[number] for number in same], vectors[same])
            return len(same)

        return self._write(write)

    def activate(self, generation: int, *, last: Completion | None = None) -> None:
        """Make a generation the active one, in one transaction with the vectors of its last rows and its index."""

        def write(tables: Tables) -> None:
            manifest = self._fenced(tables)
            manifest.inactive(generation)
            missing = tables.found(
                manifest.active,
                f"WHERE NOT EXISTS (SELECT FROM vectors_{generation} n WHERE n.place = r.place) ORDER BY place",
            )
            if missing and last is not None:
                digests, vectors = last(missing)
                check_unit(vectors, len(missing), manifest.dim)
                places = tables.places(row.record.id for row in missing)
                tables.put_vectors(generation, [places[row.record.id] for row in missing], digests, vectors)
            elif missing:
                ((there,),) = tables.rows("SELECT count(*) FROM records")
                raise StoreError(
                    f"Expected vectors of generation {generation} for {there} records, found {there - len(missing)}. "
                    "Add the lacking ones first."
                )
            self._build_index(tables, manifest, generation)
            tables.run("UPDATE manifest SET active = %s", generation)

        self._write(write)

    def drop(self, generation: int) -> None:
        """Remove an inactive generation and its vectors."""

        def write(tables: Tables) -> None:
            self._fenced(tables).inactive(generation)
            tables.run("DELETE FROM generations WHERE number = %s", generation)
            tables.run(f"DROP TABLE vectors_{generation}")

        self._write(write)

    def verify(self) -> list[Damage]:
        """Compare every record and vector with its checksum, and words and fields with the records."""
        return self._read(lambda tables: list(_damages(tables)))

    def close(self) -> None:
        """Close all connections; later calls open others."""
        self._database.close()

    def remove(self) -> None:
        """Delete the collection with its contents.

        Raises:
            StoreError: There is none, or this role may not.
        """
        self._write(lambda tables: tables.run(f'DROP SCHEMA "{self.name}" CASCADE'))

    def __repr__(self) -> str:
        return f"PgVectorStore({self._database.where!r})"

    def _read(self, work: Callable[[Tables], Result]) -> Result:
        return self._database.read(lambda connection: work(Tables(connection)))

    def _write(self, work: Callable[[Tables], Result]) -> Result:
        return self._database.write(lambda connection: work(Tables(connection)))

    def _fenced(self, tables: Tables) -> Manifest:
        """Return the manifest, unless this object held the lease and another run has it by now."""
        manifest = tables.manifest()
        if self._run is not None and self._run != manifest.run:
            raise StoreError(
                f"{self!r}: expected to hold the lease, found that another run took it after the connection was lost. "
                "Call again; what is embedded stays."
            )
        return manifest

    def _build_index(self, tables: Tables, manifest: Manifest, generation: int) -> None:
        if manifest.index.kind is not None:
            manifest.index.build(tables.run, generation, manifest.dim, _count(tables, generation))

    def _scrolled(self, where: Filter | None, page: int) -> Iterator[Row]:
        last = self._read(lambda tables: tables.manifest().places)
        kept, after = condition(where), 0

        def read(tables: Tables) -> list[tuple[Any, ...]]:
            active = tables.manifest().active
            return tables.rows(
                f"SELECT place, {RECORD}, coalesce(a.digest, '') FROM records r "  # noqa: S608
                f"LEFT JOIN vectors_{active} a USING (place) WHERE place > %s AND place <= %s AND {kept.sql} "
                "ORDER BY place LIMIT %s",
                *(after, last, *kept.parameters, page),
            )

        while rows := self._read(read):
            yield from (Row(read_record(*row[1:-1]), row[-1]) for row in rows)
            after = rows[-1][0]


def _check_space(state: GenerationRow, fingerprint: str) -> None:
    if state.fingerprint != fingerprint:
        raise ContextMismatchError(expected=state.fingerprint, found=fingerprint)


def _count(tables: Tables, generation: int) -> int:
    return tables.rows(f"SELECT count(*) FROM vectors_{generation}")[0][0]  # noqa: S608


def _vectors(tables: Tables, generation: int, places: Sequence[int]) -> dict[int, Float32[np.ndarray, " dim"]]:
    """Return vectors by place.

    Raises:
        StoreFormatError: A row is not as it was written.
    """
    sql = f"SELECT {VECTOR} FROM vectors_{generation} WHERE place = ANY(%s)"  # noqa: S608
    return {row[0]: read_vector(*row) for row in tables.rows(sql, list(places))}


def _hits(rows: Sequence[tuple[Any, ...]]) -> list[Hit]:
    return [Row(read_record(*row[:-1]), "").hit(float(row[-1])) for row in rows]


def _exact(
    tables: Tables,
    table: str,
    query: Float32[np.ndarray, " dim"],
    k: int,
    where: Filter | None,
) -> list[Hit]:
    kept = condition(where)
    return _hits(
        tables.rows(
            f"SELECT {RECORD}, -near.distance FROM (SELECT place, vector <#> %s AS distance "  # noqa: S608
            f"FROM {table} WHERE {kept.sql} ORDER BY distance, place LIMIT %s) near "
            "JOIN records r USING (place) ORDER BY near.distance, place",
            *(query, *kept.parameters, k),
        )
    )


def _approximate(
    tables: Tables,
    table: str,
    manifest: Manifest,
    query: Float32[np.ndarray, " dim"],
    k: int,
    where: Filter | None,
) -> list[Hit]:
    kept, candidates = condition(where), manifest.index.candidates(k)
    manifest.index.tune(tables.run, candidates)
    found = _hits(
        tables.rows(
            f"WITH near AS MATERIALIZED (SELECT place, vector FROM {table} WHERE {kept.sql} "  # noqa: S608
            f"ORDER BY {manifest.index.distance(manifest.dim)} LIMIT %s) "
            f"SELECT {RECORD}, -(near.vector <#> %s) AS score FROM near JOIN records r USING (place) "
            "ORDER BY score DESC, place LIMIT %s",
            *(*kept.parameters, query, candidates, query, k),
        )
    )
    return found if len(found) == k else _exact(tables, table, query, k, where)  # a rare filter


def _by_words(tables: Tables, query: str, k: int, kept: Any) -> list[Hit]:
    times = Counter(words_in(query))
    if not times:
        return []
    ((texts, words),) = tables.rows("SELECT texts, words FROM manifest")
    having = dict(tables.rows("SELECT term, count(*) FROM words WHERE term = ANY(%s) GROUP BY term", list(times)))
    weights = {
        term: count * math.log(1 + (texts - having[term] + 0.5) / (having[term] + 0.5))
        for term, count in times.items()
        if term in having
    }
    norm = f"{_K1 * (1 - _B)} + {_K1 * _B} * l.length / %s"
    return _hits(
        tables.rows(
            f"SELECT {RECORD}, best.score FROM (SELECT w.place, "  # noqa: S608
            f"sum(asked.weight * w.times * {_K1 + 1} / (w.times + {norm}) ORDER BY w.term) AS score "
            "FROM unnest(%s::text[], %s::float8[]) AS asked (term, weight) "
            'JOIN words w ON w.term = asked.term COLLATE "C" '
            f"JOIN records l ON l.place = w.place WHERE w.place IN (SELECT place FROM records WHERE {kept.sql}) "
            "GROUP BY w.place ORDER BY score DESC, w.place LIMIT %s) best "
            "JOIN records r ON r.place = best.place ORDER BY best.score DESC, best.place",
            *(words / max(1, texts), list(weights), list(weights.values()), *kept.parameters, k),
        )
    )


def _damages(tables: Tables) -> Iterator[Damage]:
    manifest = tables.manifest()
    names = {place: unescaped(id_) for place, id_ in tables.stream("SELECT place, id FROM records")}
    fields = sum(map(hash, tables.stream("SELECT place, path, kind, number, value, instant FROM fields")))
    words = sum(map(hash, tables.stream("SELECT term, place, times FROM words")))
    for row in tables.stream(f"SELECT {RECORD}, place FROM records r"):  # noqa: S608
        try:
            record = read_record(*row[:-1])
        except StoreFormatError as error:
            yield Damage(row[0], str(error))
            continue
        fields -= sum(hash(field_row(row[-1], one)) for one in flatten(record.metadata))
        words -= sum(hash((term, row[-1], times)) for term, times in Counter(words_of(record)).items())
    if fields:
        yield Damage("fields", "Expected the metadata of the records, found other. Write it with update_metadata.")
    if words:
        remedy = "cde-rag reindex (store.index_texts()) makes them again."
        yield Damage("words", f"Expected the words of the records, found others. {remedy}")
    for number, _ in manifest.generations:
        lacking = set(names)
        for row in tables.stream(f"SELECT {VECTOR} FROM vectors_{number}"):  # noqa: S608
            lacking.discard(row[0])
            try:
                read_vector(*row)
            except StoreFormatError as error:
                yield Damage(f"{names.get(row[0], row[0])}, generation {number}", str(error))
        if number == manifest.active:
            for place in sorted(lacking):
                yield Damage(names[place], "Expected a vector, found none. Add the record again.")
