"""One SQLite file: its tables, its connections, and its errors as `StoreError`."""

import contextlib
import os
import secrets
import sqlite3
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cde_rag._files import fsync_folder, read_file
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.faiss.connections import Connection, Connections, FileIdentity, copied_over, place_of
from cde_rag.stores.faiss.folder import CREATED, MARKER
from cde_rag.stores.faiss.words import TABLE, has_fts5
from cde_rag.stores.files import check_folder, check_new, replace_durably

FORMAT: Final = 4  # in the file's header as user_version
WITH_PENDING: Final = 5  # format of stores with records that wait for their vectors, until these have them
WITHOUT_TOKENS: Final = 3  # format of stores whose generations have no tokens of their last changes
WITHOUT_ANALYZER: Final = 2  # format of stores whose settings name no analyzer; older versions write to them
WITHOUT_WORDS: Final = 1  # format of stores without the table of words.py
_APPLICATION: Final = 0x43444552  # "CDER"
_BUSY_S: Final = 60.0  # how long a writer waits for another
_CHECKPOINT_PAGES: Final = 100  # of 4 KiB in the write-ahead log; small, so that adding one record writes little

_TABLES: Final = (
    # One row. `json`: manifest.Manifest; the other tables and files are read as it says.
    "CREATE TABLE manifest (json TEXT NOT NULL, checksum BLOB NOT NULL)",
    # `position`: order of insertion. `checksum`: over the other columns. `metadata`: JSON.
    """CREATE TABLE records (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, checksum BLOB NOT NULL, title TEXT NOT NULL,
        metadata TEXT NOT NULL, text TEXT NOT NULL)""",
    # The metadata once more, one row for each element, for filters; see filter_sql.py.
    """CREATE TABLE fields (
        path TEXT NOT NULL, kind TEXT NOT NULL, value NOT NULL, position INTEGER NOT NULL, instant TEXT,
        PRIMARY KEY (path, kind, value, position)) WITHOUT ROWID""",
    "CREATE INDEX fields_position ON fields (position)",
    # `row`: of the generation's vector file. `checksum`: over position, digest and the vector's bytes.
    """CREATE TABLE vectors (
        generation INTEGER NOT NULL, position INTEGER NOT NULL, row INTEGER NOT NULL, digest TEXT NOT NULL,
        checksum BLOB NOT NULL, PRIMARY KEY (generation, position)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX vectors_row ON vectors (generation, row)",
    # Rows of vector files whose record was deleted or has another vector now.
    """CREATE TABLE dead (
        generation INTEGER NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (generation, row)) WITHOUT ROWID""",
    # CRC-32 of each block of a vector file; the last block's grows with it.
    """CREATE TABLE blocks (
        generation INTEGER NOT NULL, block INTEGER NOT NULL, checksum INTEGER NOT NULL,
        PRIMARY KEY (generation, block)) WITHOUT ROWID""",
)
# The columns that statements here name; an operator's indexes, statistics and further columns do no harm.
_COLUMNS: Final = {
    "manifest": {"json", "checksum"},
    "records": {"position", "id", "checksum", "title", "metadata", "text"},
    "fields": {"path", "kind", "value", "position", "instant"},
    "vectors": {"generation", "position", "row", "digest", "checksum"},
    "dead": {"generation", "row"},
    "blocks": {"generation", "block", "checksum"},
}


class Database:
    """Connections to the SQLite file at `path`: any number of readers and one writer, from any thread or process.

    A reader sees one state from its first statement to its end. Durable when `writing` ends (WAL, synchronous=FULL).
    A store that the process may not write, such as a copy on a read-only file system, can be read; so can a closed
    store on a full disk.

    The file is bound to its place. Where another store was put at the path since the first call (or since `close`),
    reads follow it, and writes raise `StoreError` before they change a file. Where files were copied over the open
    store, both raise: SQLite's connections and its log belong to the content that was there before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: FileIdentity | None = None  # the store that writes are for
        self._connections = Connections(path)
        weakref.finalize(self, self._connections.close)

    def create(self) -> None:
        """Make the folder and an empty file in it, which is no store until its tables are committed."""
        with self._errors():
            check_folder(self.path.parent)
            if self.exists():
                raise _found_one(self.path.parent)
            check_new(self.path.parent, first=self.path.name, others=CREATED)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fsync_folder(self.path.parent.parent)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as connection:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreError(
                    f"{self.path}: expected a file system with shared memory, found none. Use a local disk."
                )
            self._opened = None

    def exists(self) -> bool:
        """Return True if the file is there and has its tables."""
        with self._errors():
            check_folder(self.path.parent)
            if not self.path.exists():
                return False
            with self._borrowed() as connection:
                return _has_tables(connection)

    @contextmanager
    def reading(self) -> Generator[Connection, None, None]:
        """Open a read transaction: a connection that sees one state of the file.

        Raises:
            StoreError: The store does not exist, or cannot be opened.
            StoreFormatError: Damaged, or of a newer format.
        """
        with self._errors(), self._borrowed() as connection:
            connection.execute("BEGIN")
            try:
                self._check_format(connection)
                yield connection
            finally:
                _roll_back(connection)

    @contextmanager
    def writing(self, *, new: bool = False, wait: bool = True) -> Generator[Connection, None, None]:
        """Open the write transaction, one at a time; committed at the end, rolled back after an exception.

        Args:
            new: The file has no tables yet.
            wait: False: raise where another writer is at work, in place of waiting for it.

        Raises:
            StoreError: Another store replaced this one, another writer did not end within a minute, the disk is full,
                or the store is not writable.
            StoreFormatError: Damaged, or of a newer format.
        """
        if self.path.exists() and not self._writable():
            raise StoreError(
                f"{self.path.parent}: expected a store that can be written, found one that can only be read. "
                "Change its permissions, or write to a copy."
            )
        with self._errors(), self._borrowed(to_write=True) as connection:
            if wait:
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection.execute("PRAGMA busy_timeout = 0")
                try:
                    connection.execute("BEGIN IMMEDIATE")
                finally:
                    connection.execute(f"PRAGMA busy_timeout = {int(1000 * _BUSY_S)}")
            try:
                self.check_place()
                if new:
                    _create_tables(connection, self.path)
                else:
                    self._check_format(connection)
                yield connection
                connection.execute("COMMIT")
                self.check_place()  # after this, what was committed is in the store that the path names
            finally:
                _roll_back(connection)

    def check_place(self) -> None:
        """Refuse to write where another store was put in place of the one that was opened.

        Raises:
            StoreError: The path names other files now, or none.
        """
        here = place_of(self.path)
        if self._opened is None or self._opened.same_file(here):
            return
        if here is not None and self._opened.overwritten_by(here):
            raise copied_over(self.path.parent)
        raise StoreError(
            f"{self.path.parent}: expected the store that was opened here, found that another was put in its place. "
            "Nothing was written to it. Open it again with Collection.open(…)."
        )

    def is_at(self, place: FileIdentity | None) -> bool:
        """Return True if the path still names these files."""
        return place is not None and place.same_file(place_of(self.path))

    def marker(self) -> str:
        """Return the content of the marker file; a writer creates it if necessary."""
        path = self.path.with_name(MARKER)
        if not path.exists():
            replace_durably(path, secrets.token_hex(16).encode())
        return read_file(path).decode("ascii", errors="replace")

    def close(self) -> None:
        """Close the connections; the last one of all processes moves the write-ahead log into the file."""
        self._opened = None
        self._connections.close()

    @contextmanager
    def _borrowed(self, *, to_write: bool = False) -> Generator[Connection, None, None]:
        here = place_of(self.path)
        if here is None:
            check_folder(self.path.parent)
            raise StoreError(f"{self.path.parent}: expected a store, found none. Make one with Collection.create(…).")
        if to_write:
            self.check_place()
        elif not self._writable():
            with self._read_only() as connection:
                yield connection
            return
        self._opened = self._opened or here
        try:
            connection = self._connections.take(here) or self._connected(here)
        except sqlite3.OperationalError:
            if to_write or self._at_rest() is None:
                raise
            with self._read_only() as connection:  # a full disk has no room for SQLite's shared memory
                yield connection
            return
        try:
            yield connection
        finally:
            self._connections.put_back(connection)

    def _connected(self, here: FileIdentity) -> Connection:
        """Open a connection whose log and shared memory are open, and known to belong to the file at `here`."""
        connection = self._connect("mode=rw", here)
        try:
            _has_tables(connection)
        except BaseException:
            connection.close()
            raise
        self._connections.own(connection)
        return connection

    @contextmanager
    def _read_only(self) -> Generator[Connection, None, None]:
        """Open a connection for a single use that writes nothing.

        SQLite can read a log only if its files are writable; without a log, the file is opened as immutable. A check at
        the end detects writes that began meanwhile.
        """
        before = self._at_rest()
        options = "mode=ro" if before is None else "mode=ro&immutable=1"
        here = place_of(self.path)
        try:
            with contextlib.closing(self._connect(options, here)) as connection:
                yield connection
        except sqlite3.OperationalError as error:
            hint = "If it was not closed, open it once where it can be written."
            raise StoreError(f"{self.path}: expected to read it without writing, found: {error}. {hint}") from error
        if before is not None and before != self._at_rest():
            raise StoreError(f"{self.path.parent}: another process wrote while it was read. Try again.")

    def _at_rest(self) -> tuple[int, int] | None:
        """Return a value that changes with every write; None if a log holds data not yet in the file.

        An empty log was left by a process that found the disk full.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size:
            return None
        if not log.exists() and self.path.with_name(f"{self.path.name}-shm").exists():
            return None
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    def _writable(self) -> bool:
        return all(os.access(path, os.W_OK) for path in (self.path, self.path.parent))

    def _connect(self, options: str, here: FileIdentity | None) -> Connection:
        check_folder(self.path.parent)
        for suffix in ("", "-wal", "-shm"):
            if (path := self.path.with_name(self.path.name + suffix)).exists() and not path.is_file():
                raise StoreFormatError(f"{path}: expected a file, found a folder, a FIFO or a device. Restore a copy.")
        address = f"{self.path.absolute().as_uri()}?{options}"
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=Connection
        )
        connection.place, connection.process = here, os.getpid()
        connection.text_factory = bytes  # checksums are over bytes, and damaged text need not be UTF-8
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        return connection

    def _check_format(self, connection: Connection) -> None:
        """Compare header and columns, once for each version of the schema that the connection sees."""
        (version,) = connection.execute("PRAGMA schema_version").fetchone()
        if version == connection.checked_schema:
            return
        if not _has_tables(connection):
            raise StoreError(
                f"{self.path.parent}: expected a store, found one whose creation did not finish. Create it."
            )
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION:
            raise StoreFormatError(
                f"{self.path}: expected a store (application id {_APPLICATION:#x}), found {application:#x}, another "
                "program's file. Restore a copy."
            )
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (WITHOUT_WORDS, WITHOUT_ANALYZER, WITHOUT_TOKENS, FORMAT, WITH_PENDING):
            raise StoreFormatError(f"{self.path}: expected format {WITH_PENDING}, found {found}. Update cde-rag.")
        for table, columns in _COLUMNS.items():
            there = {name.decode() for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
            if lacking := columns - there:
                raise StoreFormatError(
                    f"{self.path}: expected the table {table} with the columns {', '.join(sorted(columns))}, found it "
                    f"without {', '.join(sorted(lacking))}. Restore a copy."
                )
        connection.checked_schema = version

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            hint = "Is the disk full, the folder not writable, or another writer active?"
            raise StoreError(f"{self.path}: expected to read or write it, found: {error}. {hint}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: SQLite quotes damaged text
            raise StoreFormatError(f"{self.path}: expected a sound file, found: {error}. Restore a copy.") from error
        except OSError as error:
            hint = "Is the disk full, or the folder not writable?"
            raise StoreError(f"{self.path.parent}: expected to read or write it, found: {error}. {hint}") from error


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    if _has_tables(connection):
        raise _found_one(path.parent)
    for table in _TABLES:
        connection.execute(table)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    if has_fts5(connection):
        connection.execute(TABLE)
        set_format(connection, FORMAT)
    else:
        set_format(connection, WITHOUT_WORDS)


def set_format(connection: sqlite3.Connection, number: int) -> None:
    """Note the format, as a part of the transaction, unless it is noted already."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != number:
        connection.execute(f"PRAGMA user_version = {number}")


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _found_one(folder: Path) -> StoreError:
    return StoreError(f"{folder}: expected no store, found one. Open it with Collection.open(…).")
