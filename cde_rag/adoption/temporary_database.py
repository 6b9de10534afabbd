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
    made = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a source may be read in any thread
    made.execute("PRAGMA journal_mode = OFF")  # nothing is undone
    made.execute("BEGIN")
    for table in tables:
        made.execute(table)
    return made


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
