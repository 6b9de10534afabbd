"""Columns of another application's table: that of the texts, that of the vectors, and those that filters can read."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from cde_rag.errors import StoreError

USUAL: Final = ("text", "document", "content", "page_content", "chunk")  # names of columns or keys, the best first
_METADATA: Final = ("metadata", "metadata_", "cmetadata", "langchain_metadata")  # whose values are columns, too
_BOOKKEEPING: Final = "_node"  # start of the keys of LlamaIndex' own


def filterable(values: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """Return the values of a row that filters can read, with those of LangChain's and LlamaIndex' metadata."""
    flat = dict(values)
    for name in _METADATA:
        if isinstance(inner := values.get(name), dict):
            flat |= cast(dict[str, Any], inner)
    return {
        key: value
        for key, value in flat.items()
        if key not in left_out and is_plain(value) and not key.startswith(_BOOKKEEPING)
    }


def is_plain(value: object) -> bool:
    """Return True for a text, a number or a list of them."""
    each = cast(list[object], value) if isinstance(value, list) else [value]
    return all(isinstance(one, str | int | float) for one in each)


def without_bookkeeping(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without LlamaIndex' own: the node with its relationships as JSON, and its class."""
    return {key: value for key, value in metadata.items() if not key.startswith(_BOOKKEEPING)}


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


def check_choice(target: str, notes: Mapping[str, str], text: str | None, vector: str) -> None:
    """Check that a move goes on with the text and the vectors that it began with.

    Raises:
        StoreError: It does not.
    """
    if (notes["text"], notes["vector"]) != (text or "", vector):
        given = [f"--{name} {notes[name]!r}" for name in ("text", "vector") if notes[name]]
        raise StoreError(f"{target}: expected the text and vectors of this move, found others. Give {' '.join(given)}.")
