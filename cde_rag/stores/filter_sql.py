"""Filters in SQL: metadata as rows of the table `fields`, and a filter as a condition on positions of records.

Every element of the metadata is a row: its path, kind and key (as the oracle compares them, so that nothing depends
on how a database reads JSON), and its moment where it is a date. Objects and lists have rows too, for `exists`. A
filter on a field is then one lookup by path, kind and value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
    parameters: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL of one database, where it differs.

    Attributes:
        mark: Placeholder of a parameter.
        position: Column of a record's position.
        columns: Column of `fields` that holds the keys of a kind.
        key: Converts a key of a kind to a parameter.
        contains: Condition that the text in `value` contains a parameter.
        prefix: Length of the beginnings of paths and texts that are indexed; None if the columns themselves are.
        fields: Name of the table `fields`.
    """

    mark: str
    position: str
    columns: Mapping[str, str]
    key: Callable[[str, Key], Any]
    contains: str
    prefix: int | None = None
    fields: str = "fields"

    def condition(self, where: Filter) -> Condition:
        """Translate a filter to SQL on the position of a record."""
        match where:
            case And(parts):
                return _joined(" AND ", "TRUE", [self.condition(part) for part in parts])
            case Or(parts):
                return _joined(" OR ", "FALSE", [self.condition(part) for part in parts])
            case Not(part):
                inner = self.condition(part)
                return Condition(f"NOT {inner.sql}", inner.parameters)
            case Field(paths, comparisons, exists):
                wanted = [self._having(paths, comparisons)] if comparisons or exists else []
                if exists is False:
                    missing = self._having(paths, ())
                    wanted.append(Condition(f"NOT {missing.sql}", missing.parameters))
                return _joined(" AND ", "TRUE", wanted)

    def _having(self, paths: tuple[tuple[str, ...], ...], comparisons: tuple[FieldComparison, ...]) -> Condition:
        """Return the condition that an element at a path passes all comparisons; a list is none, but has some."""
        keys = tuple(self.key("text", ".".join(map(_key, path))) for path in paths)
        there = [self._among("path", keys), Condition("kind != 'list'", ())]
        passes = _joined(" AND ", "TRUE", [*there, *map(self._comparison, comparisons)])
        found = f"({self.position} IN (SELECT {self.position} FROM {self.fields} WHERE {passes.sql}))"  # noqa: S608
        return Condition(found, passes.parameters)

    def _comparison(self, comparison: FieldComparison) -> Condition:
        match comparison.operator:
            case "in":
                return self._equal(comparison)
            case "nin":
                kinds = {operand.kind for operand in comparison.operands}
                of_kind = _joined(" OR ", "FALSE", [_of_kind(kind) for kind in sorted(kinds)])
                equal = self._equal(comparison)
                return Condition(f"({of_kind.sql} AND NOT {equal.sql})", of_kind.parameters + equal.parameters)
            case _:
                (operand,) = comparison.operands
                column, key = self.columns[operand.kind], self.key(operand.kind, operand.key)
                tests = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
                test = tests.get(comparison.operator)
                sql = f"{column} {test} {self.mark}" if test else self.contains
                return _joined(" AND ", "TRUE", [_of_kind(operand.kind), Condition(sql, (key,))])

    def _equal(self, comparison: FieldComparison) -> Condition:
        alternatives: list[Condition] = []
        for kind in sorted({operand.kind for operand in comparison.operands}):
            keys = tuple(self.key(kind, operand.key) for operand in comparison.operands if operand.kind == kind)
            among = self._among(self.columns[kind], keys)
            alternatives.append(_joined(" AND ", "TRUE", [_of_kind(kind), among]))
        return _joined(" OR ", "FALSE", alternatives)

    def _among(self, column: str, keys: tuple[Any, ...]) -> Condition:
        """Return the condition that a column has one of some keys."""
        marks = ", ".join([self.mark] * len(keys))
        equal = Condition(f"{column} IN ({marks})", keys)
        if self.prefix is None or column not in ("path", "value"):
            return equal
        beginnings = tuple(key[: self.prefix] for key in keys)
        return Condition(f"substring({column}, 1, {self.prefix}) IN ({marks}) AND {equal.sql}", beginnings + keys)


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


def _of_kind(kind: str) -> Condition:
    return Condition("instant IS NOT NULL" if kind == "date" else f"kind = '{kind}'", ())


def _joined(operator: str, empty: str, parts: list[Condition]) -> Condition:
    sql = operator.join(part.sql for part in parts) or empty
    return Condition(f"({sql})", tuple(key for part in parts for key in part.parameters))
