"""Schema of a folder of Chroma: opening one of an older version changes it, so that its own program cannot read it."""

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from cde_rag.errors import StoreError


def check_schema(target: str, chromadb: Any, folder: Path) -> None:
    """Refuse a folder that the installed Chroma would change by opening it.

    Args:
        target: Name given by the user.
        chromadb: Module.
        folder: Folder with `chroma.sqlite3`.

    Raises:
        StoreError: See above.
    """
    if _newest(chromadb) - _steps(folder):
        raise StoreError(
            f"{target}: expected a folder of Chroma {chromadb.__version__}, which is installed here, found one of an "
            f"older version. Opening it would change it, so that its application could not read it any more: upgrade "
            "that, start it once, and run this again."
        )


@cache
def _newest(chromadb: Any) -> set[tuple[str, int]]:
    """Return the migrations of the installed Chroma, which has them in compiled code: those of a new folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        chromadb.PersistentClient(path=made)  # only the newest versions can close it
        return _steps(Path(made))


def _steps(folder: Path) -> set[tuple[str, int]]:
    """Return the migrations that a folder's database has had."""
    file = (folder / "chroma.sqlite3").absolute().as_uri()
    with closing(sqlite3.connect(f"{file}?mode=ro", uri=True)) as database:
        return set(database.execute("SELECT dir, version FROM migrations"))
