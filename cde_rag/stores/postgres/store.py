"""PgVectorStore: a store in PostgreSQL, with the calls that other stores lack."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from cde_rag.stores.postgres.address import Address
from cde_rag.stores.postgres.engine import PgEngine, PgSession
from cde_rag.stores.postgres.index import PgIndex, PgIndexKind, PgQuantization, build
from cde_rag.stores.postgres.security import grant_read, restrict, revoke_read
from cde_rag.stores.store import Store


class PgVectorStore(Store):
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

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        index: PgIndexKind | None = None,
        quantization: PgQuantization | None = None,
    ) -> None:
        self._postgres = PgEngine(dsn, name, PgIndex(index, quantization).check(), restricted=self._restricted)
        super().__init__(self._postgres)

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
        return self._postgres.database.name

    @property
    def dsn(self) -> str:
        """Address of the database, with its password if it contains one."""
        return self._postgres.database.dsn

    def names(self, prefix: str) -> list[str]:
        """Return the names of this database's collections that begin so, sorted.

        Raises:
            StoreError: No connection.
        """
        return self._postgres.database.names(prefix)

    def grant_read(self, role: str) -> None:
        """Let a role of the database read this collection, its later generations too, and write nothing.

        Raises:
            StoreError: There is no such role, or this one may not grant it.
        """
        self._postgres.write(lambda session: grant_read(session.tables, role))

    def revoke_read(self, role: str) -> None:
        """Revoke the grants of `grant_read` from a role.

        Raises:
            StoreError: There is no such role, or this one may not do it.
        """
        self._postgres.write(lambda session: revoke_read(session.tables, role))

    def restrict_rows(self) -> None:
        """Turn row-level security on: a role sees rows only if `grant_read` names it, whatever else it was granted.

        Collections of tenants have it from the start. Roles that were granted before have to be granted again.

        Raises:
            StoreError: This role does not own the tables.
        """
        self._postgres.write(lambda session: restrict(session.tables))

    def reindex(self, *, index: PgIndexKind | None, quantization: PgQuantization | None = None) -> None:
        """Change the vector index, in one transaction; nothing is embedded, and searches wait for it.

        Args:
            index: As in the class.
            quantization: As in the class.

        Raises:
            StoreError: This role does not own the tables.
            ValueError: `index` or `quantization` is another, or the vectors have too many dimensions for it.
        """
        self._postgres.reindex(PgIndex(index, quantization).check())

    @contextmanager
    def loading(self) -> Generator[None, None, None]:
        """Build no index while the block adds many rows through this object, but at its end, which is faster.

        Until then searches compare every vector. If the block raises, the next `add` builds the index.

        Raises:
            StoreError: There is no collection, or no connection.
        """
        before, self._postgres.loading = self._postgres.loading, True
        try:
            yield
        finally:
            self._postgres.loading = before

        def end(session: PgSession) -> None:
            build(session.tables, session.manifest.active)

        self._postgres.write(end)

    def remove(self) -> None:
        """Delete the collection with its contents.

        Raises:
            StoreError: There is none, or this role may not.
        """
        self._postgres.write(lambda session: session.tables.run(f"DROP SCHEMA {session.tables.names.schema} CASCADE"))
        self._postgres.database.forget()
