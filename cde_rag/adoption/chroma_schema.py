"""Schema of a folder of Chroma: opening one of an older version changes it, so that its own program cannot read it."""

import sqlite3
import tempfile
from contextlib import closing
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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        chromadb.PersistentClient(path=made).close()
        lacking = _steps(Path(made)) - _steps(folder)
    if lacking:
        raise StoreError(
            f"{target}: expected a folder of Chroma {chromadb.__version__}, which is installed here, found one of an "
            f"older version. Opening it would change it, so that its application could not read it any more: upgrade "
            "that, start it once, and run this again."
        )


def _steps(folder: Path) -> set[tuple[str, int]]:
    """Return the migrations that a folder's database has had."""
    file = (folder / "chroma.sqlite3").absolute().as_uri()
    with closing(sqlite3.connect(f"{file}?mode=ro", uri=True)) as database:
        return set(database.execute("SELECT dir, version FROM migrations"))
