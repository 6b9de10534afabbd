"""Connections to PostgreSQL and transactions on the tables of one collection.

Nothing depends on the state of a session, since a transaction pooler (PgBouncer, Supavisor, Neon's, RDS Proxy) gives a
client another session for each transaction: names are qualified, parameters are set for a statement, the lease is the
lock of a transaction, and statements are prepared only where no pooler is in between.
"""

import contextlib
import json
import logging
import os
import selectors
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, finalize

from cde_rag.errors import StoreError, StoreFormatError, require
from cde_rag.stores.engine import Result
from cde_rag.stores.postgres.address import checked_name, without_password
from cde_rag.stores.postgres.schema import FIELD_INDEXES, FORMAT, TABLES, TOKENS, PgNames
from cde_rag.stores.postgres.tables import PgTables, manifest_sql

_CONNECTIONS: Final = 8  # of one store at a time; more threads wait
_WAIT_S: Final = 10.0  # for one of them
_LOCK_WAIT_MS: Final = 2000  # for a lock that only a session which is about to end should hold
_PREPARED_AFTER: Final = 5  # executions of a statement, psycopg's default
_ENCODINGS: Final = ("UTF8", "SQL_ASCII")  # of databases that hold any text
_TRIES: Final = 5  # of a transaction that the server rolled back for the sake of another
_OLDEST: Final = (0, 8)  # pgvector with iterative scans


class _AgainError(StoreError):
    """The server rolled a transaction back for the sake of another."""


class _ChangedError(_AgainError):
    """A table, a column or an operator was not found: dropped by another process meanwhile, or by hand."""


class _TokensError(StoreError):
    """A collection of version 0.2 has no tokens."""


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
        self._named = WeakKeyDictionary[Any, PgNames]()  # by connections that can write vectors
        self._store: str | None = None  # random id of the collection that the first call found
        # The encoding belongs to the client, behind a pooler too. `_prepare` allows prepared statements.
        self._options = {"client_encoding": "utf8", "prepare_threshold": None}
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

    def create(self, fill: Callable[[PgTables], None]) -> None:
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
                self._check_encoding(connection)
                self._make_extension(connection)
                names = self._prepare(connection)
                there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.name]).fetchone()
                if there is None:
                    connection.execute(f"CREATE SCHEMA {names.schema}")
                connection.execute((TABLES + FIELD_INDEXES).format(schema=names.schema))
                fill(PgTables(connection, names))
                self.forget()
        except StoreError as error:
            if isinstance(error.__cause__, duplicates):  # another process was quicker
                raise StoreError(taken) from error
            raise

    def read(self, work: Callable[[PgTables], Result]) -> Result:
        """Call `work` with the tables in a transaction that sees one state and writes nothing.

        A reader follows to another collection of the same name.

        Raises:
            StoreError: There is no collection, or no connection.
            StoreFormatError: The collection is of a newer format, or its tables were changed.
        """
        return self._tried(partial(self._once, work, reading=True))

    def glance(self, work: Callable[[PgTables], Result]) -> Result | None:
        """Call `work`, whose statements need not see one state, with the tables outside of any transaction.

        Returns:
            Its result, or None if it raised an error or a table was dropped meanwhile: a transaction tells why.

        Raises:
            StoreError: No connection.
        """
        try:
            with self._connection() as connection, self._repeatable(connection):
                tables = PgTables(connection, self._prepare(connection))
                try:
                    return work(tables)
                except self._psycopg.Error:
                    raise
                except Exception:  # noqa: BLE001  # of any kind
                    return None
        except _AgainError:
            return None

    def write(self, work: Callable[[PgTables], Result], *, wait: bool = True) -> Result:
        """Call `work` with the tables in a transaction that excludes other writers of the collection.

        Raises:
            StoreError: There is no collection, or another one than the first call of this object found; no connection;
                or this role may not write.
            StoreFormatError: The collection is of a newer format, or its tables were changed.
        """
        try:
            return self._tried(partial(self._once, work, reading=False, wait=wait))
        except _TokensError:
            self.forget()
            self._add_tokens()
            return self._tried(partial(self._once, work, reading=False, tokens=False, wait=wait))

    @contextmanager
    def lock(self, key: Sequence[int | str]) -> Generator[int | None, None, None]:
        """Hold an advisory lock by a transaction on a connection of its own; yields its process on the server.

        Yields None if another session keeps the lock. A session that was closed or lost a moment ago has it until its
        server process ends, so that this waits. A transaction keeps its session behind a pooler of any kind. Between
        its statements it holds no snapshot, so that it keeps nothing from being vacuumed.

        Raises:
            StoreError: No connection; or a pooler has no session left for other statements than those of the lock.
        """
        with self._errors():
            connection = self._psycopg.connect(self.dsn, **self._options)
        try:
            connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
            with self._errors():
                connection.execute(  # the transaction is idle while the lease is held
                    "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN "
                    "('idle_in_transaction_session_timeout', 'transaction_timeout')"
                )
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
                try:
                    locked = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock(%s, hashtext(%s))"
                    (process,) = connection.execute(locked, key).fetchone()
                    connection.execute("SET LOCAL lock_timeout = DEFAULT")  # ends the portal, which held a snapshot
                except self._psycopg.errors.LockNotAvailable:
                    process = None
                else:
                    self._check_session_left()
            yield process
        finally:
            with contextlib.suppress(self._psycopg.Error):  # it was lost, and the lock with it
                connection.rollback()
            connection.close()

    def forget(self) -> None:
        """Forget which collection was opened; the next call may find another of the same name."""
        self._store = None

    def close(self) -> None:
        """Close all connections; later calls open others."""
        self.forget()
        with self._lock:
            pool, self._pool = self._pool, None
            if pool is None or self._owner != os.getpid():
                return  # closing a parent process's pool would end its connections
            self._unclosed.detach()
        pool.close()

    def _tried(self, once: Callable[[], Result]) -> Result:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(_AgainError):
                return once()
        try:
            return once()
        except _ChangedError as error:
            raise self._changed(error.__cause__ or error) from error

    def _once(
        self, work: Callable[[PgTables], Result], *, reading: bool, tokens: bool = True, wait: bool = True
    ) -> Result:
        """Call `work` in a transaction; `tokens` refuses to write without them."""
        levels = self._psycopg.IsolationLevel
        with self._connection() as connection:
            connection.isolation_level = levels.REPEATABLE_READ if reading else levels.READ_COMMITTED
            connection.read_only = reading or None  # None: as the role or the address says
            with contextlib.ExitStack() as stack:
                with self._repeatable(connection):
                    names = self._prepare(connection)
                    stack.enter_context(connection.transaction())
                return work(self._begin(connection, names, reading=reading, tokens=tokens, wait=wait))

    def _begin(self, connection: Any, names: PgNames, *, reading: bool, tokens: bool, wait: bool) -> PgTables:
        """Read the manifest, locked against other writers, and check its format and the collection's id."""
        unreadable = (
            f"{self.where}: expected a collection, found none that this role can read. "
            "Make one with Collection.create, or let its owner grant this role: store.grant_read(role)."
        )
        errors = self._psycopg.errors
        try:
            if not reading:  # in a statement of its own: one that waits for the lock sees generations of before
                connection.execute(f"SELECT FROM {names.manifest} FOR UPDATE{'' if wait else ' NOWAIT'}")
            found = connection.execute(manifest_sql(names)).fetchone()
        except (errors.UndefinedTable, errors.InsufficientPrivilege) as error:
            if (isinstance(error, errors.InsufficientPrivilege) and not reading) or ".generations" in str(error):
                raise
            raise StoreError(unreadable) from error.with_traceback(None)
        if found is None:  # row-level security
            raise StoreError(unreadable)
        row, generations = map(json.loads, found)
        store, format_ = row.get("store"), row.get("format")  # version 0.2 has no store
        if not isinstance(format_, int):
            raise self._changed(f"the manifest's format is {format_!r:.80}")
        if format_ > FORMAT:
            raise StoreFormatError(
                f"{self.where}: expected format {FORMAT} or older, found {format_}. Update cde-rag to open it."
            )
        if not reading and None not in (self._store, store) and self._store != store:
            raise StoreError(
                f"{self.where}: this is another collection than the one that was opened, which was removed or replaced "
                "by a restored database. Nothing was written. Open it again."
            )
        self._store = self._store or store
        if store is None and tokens and not reading:
            raise _TokensError
        return PgTables(connection, names, row, generations)

    def _add_tokens(self) -> None:
        """Add the manifest's tokens to a collection of version 0.2; a later write does it if readers are in the way.

        In a transaction of its own, since two writers that had locked the row would wait for each other.
        """
        errors = self._psycopg.errors
        with self._connection() as connection:
            names = self._prepare(connection)
            with contextlib.suppress(errors.LockNotAvailable, errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
                connection.execute(TOKENS.format(schema=names.schema))

    def _changed(self, found: object) -> StoreFormatError:
        """Return the error for tables that somebody changed."""
        what = f"the tables are not as cde-rag made them: {_first(found)}"
        return StoreFormatError(f"{self.where}: {what}. Undo the change, or restore a backup.")

    def _prepare(self, connection: Any) -> PgNames:
        """Return the names for a connection of the pool, and make it ready to send vectors, once."""
        if (known := self._named.get(connection)) is not None:
            return known
        process, schema, version = connection.execute(
            "SELECT pg_backend_pid(), nspname::text, extversion FROM (SELECT) one LEFT JOIN (pg_extension JOIN "
            "pg_namespace n ON n.oid = extnamespace AND extname = 'vector') ON true"
        ).fetchone()
        if schema is None:
            raise StoreError(f"{self.where}: expected the extension vector, found none. {_INSTALL}")
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise StoreError(
                f"{self.where}: expected pgvector {oldest} or newer, found {version}. Install it on the server, and "
                "then say in this database: ALTER EXTENSION vector UPDATE."
            )
        if process == connection.info.backend_pid:  # a pooler tells clients a number of its own
            connection.prepare_threshold = _PREPARED_AFTER
        dumper = require("pgvector.psycopg.vector", "postgres").VectorBinaryDumper
        connection.adapters.register_dumper("numpy.ndarray", dumper)  # of no type: a cast in the statement names it
        return self._named.setdefault(connection, PgNames(self.name, schema))

    def _check_encoding(self, connection: Any) -> None:
        (encoding,) = connection.execute("SELECT current_setting('server_encoding')").fetchone()
        if encoding not in _ENCODINGS:
            raise StoreError(
                f"{self.where}: expected a database in the encoding UTF8, found one in {encoding}, which lacks most "
                "characters. Make one: CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0."
            )

    def _make_extension(self, connection: Any) -> None:
        try:
            with connection.transaction():
                connection.execute("SET LOCAL search_path TO DEFAULT")  # not a schema that another client set
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
                    kwargs={"autocommit": True, **self._options},
                    check=partial(_check, pools.ConnectionPool.check_connection),
                    open=True,
                )
                self._unclosed = finalize(self, _close, self._pool, self._owner)
            return self._pool

    def _try_connection(self) -> None:
        """Connect once without the pool, whose error gives no cause but a timeout."""
        self._psycopg.connect(self.dsn, **self._options).close()

    def _check_session_left(self) -> None:
        """Refuse a lease that takes the last session of a pooler, where all writes would wait for its end, its own too.

        Raises:
            StoreError: The pooler gives no session to another connection for some seconds.
        """
        with contextlib.closing(self._psycopg.connect(self.dsn, **self._options)) as connection:
            connection.pgconn.send_query(b"SELECT 1")
            if not _has_answer(connection, _WAIT_S):
                raise StoreError(
                    f"{self.where}: a run holds one of the pooler's sessions and needs a second one, and none was free "
                    f"for {_WAIT_S:g} s. Wait for other runs to finish, or give the pooler more sessions than there "
                    "are runs at a time (PgBouncer: default_pool_size)."
                )

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
        try:
            yield
        except self._psycopg.Error as error:
            self._named.clear()  # pgvector may be in another schema by now
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> StoreError:
        """Return our error for one of psycopg."""
        errors, first = self._psycopg.errors, _first(error)
        match error:
            case errors.ReadOnlySqlTransaction():
                return StoreError(
                    f"{self.where}: expected a server and a role that write, found read-only transactions. Connect to "
                    "the primary server, or set default_transaction_read_only = off."
                )
            case errors.InsufficientPrivilege():
                return StoreError(
                    f"{self.where}: expected a role that may do this, found: {first}. Grant it the right; a new "
                    "collection takes CREATE on the database, or on an empty schema of its name."
                )
            case errors.DiskFull():
                return StoreError(f"{self.where}: the server's disk is full; nothing was written. Free some space.")
            case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
                # A table of vectors can be dropped between a reader's look at the manifest and its search.
                return _ChangedError(f"{self.where}: other processes were quicker: {first}. Call again.")
            case errors.SerializationFailure() | errors.DeadlockDetected():
                return _AgainError(f"{self.where}: other processes were quicker: {first}. Call again.")
            case errors.UntranslatableCharacter():
                return StoreError(
                    f"{self.where}: the encoding of this database lacks a character: {first}. Move the collection to a "
                    "database in UTF8, with cde-rag backup and restore."
                )
            case (
                self._psycopg.IntegrityError()
                | errors.DatatypeMismatch()
                | errors.CannotCoerce()
                | errors.BadCopyFileFormat()
                | errors.InvalidTextRepresentation()
                | errors.InvalidBinaryRepresentation()
                | errors.CharacterNotInRepertoire()
            ):
                return self._changed(error)
            case self._psycopg.OperationalError() | self._psycopg.InterfaceError():
                hint = "Does the server run, and are user, password and database right? Every call may be repeated."
                return StoreError(f"{self.where}: expected an answer of PostgreSQL, found: {first}. {hint}")
            case _:
                return StoreError(f"{self.where}: expected an answer of PostgreSQL, found: {first}.")


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
    if _has_answer(connection, 0.0):
        ask(connection)


def _has_answer(connection: Any, seconds: float) -> bool:
    """Return True if bytes arrived on a connection, or do so within some seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _first(error: object) -> str:
    """Return a server's message, without positions in SQL, the address and the hint of libpq; or words as they are."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = [line.strip() for line in (primary or str(error)).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Is the server running")]
    with contextlib.suppress(IndexError):
        return f"{type(error).__name__}, {lines[-1].rpartition(' failed: ')[2][:300].rstrip('.?')}"
    return type(error).__name__


_INSTALL: Final = (
    "Install pgvector on the server, and let its administrator say in this database: CREATE EXTENSION vector."
)
