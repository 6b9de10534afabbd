"""PgVectorStore; its tables are described in schema.py. Long because one class has all calls of a store."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_ids, check_list
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.base import Completion, Damage, Hit, Row
from cde_rag.stores.call_by_call import CallByCall
from cde_rag.stores.checks import (
    check_k,
    check_once,
    check_records,
    check_rows,
    check_unit,
    checksum_of,
    encode,
    sample_places,
)
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filters import parse
from cde_rag.stores.manifests import Generation, StoreManifest, check_space
from cde_rag.stores.postgres.address import Address
from cde_rag.stores.postgres.database import PgDatabase, Result
from cde_rag.stores.postgres.index import PgIndex, build
from cde_rag.stores.postgres.schema import FORMAT, PgNames
from cde_rag.stores.postgres.search import Plan, by_words, nearest, plan
from cde_rag.stores.postgres.security import grant_read, restrict, revoke_read
from cde_rag.stores.postgres.tables import (
    RECORD,
    PgManifest,
    PgTables,
    condition,
    read_record,
    read_vector,
)
from cde_rag.stores.postgres.verify import find_damage
from cde_rag.stores.text_analysis import updated

_LEASES: Final = 0x636465  # first half of the keys of our advisory locks


class PgVectorStore(CallByCall):
    """Records, vectors and contexts in PostgreSQL with pgvector.

    `search_text` is BM25 over all records, made in the server from the table `words`: for each word of the query, as
    often as it comes, `idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · l / mean l))`, with `idf = ln(1 + (N − n + 0.5) /
    (n + 0.5))` of N records with words and n with this one.

    Args:
        dsn: Address of the database for libpq, such as `postgresql://user@host/database`.
        name: Name of the collection, which gets a schema of this name.
        index: `hnsw`, `ivfflat` or None, which compares a query with every vector. Stored by `create`; built once a
            generation has 10 000 records. Leave it out to open a collection, or name the one that it has.
        quantization: `half` or `binary` for what the index holds; the table keeps full vectors, which give the scores.

    Raises:
        MissingExtraError: psycopg is not installed.
        StoreError: An address that cannot be read, or a name that no schema can have.
        ValueError: `index` or `quantization` is none of these.
    """

    _restricted: ClassVar = False  # to roles that grant_read names, from the start

    def __init__(self, dsn: str, name: str, *, index: str | None = None, quantization: str | None = None) -> None:
        self._index = PgIndex(index, quantization).check()
        self._database = PgDatabase(dsn, name)
        self._plans = dict[int | None, Plan]()  # of searches, by the generation that was asked for
        self._loading = False
        self._run: tuple[int, str | None] | None = None  # number and token of the lease held through this object

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

    @property
    def dsn(self) -> str:
        """Address of the database, with its password if it contains one."""
        return self._database.dsn

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
        self._write(lambda tables: grant_read(tables, role))

    def revoke_read(self, role: str) -> None:
        """Revoke the grants of `grant_read` from a role.

        Raises:
            StoreError: There is no such role, or this one may not do it.
        """
        self._write(lambda tables: revoke_read(tables, role))

    def restrict_rows(self) -> None:
        """Turn row-level security on: a role sees rows only if `grant_read` names it, whatever else it was granted.

        Collections of tenants have it from the start. Roles that were granted before have to be granted again.

        Raises:
            StoreError: This role does not own the tables.
        """
        self._write(restrict)

    def reindex(self, *, index: str | None, quantization: str | None = None) -> None:
        """Change the vector index, in one transaction; nothing is embedded, and searches wait for it.

        Args:
            index: As in the class.
            quantization: As in the class.

        Raises:
            StoreError: This role does not own the tables.
            ValueError: `index` or `quantization` is another, or the vectors have too many dimensions for it.
        """
        new = PgIndex(index, quantization).check()

        def change(tables: PgTables) -> None:
            new.check(tables.manifest().dim)
            tables.run(f"UPDATE {tables.names.manifest} SET index = %s, quantization = %s", *new)  # noqa: S608
            manifest = tables.manifest()
            for state in manifest.generations:
                tables.run(f"DROP INDEX IF EXISTS {tables.names.table(f'nearest_{state.number}')}")
                build(tables, manifest, state.number)

        self._write(change)
        self._index = new

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make the schema and its tables in one transaction."""
        encoded = encode(settings, "The store's settings")
        index = self._index.check(dim)

        def fill(connection: Any, names: PgNames) -> None:
            tables = PgTables(connection, names)
            tables.run(
                f"INSERT INTO {names.manifest} VALUES (true, %s, %s, 1, 1, %s, %s, %s, 0, 0, 0, 0)",  # noqa: S608
                *(FORMAT, dim, encoded, index.kind, index.quantization),
            )
            tables.begin(1, fingerprint, context, dim)
            if self._restricted:
                restrict(tables)

        self._database.create(fill)

    def exists(self) -> bool:
        """Return True if the schema holds a collection."""
        return self._database.exists()

    def manifest(self) -> StoreManifest:
        """Return the store's manifest."""
        found = self._read(PgTables.manifest)
        index = PgIndex.of(found)
        if self._index.kind is not None and index != self._index:
            raise StoreError(
                f"{self}: expected a collection with {self._index}, found one with {index}. Leave index and "
                "quantization out to open it, or change its index with reindex(…)."
            )
        return StoreManifest(found.dim, found.serving.fingerprint, found.active, found.settings)

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context."""

        def read(tables: PgTables) -> bytes:
            manifest = tables.manifest()
            state = manifest.serving if generation is None else manifest.generation(generation)
            ((context, checksum),) = tables.rows(
                f"SELECT context, checksum FROM {tables.names.generations} WHERE number = %s",  # noqa: S608
                state.number,
            )
            if context is None or checksum_of(context) != checksum:
                raise StoreFormatError(
                    f"{self}: expected the context of generation {state.number} as it was written, found other "
                    "bytes. Restore a backup."
                )
            return context

        return self._read(read)

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Upsert rows and their vectors in one transaction."""
        records = list(check_records(row.record for row in rows))
        digests = [row.digest for row in rows]

        def write(tables: PgTables) -> None:
            manifest = tables.manifest()
            check_space(manifest.serving, fingerprint)
            check_unit(vectors, len(rows), manifest.dim)
            places = tables.put(records, manifest)
            for state in manifest.generations:
                if state.number != manifest.active:
                    tables.run(
                        f"DELETE FROM {tables.names.vectors(state.number)} old "  # noqa: S608
                        "USING unnest(%s::bigint[], %s::text[]) AS new (place, digest) "
                        "WHERE old.place = new.place AND old.digest != new.digest",
                        places,
                        digests,
                    )
            tables.put_vectors(manifest.active, places, digests, vectors)
            if not self._loading:
                build(tables, manifest, manifest.active)

        self._write(write)

    @contextmanager
    def loading(self) -> Generator[None, None, None]:
        """Build no index while the block adds many rows through this object, but at its end, which is faster.

        Until then searches compare every vector. If the block raises, the next `add` builds the index.

        Raises:
            StoreError: There is no collection, or no connection.
        """
        before, self._loading = self._loading, True
        try:
            yield
        finally:
            self._loading = before

        def write(tables: PgTables) -> None:
            manifest = tables.manifest()
            build(tables, manifest, manifest.active)

        self._write(write)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of records; vectors and digests stay."""
        check_ids(metadata, call="update_metadata")
        encoded = {id_: encode(new, f"Record {id_!a:.80}: its metadata") for id_, new in metadata.items()}

        def write(tables: PgTables) -> None:
            places = tables.places(metadata)
            for id_, new in metadata.items():
                place = places[id_]  # KeyError for an unknown id
                ((*columns,),) = tables.rows(
                    f"SELECT {RECORD} FROM {tables.names.records} r WHERE place = %s",  # noqa: S608
                    place,
                )
                tables.put_metadata(place, replace(read_record(*columns), metadata=dict(new)), encoded[id_])

        self._write(write)

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection."""
        encode(changes, "The store's settings")
        self._write(lambda tables: tables.put_settings(updated(tables.manifest().settings, changes)))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows from every generation; returns their number."""
        ids = check_ids(ids, call="delete")

        def write(tables: PgTables) -> int:
            places = list(tables.places(ids).values())
            tables.delete(places, tables.manifest())
            return len(places)

        return self._write(write)

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, in the order of `ids`."""
        ids = check_ids(ids, call="get")

        def read(tables: PgTables) -> list[Row]:
            places = list(tables.places(ids).values())
            return tables.found(tables.manifest().active, "WHERE place = ANY(%s)", places)

        rows = {row.record.id: row for row in self._read(read)}
        return [rows[id_] for id_ in ids if id_ in rows]

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of rows that match a filter."""
        parsed = None if where is None else parse(where)

        def read(tables: PgTables) -> int:
            kept = condition(parsed, tables.names)
            sql = f"SELECT count(*) FROM {tables.names.records} WHERE {kept.sql}"  # noqa: S608
            return tables.rows(sql, *kept.parameters)[0][0]

        return self._read(read)

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Iterate over all rows that match a filter, in order of insertion."""
        page = check_rows(page, "page")
        return self._scrolled(None if where is None else parse(where), page)

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        count = check_rows(count, "count")

        def read(tables: PgTables) -> list[Row]:
            manifest, records = tables.manifest(), tables.names.records
            ((there,),) = tables.rows(f"SELECT count(*) FROM {records}")  # noqa: S608
            if there <= count:
                return tables.found(manifest.active, "ORDER BY place")
            if seed is None:
                places = [number * manifest.places // count for number in range(count)]
            else:
                places = sample_places(manifest.places, count, seed)
            return tables.found(
                manifest.active,
                f"WHERE place IN (SELECT (SELECT min(place) FROM {records} WHERE place > after) "  # noqa: S608
                "FROM unnest(%s::bigint[]) AS drawn (after)) ORDER BY place",
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
        """Search a generation by the dot product: with every vector, or with candidates from its index.

        One query is one statement: it uses what the last search knew of the manifest, and compares that with the
        manifest as the statement sees it. If it is another, and for several queries, a transaction reads it first.
        """
        kept, k = None if where is None else parse(where), check_k(k)

        def hits(tables: PgTables, known: Plan) -> list[list[Hit]] | None:
            check_space(known.generation, fingerprint)
            check_unit(queries, len(queries), known.dim)
            found = [nearest(tables, known, query, k, kept) for query in queries]
            return None if None in found else [one for one in found if one is not None]

        def read(tables: PgTables) -> list[list[Hit]]:
            manifest = tables.manifest()
            state = manifest.serving if generation is None else manifest.generation(generation)
            known = self._plans[generation] = plan(tables, manifest, state)
            found = hits(tables, known)
            assert found is not None  # this transaction sees one manifest
            return found

        known = self._plans.get(generation)
        if known is not None and len(queries) == 1 and known.generation.fingerprint == fingerprint:
            found = self._database.glance(lambda connection, names: hits(PgTables(connection, names), known))
            if found is not None:
                return found
        return self._read(read)

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Search by words with BM25 over all records."""
        check_list(queries, call="search_text", what="queries")
        kept, k = None if where is None else parse(where), check_k(k)

        def read(tables: PgTables) -> list[list[Hit]]:
            manifest = tables.manifest()
            return [by_words(tables, manifest, query, k, kept) for query in queries]

        return self._read(read)

    def index_texts(self) -> None:
        """Make the table of words anew, with the newest analyzer and in the newest format, in one transaction."""
        self._write(PgTables.put_words)

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of ids in the active generation."""
        ids = check_ids(ids, call="vectors")

        def read(tables: PgTables) -> Float32[np.ndarray, "ids dim"]:
            manifest = tables.manifest()
            check_space(manifest.serving, fingerprint)
            places = tables.places(ids)
            wanted = [places[id_] for id_ in ids]  # KeyError for an unknown id
            sql = f"{tables.vector_rows(manifest.active)} WHERE place = ANY(%s)"
            found = {row[0]: read_vector(*row) for row in tables.rows(sql, wanted)}
            return np.array([found[place] for place in wanted], np.float32).reshape(-1, manifest.dim)

        return self._read(read)

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first."""

        def read(tables: PgTables) -> list[Generation]:
            manifest = tables.manifest()
            return [
                Generation(number, fingerprint, number == manifest.active, tables.count(number))
                for number, fingerprint in manifest.generations
            ]

        return self._read(read)

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the lease: the lock of a transaction, and a token in the manifest that fences off runs that lost theirs.

        The transaction stays open meanwhile; behind a transaction pooler it occupies one of its connections.
        """
        self._read(PgTables.manifest)
        with self._database.lock([_LEASES, self.name]) as process:
            if process is None:
                raise StoreError(f"{self}: another run holds the lease to change its context. Wait for it to finish.")

            def take(tables: PgTables) -> PgManifest | None:
                token = "" if tables.manifest().store is None else ", lease = gen_random_uuid()"
                taken = tables.run(
                    f"UPDATE {tables.names.manifest} SET run = run + 1{token} WHERE EXISTS (SELECT FROM pg_locks "  # noqa: S608
                    "WHERE locktype = 'advisory' AND granted AND classid = %s AND pid = %s)",
                    *(_LEASES, process),
                )
                return tables.manifest() if taken else None

            if (manifest := self._write(take)) is None:
                raise StoreError(f"{self}: the connection that held the lease was lost. Call again.")
            self._run = manifest.run, manifest.lease
            try:
                yield
            finally:
                self._run = None

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Begin an empty, inactive generation; returns its number."""

        def write(tables: PgTables) -> int:
            manifest = self._fenced(tables)
            tables.begin(manifest.last + 1, fingerprint, context, manifest.dim)
            tables.run(f"UPDATE {tables.names.manifest} SET last = last + 1")  # noqa: S608
            return manifest.last + 1

        return self._write(write)

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return rows that have no vector in an inactive generation."""
        limit = check_rows(limit, "limit")

        def read(tables: PgTables) -> list[Row]:
            manifest = self._fenced(tables)
            manifest.inactive(generation)
            place = 0 if after is None else tables.places([after.record.id]).get(after.record.id, 0)
            return tables.found(
                manifest.active,
                f"WHERE place > %s AND {_lacks(tables, generation)} ORDER BY place LIMIT %s",
                place,
                limit,
            )

        return self._read(read)

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation; returns the number of rows that were as they were read."""
        check_once(rows)

        def write(tables: PgTables) -> int:
            manifest = self._fenced(tables)
            manifest.inactive(generation)
            check_unit(vectors, len(rows), manifest.dim)
            places = tables.places(row.record.id for row in rows)
            found = tables.rows(
                f"SELECT place, digest FROM {tables.names.vectors(manifest.active)} WHERE place = ANY(%s)",  # noqa: S608
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

        def write(tables: PgTables) -> None:
            manifest = self._fenced(tables)
            manifest.inactive(generation)
            missing = tables.found(manifest.active, f"WHERE {_lacks(tables, generation)} ORDER BY place")
            if missing and last is not None:
                digests, vectors = last(missing)
                check_unit(vectors, len(missing), manifest.dim)
                places = tables.places(row.record.id for row in missing)
                tables.put_vectors(generation, [places[row.record.id] for row in missing], digests, vectors)
            elif missing:
                ((there,),) = tables.rows(f"SELECT count(*) FROM {tables.names.records}")  # noqa: S608
                raise StoreError(
                    f"Expected vectors of generation {generation} for {there} records, found {there - len(missing)}. "
                    "Add the lacking ones first."
                )
            build(tables, manifest, generation)
            tables.run(f"UPDATE {tables.names.manifest} SET active = %s", generation)  # noqa: S608

        self._write(write)

    def drop(self, generation: int) -> None:
        """Remove an inactive generation and its vectors."""

        def write(tables: PgTables) -> None:
            self._fenced(tables).inactive(generation)
            tables.run(f"DELETE FROM {tables.names.generations} WHERE number = %s", generation)  # noqa: S608
            tables.run(f"DROP TABLE {tables.names.vectors(generation)}")

        self._write(write)

    def verify(self) -> list[Damage]:
        """Compare every record and vector with its checksum, and words and fields with the records."""
        return self._read(lambda tables: list(find_damage(tables)))

    def close(self) -> None:
        """Close all connections; later calls open others."""
        self._database.close()

    def remove(self) -> None:
        """Delete the collection with its contents.

        Raises:
            StoreError: There is none, or this role may not.
        """
        self._write(lambda tables: tables.run(f"DROP SCHEMA {tables.names.schema} CASCADE"))
        self._database.forget()

    def __repr__(self) -> str:
        return f"PgVectorStore({self._database.where!r})"

    def __str__(self) -> str:
        return self._database.where  # in errors

    def _read(self, work: Callable[[PgTables], Result]) -> Result:
        return self._database.read(lambda connection, names: work(PgTables(connection, names)))

    def _write(self, work: Callable[[PgTables], Result]) -> Result:
        return self._database.write(lambda connection, names: work(PgTables(connection, names)))

    def _fenced(self, tables: PgTables) -> PgManifest:
        """Return the manifest, unless this object held the lease and another run has it by now."""
        manifest = tables.manifest()
        if self._run is not None and self._run != (manifest.run, manifest.lease):
            raise StoreError(
                f"{self}: expected to hold the lease, found that another run took it after the connection was lost, or "
                "that the database went back to an earlier state. Call again; embedded vectors stay."
            )
        return manifest

    def _scrolled(self, where: Filter | None, page: int) -> Iterator[Row]:
        first, after = self._read(PgTables.manifest), 0

        def read(tables: PgTables) -> list[tuple[Any, ...]]:
            manifest, kept = tables.manifest(), condition(where, tables.names)
            if None not in (first.store, manifest.store) and first.store != manifest.store:
                raise StoreError(f"{self}: another collection took the place of this one during the scan. Start again.")
            return tables.rows(
                f"SELECT place, {RECORD}, coalesce(a.digest, '') FROM {tables.names.records} r "  # noqa: S608
                f"LEFT JOIN {tables.names.vectors(manifest.active)} a USING (place) "
                f"WHERE place > %s AND place <= %s AND {kept.sql} ORDER BY place LIMIT %s",
                *(after, first.places, *kept.parameters, page),
            )

        while rows := self._read(read):
            yield from (Row(read_record(*row[1:-1]), row[-1]) for row in rows)
            after = rows[-1][0]


def _lacks(tables: PgTables, generation: int) -> str:
    """Return the condition that a record `r` has no vector in a generation."""
    return f"NOT EXISTS (SELECT FROM {tables.names.vectors(generation)} n WHERE n.place = r.place)"
