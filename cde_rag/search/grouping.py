"""Grouping of hits by a metadata value, or by parent."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cde_rag.field_names import value_at
from cde_rag.records import Hit, Record
from cde_rag.stores.filter_conditions import number

Value: TypeAlias = str | int | float | bool
Best: TypeAlias = Callable[[int, Mapping[str, Any] | None], list[Hit]]
"""Function from a limit and a filter to that many best hits for a query, among the matching records."""


@dataclass(frozen=True, slots=True)
class Group:
    """Best hits of one value of a metadata field.

    Attributes:
        value: The value.
        hits: Best first, at least one.
    """

    value: Value
    hits: list[Hit]

    @property
    def score(self) -> float:
        """Score of the best hit."""
        return self.hits[0].score


@dataclass(frozen=True, slots=True)
class ParentHit:
    """Parent with its best passages.

    Attributes:
        parent: Value of the collection's `parent_key` in its passages; None for a record without one.
        hits: Its best passages, best first, at least one.
        passages: All its passages in order of insertion, regardless of the filter.
    """

    parent: str | int | None
    hits: list[Hit]
    passages: list[Record]

    @property
    def score(self) -> float:
        """Score of the best hit."""
        return self.hits[0].score


@dataclass(frozen=True)
class Grouping:
    """Parameters of a grouped search.

    Attributes:
        key: Name of the metadata field.
        size: Maximum number of hits per group.
        alone: True if a hit without a value is a group of its own; otherwise it is left out.
        where: Filter of the hits.
        score_threshold: Minimum score of a hit; None for no limit.
    """

    key: str
    size: int
    alone: bool
    where: Mapping[str, Any] | None
    score_threshold: float | None

    def best(self, best: Best, wanted: int, depth: int | None) -> list[list[Hit]]:
        """Return the `wanted` groups with the best hits, as if all hits had been grouped.

        Args:
            best: Function that ranks hits.
            wanted: Maximum number of groups.
            depth: Length of its rankings; None if they contain all matching records.
        """
        if depth is not None:
            return list(self._gathered(best(depth, self.where)).values())[:wanted]
        found, limit, excluded = dict[Hashable, list[Hit]](), wanted * self.size, list[Value]()
        while True:
            hits = self._passing(best(limit, self._without(excluded)))
            new = {name: group for name, group in self._gathered(hits).items() if name not in found}
            found |= new
            if len(hits) < limit and not excluded:
                return list(found.values())[:wanted]
            if len(hits) < limit or len(found) >= wanted:
                return list(self._filled(dict(list(found.items())[:wanted]), best).values())
            if new:  # of groups that are found there could be hits without end
                excluded = self._values(found.values())
            else:
                limit *= 2

    def _gathered(self, hits: list[Hit]) -> dict[Hashable, list[Hit]]:
        groups: dict[Hashable, list[Hit]] = {}
        for hit in self._passing(hits):
            name = self._name(hit)
            if name is not None:
                group = groups.setdefault(name, [])
                if len(group) < self.size:
                    group.append(hit)
        return groups

    def _filled(self, groups: dict[Hashable, list[Hit]], best: Best) -> dict[Hashable, list[Hit]]:
        """Fill groups whose first hit is known up to their size."""
        open_ = {name: group for name, group in groups.items() if len(group) < self.size and self._values([group])}
        limit = self.size * len(open_)
        while open_:
            hits = self._passing(best(limit, self._and({self.key: {"in": self._values(open_.values())}})))
            gathered = self._gathered(hits)
            open_ = {name: gathered.get(name, group) for name, group in open_.items()}
            groups = groups | open_
            if len(hits) < limit:
                break
            full = {name for name, group in open_.items() if len(group) == self.size}
            open_ = {name: group for name, group in open_.items() if name not in full}
            limit = limit if full else 2 * limit
        return groups

    def _passing(self, hits: list[Hit]) -> list[Hit]:
        least = self.score_threshold
        return hits if least is None else [hit for hit in hits if hit.score >= least]

    def _name(self, hit: Hit) -> Hashable:
        """Return the key of a hit's group, equal if filters would compare the values as equal; None for no group."""
        value = self._value(hit)
        if isinstance(value, bool | str):
            return type(value).__name__, value
        if value is not None:
            return "number", number(value)
        return ("alone", hit.id) if self.alone else None

    def _value(self, hit: Hit) -> Value | None:
        value = value_at(hit.metadata, self.key)
        empty = value == "" and self.alone  # names no parent
        return value if isinstance(value, str | int | float) and not empty else None

    def _values(self, groups: Iterable[list[Hit]]) -> list[Value]:
        """Return the values of those groups that have one."""
        return [value for group in groups if (value := self._value(group[0])) is not None]

    def _without(self, values: list[Value]) -> Mapping[str, Any] | None:
        """Return a filter that excludes groups, and hits without a group."""
        left = {"not": {self.key: {"in": values}}} if values else {}
        there = {} if self.alone else {self.key: {"exists": True}}
        return self._and({**left, **there}) if values or there else self.where

    def _and(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        return condition if self.where is None else {"and": [self.where, condition]}
