"""The folder of a store: names of its files, and which of them stay."""

import contextlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from cde_rag.errors import StoreFormatError
from cde_rag.stores.files import MARKERS

DATABASE: Final = MARKERS["faiss"]
MARKER: Final = "store-id"  # written once; see connections.py
# Files that the database refers to, or referred to.
DERIVED: Final = re.compile(r"(context|vectors|(checked-)?index)-\d+(-[0-9a-f]{8})?")
# Files that `create` makes after the database.
CREATED: Final = re.compile(rf"{re.escape(DATABASE)}-.*|{MARKER}(\.new)?|{DERIVED.pattern}")


def delete_unreferenced(folder: Path, kept: Collection[str], check: Callable[[], None]) -> None:
    """Delete the files that the database no longer refers to.

    Args:
        folder: Folder of the store.
        kept: Names of the files that stay.
        check: Raises if another store replaced this one; called once the folder is open, so that files are deleted in
            the folder that was checked.
    """
    if os.unlink not in os.supports_dir_fd:  # as on Windows, where the folder of an open store cannot be replaced
        check()
        for path in folder.iterdir():
            if DERIVED.fullmatch(path.name) and path.name not in kept:
                path.unlink(missing_ok=True)
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        check()
        for name in os.listdir(opened):  # noqa: PTH208  # pathlib lists no open folder
            if DERIVED.fullmatch(name) and name not in kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened)
    finally:
        os.close(opened)


def lost(path: object) -> StoreFormatError:
    """Return the error for a file that the database refers to and that is not there."""
    return StoreFormatError(f"{path}: expected this file, found none. Restore a copy.")
