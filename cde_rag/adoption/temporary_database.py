"""Temporary database of SQLite, for rows and names that are too many for memory.

Its file has no name, is deleted with the connection or the process, and takes memory only for a few pages. SQLite puts
it into `SQLITE_TMPDIR`, `TMPDIR`, `/var/tmp` or `/tmp`, whichever is there first.
"""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from cde_rag.errors import StoreError


def temporary_database(*tables: str) -> sqlite3.Connection:
    """Open a new temporary database.

    Args:
        tables: Statements that make its tables.
    """
    made = sqlite3.connect(  # a source may be read in any thread
        "", isolation_level=None, check_same_thread=False, factory=_TemporaryDatabase
    )
    made.execute("PRAGMA journal_mode = OFF")  # nothing is undone
    made.execute("BEGIN")
    for table in tables:
        made.execute(table)
    return made


class _TemporaryDatabase(sqlite3.Connection):
    """Connection that is closed with the last reference to it, without the warning of Python 3.13."""

    def __del__(self) -> None:
        self.close()


@contextmanager
def temporary_space() -> Generator[None, None, None]:
    """Convert errors of a full disk.

    Raises:
        StoreError: The temporary file cannot be written.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"Expected room for a temporary file of the texts, found: {error}. Make room, or name another folder in "
            "TMPDIR."
        ) from error
