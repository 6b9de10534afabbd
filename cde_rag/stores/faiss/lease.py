"""The right to work on generations, which one run at a time holds."""

import contextlib
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cde_rag.errors import StoreError
from cde_rag.stores.faiss.folder import DATABASE

_LEASE: Final = f"{DATABASE}-lease"  # an empty SQLite file: its lock ends with the process that holds it


@contextmanager
def leased(folder: Path) -> Generator[None, None, None]:
    """Hold the lease of the store in `folder`.

    Raises:
        StoreError: Another run holds it, or the place is not writable.
    """
    try:
        connection = sqlite3.connect(folder / _LEASE, timeout=0, isolation_level=None)
    except sqlite3.OperationalError as error:
        raise StoreError(f"{folder / _LEASE}: expected to write it, found: {error}.") from error
    with contextlib.closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise StoreError(
                f"{folder}: expected to be the only run that moves it to another context, found another at work "
                f"({error}). Wait until that has ended."
            ) from error
        yield
