"""PostgreSQL as an engine of `cde_rag.stores.store.Store`; its tables are described in schema.py."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import StoreError, StoreFormatError, TextIndexError
from cde_rag.records import Record, Row
from cde_rag.stores.base import Damage
from cde_rag.stores.checks import checksum_of, sample_places
from cde_rag.stores.engine import Found, Place, Placed, Result, Session, Version
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.manifests import GenerationRow
from cde_rag.stores.postgres.database import PgDatabase
from cde_rag.stores.postgres.index import PgIndex, build
from cde_rag.stores.postgres.schema import FORMAT
from cde_rag.stores.postgres.search import Plan, by_words, nearest, plan
from cde_rag.stores.postgres.security import restrict
from cde_rag.stores.postgres.tables import RECORD, PgManifest, PgTables, condition, read_record, wanted
from cde_rag.stores.postgres.verify import find_damage
from cde_rag.stores.postgres.words import check_postings

_LEASES: Final = 0x636465  # first half of the keys of our advisory locks
_Search: TypeAlias = Callable[[Plan, Any], tuple[str | None, list[Found]]]


class _Known(NamedTuple):
    """A manifest, and the plans of searches by generation, each with the state that it holds for."""

    manifest: PgManifest
    plans: Mapping[int, tuple[Plan, str]]


class _OlderError(StoreError):
    """An earlier manifest does not answer a search: it is another now, or the search takes several statements."""


class PgSession:
    """One state of a collection: its tables inside one transaction. Implements `cde_rag.stores.engine.Session`.

    The key of a version and of a record that was found is its place. The text of a place is the collection's random id.

    Args:
        engine: Keeper of the collection.
        tables: Through a connection in a transaction.
    """

    def __init__(self, engine: "PgEngine", tables: PgTables) -> None:
        self._engine = engine
        self.tables = tables

    @property
    def manifest(self) -> PgManifest:
        """Manifest, as this session left it."""
        return self.tables.manifest

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the collection."""
        return self.manifest.settings

    @property
    def run(self) -> tuple[int, str | None]:
        """Number and random token of the run that took the lease last."""
        return self.manifest.run, self.manifest.lease

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context."""
        sql = f"SELECT context, checksum FROM {self.tables.names.generations} WHERE number = %s"  # noqa: S608
        ((context, checksum),) = self.tables.rows(sql, generation)
        if context is None or checksum_of(context) != checksum:
            raise StoreFormatError(
                f"{self._engine}: expected the context of generation {generation} as it was written, found other "
                "bytes. Restore a backup."
            )
        return context

    def get(self, ids: Sequence[str]) -> dict[str, Row]:
        """Return the rows of those ids that exist."""
        found = self.tables.found("WHERE id = ANY(%s)", wanted(ids))
        return {row.record.id: row for _, row in found}

    def scan(self, where: Filter | None, *, after: Place, limit: int) -> list[Placed]:
        """Return the first matching rows after a place.

        Raises:
            StoreError: It is a place in another collection.
        """
        (number, store), kept = after, condition(where, self.tables.names)
        if store and self.manifest.store not in (None, store):
            raise StoreError(
                f"{self._engine}: another collection took the place of this one during the scan. Start again."
            )
        sql = f"WHERE place > %s AND {kept.sql} ORDER BY place LIMIT %s"
        return self.tables.found(sql, number, *kept.parameters, limit)

    def last_place(self) -> int:
        """Return the place of the record that was inserted last."""
        return self.manifest.places

    def count(self, where: Filter | None) -> int:
        """Count the matching records."""
        return self.tables.count(self.tables.names.records, condition(where, self.tables.names))

    def sample(self, count: int, seed: int | None) -> list[Row]:
        """Return rows that each follow a drawn place, or places at equal distances."""
        last, records = self.last_place(), self.tables.names.records
        if self.count(None) <= count:
            found = self.tables.found("ORDER BY place")
        else:
            even = (number * last // count for number in range(count))
            found = self.tables.found(
                f"WHERE place IN (SELECT (SELECT min(place) FROM {records} WHERE place > after) "  # noqa: S608
                "FROM unnest(%s::bigint[]) AS drawn (after)) ORDER BY place",
                list(even) if seed is None else sample_places(last, count, seed),
            )
        return [row for _, row in found]

    def versions(self, ids: Sequence[str]) -> dict[str, Version]:
        """Return the places and digests of those ids that exist."""
        return self.tables.versions(ids)

    def vectors(self, generation: int, ids: Sequence[str]) -> dict[str, Float32[np.ndarray, " dim"]]:
        """Return the vectors of those ids that have one in a generation."""
        return self.tables.vectors(generation, ids)

    def count_vectors(self, generation: int) -> int:
        """Count the vectors of a generation."""
        return self.tables.count(self.tables.names.vectors(generation))

    def lacking(self, generation: int, *, after: str | None, limit: int) -> list[Row]:
        """Return the first rows without a vector in a generation, after a record."""
        names = self.tables.names
        sql = (
            f"WHERE place > coalesce((SELECT max(place) FROM {names.records} WHERE id = ANY(%s)), 0) AND NOT EXISTS "  # noqa: S608
            f"(SELECT FROM {names.vectors(generation)} n WHERE n.place = r.place) ORDER BY place LIMIT %s"
        )
        found = self.tables.found(sql, wanted([] if after is None else [after]), limit)
        return [row for _, row in found]

    def nearest(
        self,
        generation: int,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        where: Filter | None,
        *,
        complete: bool,
    ) -> list[list[Found]]:
        """Search with every vector, or with candidates from the generation's index."""
        return self._each(
            generation,
            list(queries),
            lambda made, query: nearest(self.tables, made, query, k, where, complete=complete),
        )

    def matching(self, queries: Sequence[str], k: int, where: Filter | None, *, complete: bool) -> list[list[Found]]:
        """Search by BM25; see `PgVectorStore`.

        Raises:
            TextIndexError: The collection is of format 1, whose terms only older versions read.
        """
        check_postings(self.manifest.format, TextIndexError)
        analyzer = self.manifest.analyzer
        return self._each(
            self.manifest.active,
            queries,
            lambda made, query: by_words(self.tables, made, analyzer, query, k, where, complete=complete),
        )

    def found(self, keys: Sequence[Any]) -> list[Record]:
        """Return the records of places, in their order."""
        sql = f"SELECT place, {RECORD} FROM {self.tables.names.records} r WHERE place = ANY(%s)"  # noqa: S608
        records = {row[0]: read_record(*row[1:]) for row in self.tables.rows(sql, list(keys))}
        return [records[key] for key in keys]

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Insert or replace records and their vectors, and build the index if it is due."""
        places, active = self.tables.put(records), self.manifest.active
        for state in self.manifest.generations:
            if state.number != active:
                self.tables.drop_stale(state.number, places, digests)
        if vectors is None:
            self.tables.drop_vectors(active, places)
        else:
            self.put_vectors(active, [Version(place, "") for place in places], digests, vectors)

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata, given as JSON, of records by id."""
        self.tables.put_metadata(metadata)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove those records of the ids that exist; return their number."""
        places = [version.key for version in self.versions(ids).values()]
        if places:
            self.tables.delete(places)
        return len(places)

    def put_vectors(
        self,
        generation: int,
        versions: Sequence[Version],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Insert or replace vectors; other writers are excluded, so that no record changed since `versions`."""
        self.tables.put_vectors(generation, [version.key for version in versions], digests, vectors)
        if generation == self.manifest.active and not self._engine.loading:
            build(self.tables, generation)
        return len(versions)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        encoded = json.dumps(settings, ensure_ascii=False)
        self.tables.run(f"UPDATE {self.tables.names.manifest} SET settings = %s", encoded)  # noqa: S608
        self.tables.manifest = replace(self.manifest, settings=json.loads(encoded))

    def index_texts(self) -> None:
        """Make the table of words anew, with the newest analyzer and in the newest format."""
        self.tables.put_words()

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add an empty, inactive generation; return its number."""
        number, names = self.manifest.last + 1, self.tables.names
        self.tables.begin(number, fingerprint, context, self.manifest.dim)
        self.tables.run(f"UPDATE {names.manifest} SET last = %s", number)  # noqa: S608
        states = *self.manifest.generations, GenerationRow(number, fingerprint)
        self.tables.manifest = replace(self.manifest, last=number, generations=states)
        return number

    def activate(self, generation: int) -> None:
        """Activate a generation, with its index."""
        build(self.tables, generation)
        self.tables.run(f"UPDATE {self.tables.names.manifest} SET active = %s", generation)  # noqa: S608
        self.tables.manifest = replace(self.manifest, active=generation)

    def drop(self, generation: int) -> None:
        """Remove an inactive generation."""
        self.tables.run(f"DELETE FROM {self.tables.names.generations} WHERE number = %s", generation)  # noqa: S608
        self.tables.run(f"DROP TABLE {self.tables.names.vectors(generation)}")
        states = tuple(state for state in self.manifest.generations if state.number != generation)
        self.tables.manifest = replace(self.manifest, generations=states)

    def reindex(self, index: PgIndex) -> None:
        """Change the index of all generations."""
        tables, names = self.tables, self.tables.names
        index.check(self.manifest.dim)
        tables.run(f"UPDATE {names.manifest} SET index = %s, quantization = %s", *index)  # noqa: S608
        tables.manifest = replace(self.manifest, index=index.kind, quantization=index.quantization)
        for state in self.manifest.generations:
            tables.run(f"DROP INDEX IF EXISTS {names.table(f'nearest_{state.number}')}")
            build(tables, state.number)

    def _each(self, generation: int, queries: Sequence[Any], search: _Search) -> list[list[Found]]:
        """Answer queries; their plan and the state that it holds for are kept for later searches."""
        made, every = plan(self.tables, generation), list[list[Found]]()
        for query in queries:
            state, found = search(made, query)
            every.append(found)
            if state is not None:
                self._engine.note(self.manifest, made, state)
        return every


class _Glance(PgSession):
    """A search in one statement, outside of a transaction, with a manifest that an earlier session read.

    The statement sees the state of the manifest, too; another one than the known raises an error.
    """

    def __init__(self, engine: "PgEngine", tables: PgTables, known: _Known) -> None:
        super().__init__(engine, tables)
        self.tables.manifest, self._plans = known

    def _each(self, generation: int, queries: Sequence[Any], search: _Search) -> list[list[Found]]:
        if generation not in self._plans or len(queries) != 1:
            raise _OlderError
        made, known = self._plans[generation]
        state, found = search(made, queries[0])
        if state != known:
            raise _OlderError
        return [found]


class PgEngine:
    """A collection in a schema of its own. Implements `cde_rag.stores.engine.Engine`.

    Args:
        dsn: Address of the database, for libpq.
        name: Name of the collection.
        index: Of a collection that `create` makes; a collection with another index is refused, if this has a kind.
        restricted: True to have `create` turn row-level security on.

    Attributes:
        loading: True while no index is built.
    """

    def __init__(self, dsn: str, name: str, index: PgIndex, *, restricted: bool) -> None:
        self.database = PgDatabase(dsn, name)
        self.loading = False
        self._index = index
        self._confirmed = index.kind is None  # else the collection was seen to have this index
        self._restricted = restricted
        self._known: _Known | None = None

    def exists(self) -> bool:
        """Return True if the schema holds a collection."""
        return self.database.exists()

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make the schema and its tables in one transaction."""
        index = self._index.check(dim)

        def fill(tables: PgTables) -> None:
            tables.run(
                f"INSERT INTO {tables.names.manifest} VALUES (true, %s, %s, 1, 1, %s, %s, %s, 0, 0, 0, 0)",  # noqa: S608
                *(FORMAT, dim, json.dumps(settings, ensure_ascii=False), index.kind, index.quantization),
            )
            tables.begin(1, fingerprint, context, dim)
            if self._restricted:
                restrict(tables)

        self.database.create(fill)

    def read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:
        """Call a function with one state; a single search is one statement without a transaction."""
        if once and (known := self._known) is not None:
            found = self.database.glance(lambda tables: (work(_Glance(self, tables, known)),))
            if found is not None:
                return found[0]
        return self.database.read(lambda tables: work(self._session(tables)))

    def write(self, work: Callable[[PgSession], Result], *, wait: bool = True) -> Result:
        """Call a function in one transaction, which excludes other writers."""
        return self.database.write(lambda tables: work(self._session(tables)), wait=wait)

    @contextmanager
    def lease(self) -> Generator[tuple[int, str | None], None, None]:
        """Hold the lease: the lock of a transaction, and a token in the manifest that fences off runs that lost theirs.

        The transaction stays open meanwhile; behind a transaction pooler it occupies one of its connections.
        """
        self.database.read(lambda tables: tables.manifest)
        with self.database.lock([_LEASES, self.database.name]) as process:
            if process is None:
                raise StoreError(f"{self}: another run holds the lease to change its context. Wait for it to finish.")

            def take(session: PgSession) -> tuple[int, str | None] | None:
                token = "" if session.manifest.store is None else ", lease = gen_random_uuid()"
                taken = session.tables.rows(
                    f"UPDATE {session.tables.names.manifest} m SET run = run + 1{token} WHERE EXISTS (SELECT FROM "  # noqa: S608
                    "pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s AND pid = %s) "
                    "RETURNING to_json(m)::text",
                    *(_LEASES, process),
                )
                row = json.loads(taken[0][0]) if taken else None
                return row and (row["run"], row.get("lease"))

            if (run := self.write(take)) is None:
                raise StoreError(f"{self}: the connection that held the lease was lost. Call again.")
            yield run

    def verify(self) -> list[Damage]:
        """Compare every record and vector with its checksum, and words and fields with the records."""
        return self.database.read(lambda tables: list(find_damage(tables)))

    def reindex(self, index: PgIndex) -> None:
        """Change the index of a collection, as `PgSession.reindex`."""
        self.database.write(lambda tables: PgSession(self, tables).reindex(index))
        self._index, self._confirmed = index, True

    def close(self) -> None:
        """Close all connections; later calls open others."""
        self.database.close()

    def note(self, manifest: PgManifest, made: Plan, state: str) -> None:
        """Keep a manifest, the plan of a search and its state, for later ones that are alike."""
        known = self._known
        others = known.plans if known is not None and known.manifest == manifest else dict[int, tuple[Plan, str]]()
        self._known = _Known(manifest, {**others, made.generation: (made, state)})

    def _session(self, tables: PgTables) -> PgSession:
        """Return a session, unless the collection has another index than the one that it is opened with."""
        session = PgSession(self, tables)
        if not self._confirmed and (found := PgIndex.of(session.manifest)) != self._index:
            raise StoreError(
                f"{self}: expected a collection with {self._index}, found one with {found}. Leave index and "
                "quantization out to open it, or change its index with reindex(…)."
            )
        self._confirmed = True
        return session

    def __str__(self) -> str:
        return self.database.where  # in errors
