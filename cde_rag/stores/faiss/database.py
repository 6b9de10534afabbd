"""One SQLite file: its tables, its connections, and its errors in our words."""

import contextlib
import json
import os
import sqlite3
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.faiss.folder import CREATED
from cde_rag.stores.faiss.lexicon import SHADOWS, TABLE, has_fts5
from cde_rag.stores.folder import check_folder, check_new, fsync_folder

FORMAT: Final = 2  # stands in the file's header as user_version
WITHOUT_WORDS: Final = 1  # the format of what has not the table of lexicon.py
_APPLICATION: Final = 0x43444552  # "CDER"
_BUSY_S: Final = 60.0  # how long a writer waits for another
_inherited: Final = list[object]()  # connections of the process that this one is a fork of, which has them open
_CHECKPOINT_PAGES: Final = 100  # of 4 KiB in the write-ahead log; small, so that adding one record writes little

_TABLES: Final = (
    # One row. `json`: manifest.Manifest; the other tables and files are read as it says.
    "CREATE TABLE manifest (json TEXT NOT NULL, checksum BLOB NOT NULL)",
    # `position`: order of insertion. `checksum`: over the other columns. `metadata`: JSON.
    """CREATE TABLE records (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, checksum BLOB NOT NULL, title TEXT NOT NULL,
        metadata TEXT NOT NULL, text TEXT NOT NULL)""",
    # The metadata once more, one row for each element, for filters; see fields.py.
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


class Database:
    """Connections to the SQLite file at `path`: any number of readers beside one writer, from any thread or process.

    A reader sees one state from its first statement to its end. Durable when `writing` ends (WAL, synchronous=FULL).
    What a process may not write, such as a copy on a read-only file system, it can read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def create(self) -> None:
        """Make the folder and an empty file in it, which is no store until its tables are committed."""
        with self._errors():
            check_folder(self.path.parent)
            check_new(self.path.parent, first=self.path.name, others=CREATED)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fsync_folder(self.path.parent.parent)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as connection:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreError(
                    f"{self.path}: expected a file system with shared memory, found none. Use a local disk."
                )

    def exists(self) -> bool:
        """Whether the file is there and has its tables."""
        with self._errors():
            check_folder(self.path.parent)
            if not self.path.exists():
                return False
            with self._borrowed() as connection:
                return _has_tables(connection)

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection, None, None]:
        """A connection that sees one state of the file.

        Raises:
            StoreError: There is no store at this place, or it cannot be opened.
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
    def writing(self, *, new: bool = False) -> Generator[sqlite3.Connection, None, None]:
        """The only connection that writes; what it did is committed at the end, or undone after an exception.

        Args:
            new: The file has no tables yet.

        Raises:
            StoreError: Another writer did not end within a minute, the disk is full, or the place is not writable.
            StoreFormatError: Damaged, or of a newer format.
        """
        if self.path.exists() and not self._writable():
            raise StoreError(
                f"{self.path.parent}: expected a store that can be written, found one that can only be read. "
                "Change its permissions, or write to a copy."
            )
        with self._errors(), self._borrowed() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if new:
                    _create_tables(connection, self.path)
                else:
                    self._check_format(connection)
                yield connection
                connection.execute("COMMIT")
            finally:
                _roll_back(connection)

    def close(self) -> None:
        """Close the connections; the last one of all processes moves the write-ahead log into the file."""
        self._leave_inherited()
        self._idle.clear()
        self._connections.close()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: list[sqlite3.Connection] = []
        self._connections = contextlib.ExitStack()
        weakref.finalize(self, _close, self._connections, self._process)

    def _leave_inherited(self) -> None:
        """Begin with connections of its own in a forked process.

        Source: sqlite.org/howtocorrupt.html, 2.6.
        """
        if self._process != os.getpid():
            _inherited.append(self._connections)
            self._begin()

    @contextmanager
    def _borrowed(self) -> Generator[sqlite3.Connection, None, None]:
        if self.path.exists() and not self._writable():
            with self._read_only() as connection:
                yield connection
            return
        self._leave_inherited()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect("mode=rw")
            self._connections.callback(connection.close)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @contextmanager
    def _read_only(self) -> Generator[sqlite3.Connection, None, None]:
        """A connection for this once to what this process may not write.

        To read SQLite's log takes files that can be written; where there is no log, it is told to look for none. That
        nobody who may write began to meanwhile is seen at the end.
        """
        before = self._at_rest()
        options = "mode=ro" if before is None else "mode=ro&immutable=1"
        try:
            with contextlib.closing(self._connect(options)) as connection:
                yield connection
        except sqlite3.OperationalError as error:
            hint = "If it was not closed, open it once where it can be written."
            raise StoreError(f"{self.path}: expected to read it without writing, found: {error}. {hint}") from error
        if before is not None and before != self._at_rest():
            raise StoreError(f"{self.path.parent}: another process wrote while it was read. Try again.")

    def _at_rest(self) -> tuple[int, int] | None:
        """What changes when somebody writes; None where somebody has the file open to write, or did not close it."""
        if any(self.path.with_name(f"{self.path.name}-{log}").exists() for log in ("wal", "shm")):
            return None
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    def _writable(self) -> bool:
        return all(os.access(path, os.W_OK) for path in (self.path, self.path.parent))

    def _connect(self, options: str) -> sqlite3.Connection:
        check_folder(self.path.parent)
        if not self.path.exists():
            raise StoreError(f"{self.path.parent}: expected a store, found none. Make one with Collection.create(…).")
        address = f"{self.path.absolute().as_uri()}?{options}"
        connection = sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.text_factory = bytes  # checksums are over bytes, and damaged text need not be UTF-8
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        return connection

    def _check_format(self, connection: sqlite3.Connection) -> None:
        if not _has_tables(connection):
            raise StoreError(
                f"{self.path.parent}: expected a store, found one whose creation did not finish. Create it."
            )
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (WITHOUT_WORDS, FORMAT):
            raise StoreFormatError(f"{self.path}: expected format {FORMAT}, found {found}. Update cde-rag.")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        shadows = json.dumps(SHADOWS)
        statement = """SELECT sql FROM sqlite_schema
            WHERE sql IS NOT NULL AND name NOT IN (SELECT value FROM json_each(?)) ORDER BY rowid"""
        tables = [sql for (sql,) in connection.execute(statement, (shadows,))]
        expected = [*_TABLES, *([TABLE] if found == FORMAT else [])]
        if application != _APPLICATION or tables != [sql.encode() for sql in expected]:
            raise StoreFormatError(f"{self.path}: expected the tables of a store, found others. Restore a copy.")

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            hint = "Is the disk full, the folder not writable, or another writer at work?"
            raise StoreError(f"{self.path}: expected to read or write it, found: {error}. {hint}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: SQLite quotes damaged text
            raise StoreFormatError(f"{self.path}: expected a sound file, found: {error}. Restore a copy.") from error
        except OSError as error:
            hint = "Is the disk full, or the folder not writable?"
            raise StoreError(f"{self.path.parent}: expected to read or write it, found: {error}. {hint}") from error


def _close(connections: contextlib.ExitStack, process: int) -> None:
    if process == os.getpid():
        connections.close()
    else:
        _inherited.append(connections)


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    if _has_tables(connection):
        raise StoreError(f"{path.parent}: expected no store, found one. Open it with Collection.open(…).")
    for table in _TABLES:
        connection.execute(table)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    if has_fts5(connection):
        connection.execute(TABLE)
        set_format(connection, FORMAT)
    else:
        set_format(connection, WITHOUT_WORDS)


def set_format(connection: sqlite3.Connection, number: int) -> None:
    """Note the format, as a part of the transaction."""
    connection.execute(f"PRAGMA user_version = {number}")


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
