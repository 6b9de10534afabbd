"""Filters of Qdrant in its JSON, which every client and the dashboard read, independent of a client's classes.

A condition on a key holds if one of its values fulfils it; the values of a list are its elements.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Selection: TypeAlias = Mapping[str, Any]

ALL: Final[Selection] = {}
NONE: Final[Selection] = {"must": [{"has_id": []}]}


def every(*parts: Selection) -> Selection:
    """Return the filter for points that pass all parts."""
    left = [part for part in parts if part != ALL]
    return NONE if NONE in left else {"must": left} if left else ALL


def some(*parts: Selection) -> Selection:
    """Return the filter for points that pass some part."""
    left = [part for part in parts if part != NONE]
    return ALL if ALL in left else {"should": left} if left else NONE


def no(part: Selection) -> Selection:
    """Return the filter for points that do not pass a part."""
    return ALL if part == NONE else NONE if part == ALL else {"must_not": [part]}


def any_of(key: str, texts: list[str]) -> Selection:
    """Return the filter for points with one of these strings as a value of the key."""
    return {"must": [{"key": key, "match": {"any": texts}}]}


def has(key: str) -> Selection:
    """Return the filter for points with a value of the key other than null and empty lists."""
    return {"must_not": [{"is_empty": {"key": key}}]}
