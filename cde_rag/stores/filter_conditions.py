"""Conditions of a filter (AST), and their evaluation: `holds` is the reference for every store's filters."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, TypeAlias

from cde_rag.field_names import elements, values_on

Kind: TypeAlias = Literal["text", "number", "boolean", "null", "date"]
Key: TypeAlias = str | int | float  # ordered within its kind

_ISO: Final = re.compile(
    r"""(?P<day>\d{4}-\d\d-\d\d)
        (?: [T\ ] (?P<minute>\d\d:\d\d) (?: :(?P<second>\d\d) (?: \.(?P<fraction>\d+) )? )?
            (?: Z | (?P<sign>[+-]) (?P<hours>[01]\d|2[0-3]) :? (?P<minutes>[0-5]\d) )?
        )?""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_START: Final = datetime(1, 1, 1, tzinfo=timezone.utc)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "in": operator.eq,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "contains": lambda text, part: part in text,
}


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in a filter: its kind, and its key within that kind."""

    kind: Kind
    key: Key


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """An operator and its operands.

    Attributes:
        operator: `in` (also for `eq`), `nin` (also for `ne`), `gt`, `gte`, `lt`, `lte` or `contains`.
        operands: Any number for `in`, at least one for `nin`, else one.
    """

    operator: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A condition on one field.

    Attributes:
        paths: Keys from the top of the metadata: all paths that the field's name can have.
        comparisons: Comparisons that one and the same element of the field has to pass; none for `exists` alone.
        exists: True if the field must have an element, be it null; False if it must not; None for either.
    """

    paths: tuple[tuple[str, ...], ...]
    comparisons: tuple[FieldComparison, ...]
    exists: bool | None


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold; true of no parts."""

    parts: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Some part holds; false of no parts."""

    parts: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: "Filter"


Filter: TypeAlias = Field | And | Or | Not


def holds(condition: Filter, metadata: Mapping[str, Any]) -> bool:
    """Return True if a record with this metadata matches the filter."""
    match condition:
        case And(parts):
            return all(holds(part, metadata) for part in parts)
        case Or(parts):
            return any(holds(part, metadata) for part in parts)
        case Not(part):
            return not holds(part, metadata)
        case Field(paths, comparisons, exists):
            leaves = [leaf for path in paths for value in values_on(metadata, path) for leaf in elements(value)]
            if exists is not None and exists != bool(leaves):
                return False
            return not comparisons or any(all(_passes(one, leaf) for one in comparisons) for leaf in leaves)


def _passes(comparison: FieldComparison, leaf: object) -> bool:
    """Return True if one element passes; an element of another kind than all operands never does."""
    pairs = [(key, operand.key) for operand in comparison.operands if (key := _key_of(leaf, operand.kind)) is not None]
    if comparison.operator == "nin":
        return bool(pairs) and all(key != wanted for key, wanted in pairs)
    return any(_COMPARISONS[comparison.operator](key, wanted) for key, wanted in pairs)


def _key_of(leaf: object, kind: Kind) -> Key | None:
    """Return the key of an element for comparison with operands of `kind`; None if it is of another kind."""
    match kind:
        case "text":
            return leaf if isinstance(leaf, str) else None
        case "date":
            return instant(leaf) if isinstance(leaf, str) else None
        case "number":
            return number(leaf) if isinstance(leaf, int | float) and not isinstance(leaf, bool) else None
        case "boolean":
            return int(leaf) if isinstance(leaf, bool) else None
        case "null":
            return 0 if leaf is None else None


def number(value: int | float) -> int | float:
    """Convert a number for comparison: integers beyond 64 bits become the nearest float."""
    if isinstance(value, float) or -(2**63) <= value < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def instant(text: str) -> str | None:
    """Convert an ISO 8601 string to a string that sorts by time; None if it is none.

    Examples:
        >>> instant("2024-01-31T01:00:00.50+01:00") == instant("2024-01-31 00:00:00.5") > instant("2024-01-31")
        True
    """
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found['day']}T{found['minute'] or '00:00'}:{found['second'] or '00'}+00:00")
    except ValueError:
        return None
    offset = timedelta(hours=int(found["hours"] or 0), minutes=int(found["minutes"] or 0))
    since = moment - _START + (offset if found["sign"] == "-" else -offset)
    return f"{since.days:07d}{since.seconds:05d}{(found['fraction'] or '').rstrip('0')}"
