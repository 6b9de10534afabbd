"""Columns of another application's table: that of the texts, and that of the vectors."""

from collections.abc import Sequence
from typing import Final

from cde_rag.errors import StoreError

USUAL: Final = ("text", "document", "content", "page_content", "chunk")  # names of columns or keys, the best first


def one_of(names: Sequence[str], asked: str | None, what: str) -> str:
    """Return the requested name, or the only one."""
    if asked in names or (asked is None and len(names) == 1):
        return names[0] if asked is None else asked
    found = ", ".join(name[:24] or "(unnamed)" for name in names) or "none"
    wanted = "one" if asked is None else repr(asked)
    raise StoreError(f"{what}: expected {wanted}, found {found}. Give --vector NAME.")


def text_column(columns: Sequence[str], asked: str | None, target: str) -> str:
    """Return the requested column, or the first of the usual names."""
    usual = [name for name in USUAL if name in columns]
    if asked in columns or (asked is None and usual):
        return usual[0] if asked is None else asked
    wanted = "a column of texts" if asked is None else f"the column {asked!r}"
    raise StoreError(f"{target}: expected {wanted}, found the columns {', '.join(columns)}. Give --text COLUMN.")
