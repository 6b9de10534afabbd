"""Connections to PostgreSQL and transactions on the tables of one collection."""

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet, finalize

from cde_rag.errors import CDEError, StoreError, StoreFormatError, require
from cde_rag.stores.postgres.address import checked_name, without_password
from cde_rag.stores.postgres.schema import FIELD_INDEXES, FORMAT, TABLES

_CONNECTIONS: Final = 8  # of one store at a time; more threads wait
_WAIT_S: Final = 10.0  # for one of them
_LOCK_WAIT_MS: Final = 2000  # for a lock that only a session which is about to end should hold
_TRIES: Final = 5  # of a transaction that the server rolled back for the sake of another
_OLDEST: Final = (0, 8)  # pgvector with iterative scans

Result = TypeVar("Result")


class _AgainError(StoreError):
    """The server rolled a transaction back for the sake of another."""


class PgDatabase:
    """The schema `name` in a database.

    Args:
        dsn: Address of the database, for libpq.
        name: Name of the collection.

    Raises:
        MissingExtraError: psycopg is not installed.
        StoreError: The name cannot be that of a schema, or the address cannot be read.
    """

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.name = checked_name(name)
        self.where = without_password(dsn, name)
        self._psycopg: Any = require("psycopg", "postgres")
        self._lock = threading.Lock()
        self._pool: Any = None  # made by the first call
        self._owner = 0  # process that made it
        self._unclosed: Any = None  # closes it if nobody else does; keeps it where a parent process made it
        self._ready = WeakSet[Any]()  # connections that have their path and types
        self._parameters = WeakKeyDictionary[Any, Sequence[str]]()  # that `glance` set on them
        try:
            self._psycopg.conninfo.conninfo_to_dict(dsn)
        except self._psycopg.Error as error:  # whose text repeats parts of the address, be they a password
            raise StoreError(
                f"{self.where}: expected an address such as postgresql://user@host/database, found another."
            ) from error

    def exists(self) -> bool:
        """Return True if the schema holds a collection.

        Raises:
            StoreError: No connection, or a schema of this name that holds something else.
        """
        with self._connection() as connection:
            schema = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.name]).fetchone()
            if schema is None:
                return False
            holds = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = %s LIMIT 1"
            if connection.execute(holds, [self.name]).fetchone() is None:
                return False  # an empty schema, such as an administrator makes for a role
            columns = connection.execute(
                "SELECT array_agg(column_name::text) FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = 'manifest'",
                [self.name],
            ).fetchone()[0]
        if not {"format", "active", "run"} <= set(columns or ()):
            raise StoreError(
                f"{self.where}: expected a collection or no schema {self.name!r}, found a schema with other tables, or "
                "one that this role may not read. Name another collection, or grant this role USAGE and SELECT."
            )
        return True

    def names(self, prefix: str) -> list[str]:
        """Return the names of collections that begin so, sorted."""
        with self._connection() as connection:
            found = connection.execute(
                "SELECT nspname::text FROM pg_namespace n WHERE starts_with(nspname::text, %s) AND EXISTS "
                "(SELECT FROM pg_class WHERE relnamespace = n.oid AND relname = 'manifest') ORDER BY nspname",
                [prefix],
            )
            return [name for (name,) in found]

    def create(self, fill: Callable[[Any], None]) -> None:
        """Make the schema with empty tables, and fill them in the same transaction.

        Raises:
            StoreError: There is a collection of this name, or the role may not make one.
        """
        taken = f"{self.where}: expected no collection, found one. Collection.open opens it."
        if self.exists():
            raise StoreError(taken)
        errors = self._psycopg.errors
        duplicates = (errors.DuplicateSchema, errors.DuplicateTable, errors.UniqueViolation)
        try:
            with self._connection() as connection, connection.transaction():
                self._make_extension(connection)
                there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.name]).fetchone()
                if there is None:
                    connection.execute(f'CREATE SCHEMA "{self.name}"')
                self._enter(connection, "LOCAL")
                connection.execute(TABLES + FIELD_INDEXES)
                fill(connection)
        except StoreError as error:
            if isinstance(error.__cause__, duplicates):  # another process was quicker
                raise StoreError(taken) from error
            raise

    def read(self, work: Callable[[Any], Result]) -> Result:
        """Call `work` with a connection in a transaction that sees one state and writes nothing.

        Raises:
            StoreError: There is no collection, or no connection.
            StoreFormatError: The collection is of a newer format.
        """
        return self._tried(work, reading=True)

    def glance(self, work: Callable[[Any], Result], parameters: Sequence[str]) -> Result | None:
        """Call `work`, whose statements need not see one state, with a connection outside of any transaction.

        Args:
            work: Reads.
            parameters: Parameters of the server that it needs, such as `hnsw.ef_search = 128`.

        Returns:
            What it returns, or None where a table was dropped meanwhile.

        Raises:
            StoreError: No connection.
        """
        try:
            with self._connection() as connection, self._repeatable(connection):
                self._prepare(connection)
                if self._parameters.get(connection, ()) != parameters:
                    for parameter in parameters:
                        connection.execute(f"SET {parameter}")
                    self._parameters[connection] = parameters
                return work(connection)
        except _AgainError:
            return None

    def write(self, work: Callable[[Any], Result]) -> Result:
        """Call `work` with a connection in a transaction that excludes other writers of the collection.

        Raises:
            StoreError: There is no collection, no connection, or this role may not write.
            StoreFormatError: The collection is of a newer format.
        """

        def excluding(connection: Any) -> Result:
            connection.execute("SELECT FROM manifest FOR UPDATE")
            return work(connection)

        return self._tried(excluding, reading=False)

    @contextmanager
    def session(self) -> Generator[Any, None, None]:
        """A connection of its own, outside of any transaction, for a lock that ends with it."""
        with self._errors(), self._psycopg.connect(self.dsn, autocommit=True) as connection:
            yield connection

    def lock(self, session: Any, key: Sequence[int | str]) -> bool:
        """Take an advisory lock for the rest of a session; returns False if another session keeps it.

        A session that was closed or lost a moment ago has it until its server process ends, so that this waits.
        """
        session.execute(f"SET lock_timeout = {_LOCK_WAIT_MS}")
        try:
            session.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", key)
        except self._psycopg.errors.LockNotAvailable:
            return False
        session.execute("RESET lock_timeout")
        return True

    def close(self) -> None:
        """Close all connections; later calls open others."""
        with self._lock:
            pool, self._pool = self._pool, None
            if pool is None or self._owner != os.getpid():
                return  # closing a parent process's pool would end its connections
            self._unclosed.detach()
        pool.close()

    def _tried(self, work: Callable[[Any], Result], *, reading: bool) -> Result:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(_AgainError):
                return self._once(work, reading=reading)
        return self._once(work, reading=reading)

    def _once(self, work: Callable[[Any], Result], *, reading: bool) -> Result:
        levels = self._psycopg.IsolationLevel
        with self._connection() as connection:
            connection.isolation_level = levels.REPEATABLE_READ if reading else levels.READ_COMMITTED
            connection.read_only = reading or None  # None: as the role or the address says
            with contextlib.ExitStack() as stack:
                with self._repeatable(connection):
                    self._prepare(connection)
                    stack.enter_context(connection.transaction())
                self._check_format(connection)
                return work(connection)

    def _check_format(self, connection: Any) -> None:
        unreadable = (
            f"{self.where}: expected a collection, found none that this role can read. "
            "Make one with Collection.create, or let its owner grant this role: store.grant_read(role)."
        )
        try:
            found = connection.execute("SELECT format FROM manifest").fetchone()
        except (self._psycopg.errors.UndefinedTable, self._psycopg.errors.InsufficientPrivilege) as error:
            raise StoreError(unreadable) from error.with_traceback(None)
        if found is None:  # row-level security
            raise StoreError(unreadable)
        if found[0] > FORMAT:
            raise StoreFormatError(
                f"{self.where}: expected format {FORMAT} or older, found {found[0]}. Update cde-rag to open it."
            )

    def _prepare(self, connection: Any) -> None:
        """Give a connection of the pool its path and types, once."""
        if connection not in self._ready:
            self._enter(connection, "SESSION")
            self._ready.add(connection)

    def _enter(self, connection: Any, scope: str) -> None:
        """Put the schema first on the path of a session or a transaction, and that of pgvector's types after it."""
        connection.execute(f'SET {scope} search_path = "{self.name}", {self._extension(connection)}')
        require("pgvector.psycopg", "postgres").register_vector(connection)

    def _extension(self, connection: Any) -> str:
        """Return the schema of pgvector's types."""
        found = connection.execute(
            "SELECT quote_ident(nspname), extversion FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace "
            "WHERE extname = 'vector'"
        ).fetchone()
        if found is None:
            raise StoreError(f"{self.where}: expected the extension vector, found none. {_INSTALL}")
        if tuple(int(part) for part in found[1].split(".")[:2]) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise StoreError(
                f"{self.where}: expected pgvector {oldest} or newer, found {found[1]}. Install it on the server, and "
                "then say in this database: ALTER EXTENSION vector UPDATE."
            )
        return found[0]

    def _make_extension(self, connection: Any) -> None:
        try:
            with connection.transaction():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self._psycopg.errors.UniqueViolation:
            return  # another process made it meanwhile
        except self._psycopg.Error as error:
            if connection.closed:  # the connection was lost
                raise
            raise StoreError(
                f"{self.where}: expected the extension vector, found: {_first(error)}. {_INSTALL}"
            ) from error

    @contextmanager
    def _connection(self) -> Generator[Any, None, None]:
        with self._errors(), self._opened().connection() as connection:
            yield connection

    def _opened(self) -> Any:
        with self._lock:
            if self._owner != os.getpid():
                self._pool, self._owner = None, os.getpid()
            if self._pool is None:
                pools = require("psycopg_pool", "postgres")
                self._try_connection()
                if not (logger := logging.getLogger("psycopg.pool")).handlers:
                    logger.addHandler(logging.NullHandler())  # its warnings of a lost server are this store's errors
                self._pool = pools.ConnectionPool(
                    self.dsn,
                    min_size=0,
                    max_size=_CONNECTIONS,
                    timeout=_WAIT_S,
                    kwargs={"autocommit": True},
                    check=partial(_check, pools.ConnectionPool.check_connection),
                    open=True,
                )
                self._unclosed = finalize(self, _close, self._pool, self._owner)
            return self._pool

    def _try_connection(self) -> None:
        """Connect once without the pool, whose error gives no cause but a timeout."""
        self._psycopg.connect(self.dsn).close()

    @contextmanager
    def _repeatable(self, connection: Any) -> Generator[None, None, None]:
        """Have a call repeated whose connection of the pool turns out to be lost before anything was written."""
        try:
            yield
        except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:
            if not connection.closed:
                raise
            raise _AgainError(f"{self.where}: the connection was lost: {_first(error)}. Call again.") from error

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        errors = self._psycopg.errors
        try:
            yield
        except CDEError:
            raise
        except errors.ReadOnlySqlTransaction as error:
            raise StoreError(
                f"{self.where}: expected a server and a role that write, found read-only transactions. Connect to the "
                "primary server, or set default_transaction_read_only = off."
            ) from error
        except errors.InsufficientPrivilege as error:
            raise StoreError(
                f"{self.where}: expected a role that may do this, found: {_first(error)}. Grant it the right; a new "
                "collection takes CREATE on the database, or on an empty schema of its name."
            ) from error
        except errors.DiskFull as error:
            raise StoreError(
                f"{self.where}: the server's disk is full; nothing was written. Free some space."
            ) from error
        except (errors.SerializationFailure, errors.DeadlockDetected, errors.UndefinedTable) as error:
            # A table of vectors can be dropped between a reader's look at the manifest and its search.
            raise _AgainError(f"{self.where}: other processes were quicker: {_first(error)}. Call again.") from error
        except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:
            hint = "Does the server run, and are user, password and database right? Every call may be repeated."
            raise StoreError(
                f"{self.where}: expected an answer of PostgreSQL, found: {_first(error)}. {hint}"
            ) from error
        except self._psycopg.Error as error:
            raise StoreError(f"{self.where}: expected an answer of PostgreSQL, found: {_first(error)}.") from error


def _close(pool: Any, owner: int) -> None:
    """Close a pool whose store was dropped, unless a parent process owns it.

    In a thread of its own: what drops a store may be a thread of the pool, which cannot wait for its own end.
    """
    if owner != os.getpid():
        return
    try:
        threading.Thread(target=pool.close, name=f"{pool.name}-close", daemon=True).start()
    except RuntimeError:  # the interpreter ends: it starts no threads, and would wait long for those of an open pool
        pool.close()


def _check(ask: Callable[[Any], None], connection: Any) -> None:
    """Check a connection if bytes arrived on it since its last use; none do on a healthy idle one."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        if selector.select(0):
            ask(connection)


def _first(error: Exception) -> str:
    """Return a server's message, without positions in SQL, and without the address and the hint that libpq repeats."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = [line.strip() for line in (primary or str(error)).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Is the server running")]
    with contextlib.suppress(IndexError):
        return f"{type(error).__name__}, {lines[-1].rpartition(' failed: ')[2][:300].rstrip('.?')}"
    return type(error).__name__


_INSTALL: Final = (
    "Install pgvector on the server, and let its administrator say in this database: CREATE EXTENSION vector."
)
