"""Filters of the grammar as Qdrant's conditions on `metadata`, between two bounds.

Qdrant's conditions cannot say all that the grammar says: no order of strings, no `contains` that an index leaves alone,
no comparisons that one element has to pass together. So a filter becomes two selections, of which one keeps at least
its matches and the other at most; what lies between them is evaluated here.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple, TypeVar

from cde_rag.stores.filter_conditions import And, Field, FieldComparison, Filter, Not, Operand, Or, holds, instant
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.metadata_paths import METADATA, compared, filter_paths
from cde_rag.stores.qdrant_base.payload import FILTERS, ORDER, metadata_of
from cde_rag.stores.qdrant_base.points import Point, Points
from cde_rag.stores.qdrant_base.selection import ALL, NONE, Selection, any_of, every, has, no, some

_RANGES: Final = ("gt", "gte", "lt", "lte")
_START: Final = datetime(1, 1, 1, tzinfo=timezone.utc)
_ROUNDED: Final = any_of(FILTERS, ["rounded"])
_CHECKED: Final = any_of(FILTERS, ["cde-rag"])
_FAR: Final = 1e20  # beyond all numbers that Qdrant compares
_OTHERS: Final = {"number": {"datetime", "integer"}, "date": {"float", "integer"}}  # indexes that hide values of a kind

Bound = TypeVar("Bound", float, str)


class _Bounds(NamedTuple):
    """A filter for Qdrant.

    Attributes:
        possible: Keeps every record that the filter of the grammar keeps.
        certain: Keeps no other.
    """

    possible: Selection
    certain: Selection


class PointFilter:
    """A filter of the grammar over a store's points.

    Args:
        where: The filter; None keeps all.
        points: Points of the store.
        manifest: Manifest of the store. Points of older versions say nothing to Qdrant: all are evaluated here.
    """

    def __init__(self, where: Filter | None, points: Points, manifest: PointsManifest) -> None:
        self._where = where
        self._points = points
        if where is None:
            self._bounds = _Bounds(ALL, ALL)
        elif not manifest.native:
            self._bounds = _Bounds(ALL, NONE)
        else:
            possible, certain = _Translator(points).bounds(where)
            self._bounds = _Bounds(some(possible, _CHECKED), every(certain, no(_CHECKED)))

    @property
    def selection(self) -> Selection:
        """Selection that keeps every match, and more where Qdrant cannot say it."""
        return self._bounds.possible

    @property
    def certain(self) -> Selection:
        """Selection that keeps matches only."""
        return self._bounds.certain

    def payload(self, keys: Sequence[str]) -> list[str]:
        """Return these keys of a payload, and those that `passes` reads."""
        return [*keys] if self._where is None else [*keys, METADATA, "cde_metadata"]

    def passes(self, point: Point) -> bool:
        """Return True if a selected point is a record that matches."""
        payload = point.payload or {}
        if ORDER not in payload:  # someone else's, with a vector of the same name
            return False
        return self._where is None or holds(self._where, metadata_of(point, self._points.place))

    def count(self) -> int:
        """Count the matching records: by Qdrant, and here between the bounds."""
        possible, certain = self._bounds
        count = 0 if certain == NONE else self._points.count(certain)
        if possible == certain:
            return count
        return count + sum(map(self.passes, self._points.in_order(every(possible, no(certain)))))


class _Translator:
    """Translator of one filter."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._indexed: Mapping[str, str] | None = None

    def bounds(self, where: Filter) -> _Bounds:
        """Translate a filter."""
        match where:
            case And(parts):
                return _all(map(self.bounds, parts))
            case Or(parts):
                return _any(map(self.bounds, parts))
            case Not(part):
                inner = self.bounds(part)
                return _Bounds(no(inner.certain), no(inner.possible))
            case Field(paths, comparisons, exists):
                keys = filter_paths(self._points.metadata_key, paths)
                if not keys:
                    return _Bounds(ALL, NONE)
                there = some(*(some(has(key), _null(key)) for key in keys))
                wanted = ALL if exists is None else there if exists else no(there)
                return _all([_same(wanted), *self._comparisons(keys, comparisons)])

    def _comparisons(self, keys: list[str], comparisons: tuple[FieldComparison, ...]) -> list[_Bounds]:
        """Translate comparisons that one and the same element has to pass."""
        kinds = {operand.kind for comparison in comparisons for operand in comparison.operands}
        if all(one.operator in _RANGES for one in comparisons) and kinds in ({"number"}, {"date"}):
            return [self._range(keys, comparisons)] if comparisons else []
        parts = [self._comparison(keys, one) for one in comparisons]
        together = len(comparisons) < 2  # otherwise one element could pass one of them, and another element another
        return [part if together else _Bounds(part.possible, NONE) for part in parts]

    def _comparison(self, keys: list[str], comparison: FieldComparison) -> _Bounds:
        kind = comparison.operands[0].kind if comparison.operands else None
        if comparison.operator in _RANGES and kind in ("number", "date"):
            return self._range(keys, (comparison,))
        if comparison.operator != "in":
            return _Bounds(some(*map(has, keys)), NONE)
        texts = [str(operand.key) for operand in comparison.operands if operand.kind == "text"]
        found = [_same(some(*(self._any_of(key, texts) for key in keys)))] if texts else []
        return _any([*found, *(self._equal(keys, one) for one in comparison.operands if one.kind != "text")])

    def _any_of(self, key: str, texts: list[str]) -> Selection:
        """Return the filter for these strings; dates are found by an index of dates."""
        instants = [instant(text) for text in texts]
        moments = [moment for found in instants if found is not None and (moment := _moment(found)) is not None]
        if len(moments) < len(texts) or self._index(key) != "datetime":
            return any_of(key, texts)
        return every(_on(key, "range", {"gte": min(moments), "lte": max(moments)}), any_of(key, texts))

    def _index(self, key: str) -> str | None:
        """Return the kind of the payload index on a key."""
        if self._indexed is None:
            self._indexed = self._points.indexed()
        return self._indexed.get(key)

    def _equal(self, keys: list[str], operand: Operand) -> _Bounds:
        match operand.kind:
            case "boolean":
                return _same(some(*(_on(key, "match", {"value": bool(operand.key)}) for key in keys)))
            case "null":
                return _same(some(*map(_null, keys)))
            case _:
                return self._range(keys, [FieldComparison(operator, (operand,)) for operator in ("gte", "lte")])

    def _range(self, keys: list[str], comparisons: Sequence[FieldComparison]) -> _Bounds:
        """Translate comparisons of one kind, number or date, with the operators gt, gte, lt and lte."""
        operands = [(one.operator, one.operands[0]) for one in comparisons]
        if any(self._index(key) in _OTHERS[operands[0][1].kind] for key in keys):
            return _Bounds(ALL, NONE)
        if operands[0][1].kind == "date":
            moments = [(operator, _moment(str(operand.key))) for operator, operand in operands]
            known = _tightest([(operator, moment) for operator, moment in moments if moment is not None])
            within = some(*(_on(key, "range", known) if known else has(key) for key in keys))
            return _Bounds(within, within if all(moment is not None for _, moment in moments) else NONE)
        numbers = [(operator, float(operand.key)) for operator, operand in operands]
        short, wide = _tightest(numbers), _tightest([_wide(*number) for number in numbers])
        within, around = (some(*(_on(key, "range", bounds) for key in keys)) for bounds in (short, wide))
        if any(compared(operand.key) != "qdrant" for _, operand in operands):
            return _Bounds(around, NONE)
        return _Bounds(some(within, every(around, _ROUNDED)), every(within, no(_ROUNDED)))


def _wide(operator: str, number: float) -> tuple[str, float]:
    """Return a comparison that holds of a number rounded to 15 digits, or read from JSON, if this one holds of it."""
    near = max(-_FAR, min(_FAR, number))
    slack = 1e-12 * abs(near) + 1e-12
    return ("gte", near - slack) if operator in ("gt", "gte") else ("lte", near + slack)


def _moment(when: str) -> str | None:
    """Return an operand's moment in ISO 8601; None if it is finer than microseconds, or beyond a datetime."""
    since = timedelta(int(when[:7]), int(when[7:12]), int(when[12:18].ljust(6, "0")))
    try:
        return None if when[18:] else (_START + since).isoformat(timespec="microseconds")
    except OverflowError:
        return None


def _tightest(comparisons: list[tuple[str, Bound]]) -> dict[str, Bound]:
    bounds: dict[str, Bound] = {}
    for operator, bound in comparisons:
        tighter = max if operator.startswith("g") else min
        bounds[operator] = tighter(bound, bounds.get(operator, bound))
    return bounds


def _on(key: str, kind: str, operand: Selection) -> Selection:
    return {"must": [{"key": key, kind: operand}]}


def _null(key: str) -> Selection:
    return {"must": [{"is_null": {"key": key}}]}


def _same(selection: Selection) -> _Bounds:
    return _Bounds(selection, selection)


def _all(parts: Iterable[_Bounds]) -> _Bounds:
    found = list(parts)
    return _Bounds(every(*(part.possible for part in found)), every(*(part.certain for part in found)))


def _any(parts: Iterable[_Bounds]) -> _Bounds:
    found = list(parts)
    return _Bounds(some(*(part.possible for part in found)), some(*(part.certain for part in found)))
