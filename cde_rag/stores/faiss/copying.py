"""Copy of a store while others read and write it: one state of the tables, and the files that belong to it.

Files are append-only, so that the data of a state stays there, unless a writer replaces a file meanwhile; then the copy
starts again.
"""

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from cde_rag._files import fsync_folder, open_file
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.faiss.connections import FileIdentity
from cde_rag.stores.faiss.database import Database
from cde_rag.stores.faiss.folder import DATABASE, MARKER, lost
from cde_rag.stores.faiss.manifest import FaissManifest
from cde_rag.stores.faiss.tables import Records

_PIECE: Final = 2**20  # bytes
_TRIES: Final = 8  # of a copy whose files are replaced meanwhile
_FLOAT: Final = 4  # bytes


def copy_store(database: Database, folder: Path) -> None:
    """Make a copy of one state of a store, durably.

    Args:
        database: Database of the store.
        folder: Folder of the copy; there is none yet.

    Raises:
        StoreError: The folder is there or cannot be written, or there is no store.
        StoreFormatError: A file of the store is missing or too short.
    """
    missing = ""
    for _ in range(_TRIES):
        found, place = _copy(database, folder)
        if database.is_at(place):
            if found is None:
                return
            if str(found) == missing:
                raise found
        missing = str(found)
        shutil.rmtree(folder)
    raise StoreError(
        f"{database.path.parent}: expected files that stay for one copy, found them replaced at each of {_TRIES} "
        "tries. Try again when fewer processes write."
    )


def _copy(database: Database, folder: Path) -> tuple[StoreFormatError | None, FileIdentity | None]:
    """Copy the present state; returns an error for a file that was gone or shorter, and the files that were copied."""
    with database.reading() as connection:
        try:
            folder.mkdir()
            with contextlib.closing(sqlite3.connect(folder / DATABASE)) as copy:
                connection.backup(copy)
            _copy_files(Records(connection, database.path).manifest(), database.path.parent, folder)
            if (database.path.parent / MARKER).exists():
                _copy_start(database.path.parent / MARKER, folder / MARKER, None)
            _fsync(folder / DATABASE)
            fsync_folder(folder)
        except FileNotFoundError as error:
            return lost(error.filename), connection.place
        except StoreFormatError as error:
            return error, connection.place
        except (OSError, sqlite3.OperationalError) as error:
            raise StoreError(f"{folder}: not written ({error}). Give a new folder where there is space.") from error
        return None, connection.place


def _copy_files(manifest: FaissManifest, folder: Path, copy: Path) -> None:
    """Copy the files that the tables refer to, up to their committed length."""
    for state in manifest.generations:
        _copy_start(folder / state.context, copy / state.context, None)
        if state.rows:
            _copy_start(folder / state.vectors, copy / state.vectors, state.rows * manifest.dim * _FLOAT)
        if state.index is not None:
            with contextlib.suppress(FileNotFoundError):  # it is derived, and may be missing
                _copy_start(folder / state.index.name, copy / state.index.name, None)


def _copy_start(source: Path, target: Path, size: int | None) -> None:
    with open_file(source) as old, target.open("xb") as new:
        left = os.fstat(old.fileno()).st_size if size is None else size
        while left:
            piece = old.read(min(_PIECE, left))
            if not piece:
                raise StoreFormatError(f"{source}: expected at least {size} bytes, found {old.tell()}. Restore a copy.")
            new.write(piece)
            left -= len(piece)
    _fsync(target)


def _fsync(path: Path) -> None:
    with open_file(path) as file:
        os.fsync(file.fileno())
