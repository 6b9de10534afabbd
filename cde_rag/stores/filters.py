"""Filters over metadata: their grammar, which docs/guide/filters.md describes, and the records that they match.

Strings are ordered by code point. Integers beyond 64 bits count as the nearest float. A date is an ISO 8601 string;
without an offset it is UTC, without a time midnight.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import numpy as np

from cde_rag.errors import FilterError
from cde_rag.field_names import field_name, paths_of
from cde_rag.stores.filter_conditions import (
    And,
    Field,
    FieldComparison,
    Filter,
    Not,
    Operand,
    Or,
    holds,
    instant,
    number,
)

MAX_DEPTH: Final = 32  # groups inside each other
MAX_PARTS: Final = 500  # fields and groups in one filter
MAX_VALUES: Final = 10_000  # operands in one filter, and further paths of its dotted names

_ORDERED: Final = ("gt", "gte", "lt", "lte")
_OPERATORS: Final = ("eq", "ne", "in", "nin", *_ORDERED, "contains", "exists")


def matches(where: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return True if a record with this metadata matches the filter `where`.

    Raises:
        FilterError: `where` is outside the grammar.

    Examples:
        >>> matches({"tags": "numpy", "year": {"gte": 2020}}, {"tags": ["scipy", "numpy"], "year": 2021})
        True
    """
    return holds(parse(where), metadata)


def check_narrows(where: Mapping[str, Any], remedy: str) -> None:
    """Refuse a filter of a deletion that matches every record, or has a part that does, often by mistake.

    Args:
        where: A filter.
        remedy: Sentence that says how all records are reached.

    Raises:
        FilterError: It is outside the grammar; or it matches every record, such as `{}` or
            `{"not": {"field": {"in": []}}}`; or it has an `and` without filters, a `{}` in a group, or "" as the
            operand of contains, gt or gte.
    """
    condition = parse(where)
    if _constant(condition) or _is_wide(condition):
        raise FilterError(
            f"{where!r:.200} has an empty part, which matches every record. Is a variable unset? {remedy}"
        )


def _constant(condition: Filter) -> bool | None:
    """Return True or False if a filter keeps every record or none; None if it depends on the record."""
    match condition:
        case Not(part):
            inner = _constant(part)
            return None if inner is None else not inner
        case And(parts):
            found = set(map(_constant, parts))
            return False if False in found else None if None in found else True
        case Or(parts):
            found = set(map(_constant, parts))
            return True if True in found else None if None in found else False
        case Field(_, comparisons, _):
            return None if all(comparison.operands for comparison in comparisons) else False


def _is_wide(condition: Filter) -> bool:
    match condition:
        case And(parts):
            return not parts or any(map(_is_wide, parts))
        case Or(parts):
            return any(map(_is_wide, parts))
        case Not(part):
            return part == Or(()) or _is_wide(part)
        case Field(_, comparisons, _):
            lowest = [one.operands for one in comparisons if one.operator in ("contains", "gt", "gte")]
            return (Operand("text", ""),) in lowest


def parse(where: Mapping[str, Any]) -> Filter:
    """Read a filter.

    Raises:
        FilterError: `where` is outside the grammar, or larger than a filter may be.
    """
    return _Parser().group(where, "where", 0)


class _Parser:
    """Parser of one filter, with limits on its size. `at` is the position in the filter, for messages."""

    def __init__(self) -> None:
        self.parts = 0
        self.values = 0

    def group(self, where: object, at: str, depth: int) -> Filter:
        if not isinstance(where, Mapping):
            hint = f" {_hint(at)}" if at.endswith(".not") else ""
            example = '{"year": {"gte": 2020}}'
            raise FilterError(f"{at}: expected a mapping such as {example}, found {where!r:.80}.{hint}")
        if depth > MAX_DEPTH:
            raise FilterError(f"More than {MAX_DEPTH} groups inside each other. Make the filter flatter.")
        parts: list[Filter] = []
        for name, value in cast(Mapping[object, object], where).items():
            self.parts += 1
            if self.parts > MAX_PARTS:
                raise FilterError(
                    f'More than {MAX_PARTS} parts in a filter. Many values of one field go into one "in".'
                )
            match name:
                case "and":
                    parts.append(And(self.groups(value, f"{at}.and", depth + 1)))
                case "or":
                    parts.append(Or(self.groups(value, f"{at}.or", depth + 1)))
                case "not":
                    parts.append(Not(self.group(value, f"{at}.not", depth + 1)))
                case str():
                    parts.append(self.field(name, value, f"{at}.{name}"))
                case _:
                    raise FilterError(f"{at}: expected the name of a field, found {name!r:.80}.")
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def groups(self, filters: object, at: str, depth: int) -> tuple[Filter, ...]:
        if not isinstance(filters, list | tuple):
            raise FilterError(f"{at}: expected a list of filters, found {filters!r:.80}. {_hint(at)}")
        listed = enumerate(cast(Iterable[object], filters))
        return tuple(self.group(part, f"{at}[{position}]", depth) for position, part in listed)

    def field(self, name: str, condition: object, at: str) -> Field:
        paths = paths_of(_encodable(name, at))
        self.count(len(paths) - 1, at)  # one by one they are compared like values
        if not isinstance(condition, Mapping) or "date" in condition:
            return Field(paths, (self.comparison("eq", cast(object, condition), at),), None)
        comparisons: list[FieldComparison] = []
        exists: bool | None = None
        for operator, operand in cast(Mapping[object, object], condition).items():
            if operator not in _OPERATORS:
                hint = f"Known are {', '.join(_OPERATORS)}. A field in a field is a dotted path."
                raise FilterError(f"{at}: expected an operator, found {operator!r:.80}. {hint}")
            if operator != "exists":
                comparisons.append(self.comparison(str(operator), operand, f"{at}.{operator}"))
            elif isinstance(operand, bool):
                exists = operand
            else:
                raise FilterError(f"{at}.exists: expected True or False, found {operand!r:.80}.")
        if not condition:
            raise FilterError(f"{at}: expected a value or operators, found an empty mapping.")
        return Field(paths, tuple(comparisons), exists)

    def comparison(self, operator: str, value: object, at: str) -> FieldComparison:
        if operator in ("in", "nin"):
            if not isinstance(value, list | tuple):
                raise FilterError(f"{at}: expected a list of values, found {value!r:.80}.")
            operands = tuple(self.operand(one, at) for one in cast(Iterable[object], value))
            if operator == "nin" and not operands:
                raise FilterError(f"{at}: expected at least one value. An empty list excludes nothing: leave it out.")
            return FieldComparison(operator, operands)
        operand = self.operand(value, at)
        if operator == "contains" and operand.kind != "text":
            hint = 'Lists with an element: {"eq": element}.'
            raise FilterError(f"{at}: expected a string to look for in strings, found {value!r:.80}. {hint}")
        if operator in _ORDERED and operand.kind in ("boolean", "null"):
            raise FilterError(f"{at}: expected an ordered value (a number, string or date), found {value!r}.")
        return FieldComparison({"eq": "in", "ne": "nin"}.get(operator, operator), (operand,))

    def count(self, values: int, at: str) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise FilterError(f"{at}: more than {MAX_VALUES} values, or paths of dotted names, in a filter. Split it.")

    def operand(self, value: object, at: str) -> Operand:
        self.count(1, at)
        plain = cast(object, cast(Any, value).item()) if isinstance(value, np.generic) else value
        match plain:
            case None:
                return Operand("null", 0)
            case bool():
                return Operand("boolean", int(plain))
            case str():
                return Operand("text", _encodable(plain, at))
            case int() | float() if math.isfinite(number(plain)):
                return Operand("number", number(plain))
            case Mapping() if list(cast(Mapping[object, object], plain)) == ["date"]:
                return _date(cast(Mapping[object, object], plain)["date"], at)
            case _:
                hint = 'One of several values: {"in": […]}. A moment: {"date": moment.isoformat()}.'
                raise FilterError(f"{at}: expected a string, finite number, bool or None, found {value!r:.80}. {hint}")


def _date(value: object, at: str) -> Operand:
    key = instant(value) if isinstance(value, str) else None
    if key is None:
        form = "2024-01-31 or 2024-01-31T12:00:00Z"
        raise FilterError(f"{at}.date: expected an ISO 8601 string such as {form}, found {value!r:.80}.")
    return Operand("date", key)


def _hint(at: str) -> str:
    """Return how a field is named that has the name of the group at `at`."""
    group = at.rpartition(".")[2]
    return f"A field that is called {group!r} is named {field_name(group)!r}."


def _encodable(text: str, at: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(f"{at!a:.80}: expected Unicode text, found a lone surrogate in {text!a:.80}.") from error
    return text
