"""The folder of a store: names of its files, and which of them stay."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

DATABASE: Final = "collection.sqlite"
DERIVED: Final = re.compile(r"context-\d+|(vectors|index)-\d+(-[0-9a-f]{8})?")  # what the database refers to, or did
CREATED: Final = re.compile(rf"{re.escape(DATABASE)}-.*|{DERIVED.pattern}")  # by `create`, after the database


def sweep(folder: Path, kept: Collection[str]) -> None:
    """Delete the files that the database refers to no more."""
    for path in folder.iterdir():
        if DERIVED.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)
