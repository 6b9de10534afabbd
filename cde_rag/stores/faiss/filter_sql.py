"""Filters in SQL: metadata as rows of the table `fields`, and a filter as a condition on positions of records.

Every element of the metadata is a row: its path, kind and key (as the oracle compares them, so that nothing depends
on how SQLite reads JSON), and its moment where it is a date. Objects and lists have rows too, for `exists`. A filter
on a field is then one lookup by path, kind and value.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from cde_rag.stores.filter_conditions import And, Field, FieldComparison, Filter, Key, Not, Or, instant, number


class Element(NamedTuple):
    """A row of the table `fields`, without the record's position."""

    path: str
    kind: str
    value: Key
    instant: str | None


class Condition(NamedTuple):
    """A piece of SQL that is true or false, never null, and its parameters."""

    sql: str
    parameters: tuple[Key, ...]


def flatten(metadata: Mapping[str, Any]) -> Iterator[Element]:
    """Yield the rows of a JSON object in the filter table; equal elements of a list are repeated."""
    for name, value in metadata.items():
        yield from _flatten(value, _key(name))


def _flatten(value: object, path: str) -> Iterator[Element]:
    match value:
        case dict():
            yield Element(path, "object", 0, None)
            for name, inner in cast(dict[str, object], value).items():
                yield from _flatten(inner, f"{path}.{_key(name)}")
        case list():
            yield Element(path, "list", 0, None)
            for inner in cast(list[object], value):
                yield from _flatten(inner, path)
        case str():
            yield Element(path, "text", value, instant(value))
        case bool():
            yield Element(path, "boolean", int(value), None)
        case int() | float():
            yield Element(path, "number", number(value), None)
        case _:
            yield Element(path, "null", 0, None)


def _key(name: str) -> str:
    """Escape a key as a part of a dotted path, so that its own dots do not separate."""
    return name.replace("\\", "\\\\").replace(".", "\\.")


def condition(where: Filter) -> Condition:
    """Translate a filter to SQL on the column `position` of a record."""
    match where:
        case And(parts):
            return _joined(" AND ", "1", [condition(part) for part in parts])
        case Or(parts):
            return _joined(" OR ", "0", [condition(part) for part in parts])
        case Not(part):
            inner = condition(part)
            return Condition(f"NOT {inner.sql}", inner.parameters)
        case Field(path, comparisons, exists):
            wanted = [_having(path, comparisons)] if comparisons or exists else []
            if exists is False:
                missing = _having(path, ())
                wanted.append(Condition(f"NOT {missing.sql}", missing.parameters))
            return _joined(" AND ", "1", wanted)


def _having(path: tuple[str, ...], comparisons: tuple[FieldComparison, ...]) -> Condition:
    """Return the condition that an element at `path` passes all comparisons; a list is none, but has some."""
    there = Condition("path = ? AND kind != 'list'", (".".join(map(_key, path)),))
    passes = _joined(" AND ", "1", [there, *map(_comparison, comparisons)])
    return Condition(f"(position IN (SELECT position FROM fields WHERE {passes.sql}))", passes.parameters)  # noqa: S608


def _comparison(comparison: FieldComparison) -> Condition:
    match comparison.operator:
        case "in":
            return _equal(comparison)
        case "nin":
            kinds = {operand.kind for operand in comparison.operands}
            of_kind = _joined(" OR ", "0", [_of_kind(kind) for kind in sorted(kinds)])
            equal = _equal(comparison)
            return Condition(f"({of_kind.sql} AND NOT {equal.sql})", of_kind.parameters + equal.parameters)
        case _:
            (operand,) = comparison.operands
            column = "instant" if operand.kind == "date" else "value"
            tests = {"gt": "> ?", "gte": ">= ?", "lt": "< ?", "lte": "<= ?"}
            sql = f"{column} {tests[comparison.operator]}" if comparison.operator in tests else "instr(value, ?) > 0"
            return _joined(" AND ", "1", [_of_kind(operand.kind), Condition(sql, (operand.key,))])


def _equal(comparison: FieldComparison) -> Condition:
    alternatives: list[Condition] = []
    for kind in sorted({operand.kind for operand in comparison.operands}):
        keys = tuple(operand.key for operand in comparison.operands if operand.kind == kind)
        column = "instant" if kind == "date" else "value"
        among = Condition(f"{column} IN ({', '.join('?' * len(keys))})", keys)
        alternatives.append(_joined(" AND ", "1", [_of_kind(kind), among]))
    return _joined(" OR ", "0", alternatives)


def _of_kind(kind: str) -> Condition:
    return Condition("instant IS NOT NULL", ()) if kind == "date" else Condition("kind = ?", (kind,))


def _joined(operator: str, empty: str, parts: list[Condition]) -> Condition:
    sql = operator.join(part.sql for part in parts) or empty
    return Condition(f"({sql})", tuple(key for part in parts for key in part.parameters))
