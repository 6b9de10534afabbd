"""Filters of the grammar as filters of Qdrant."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from qdrant_client import models

from cde_rag.stores.conditions import And, Comparison, Field, Filter, Not, Or
from cde_rag.stores.qdrant.fields import NUMBERS, TOKENS, numbers_key, place, token

_RANGES: Final = ("gt", "gte", "lt", "lte")


class Translation(NamedTuple):
    """A filter of Qdrant.

    Attributes:
        filter: Keeps every record that the filter of the grammar keeps.
        exact: Keeps no other.
    """

    filter: models.Filter
    exact: bool


def translate(where: Filter) -> Translation:
    """The narrowest filter over the fields of fields.py that keeps all that `where` keeps."""
    match where:
        case And(parts):
            return _all([translate(part) for part in parts])
        case Or(parts):
            some = [translate(part) for part in parts]
            if not some:
                return Translation(_has(), exact=True)
            return Translation(_filter(should=[part.filter for part in some]), all(part.exact for part in some))
        case Not(part):
            inner = translate(part)
            return Translation(_filter(must_not=[inner.filter] if inner.exact else []), inner.exact)
        case Field(path, comparisons, exists):
            wanted = [] if exists is None else [Translation(_exists(path, there=exists), exact=True)]
            return _all([*wanted, *_comparisons(path, comparisons)])


def _comparisons(path: tuple[str, ...], comparisons: tuple[Comparison, ...]) -> list[Translation]:
    """What one element has to pass, all of it."""
    kinds = {operand.kind for comparison in comparisons for operand in comparison.operands}
    ranges = [one for one in comparisons if one.operator in _RANGES]
    if ranges == list(comparisons) and kinds in ({"number"}, {"date"}):
        return [_range(path, comparisons)]
    parts = [_range(path, (one,)) if one in ranges else _comparison(path, one) for one in comparisons]
    together = len(comparisons) < 2  # otherwise one element could pass one of them, and another element another
    return [Translation(part.filter, part.exact and together) for part in parts]


def _comparison(path: tuple[str, ...], comparison: Comparison) -> Translation:
    if comparison.operator == "in":
        values = [token(path, operand.kind, operand.key) for operand in comparison.operands]
        return Translation(_has(*values), exact=True)
    kinds = {token(path, operand.kind) for operand in comparison.operands}
    return Translation(_has(*sorted(kinds)), exact=False)


def _range(path: tuple[str, ...], comparisons: tuple[Comparison, ...]) -> Translation:
    """Comparisons of one kind, by order."""
    kind = comparisons[0].operands[0].kind
    if kind == "text":
        return Translation(_has(token(path, kind)), exact=False)
    bounds: dict[str, int] = {}
    exact = True
    for comparison in comparisons:
        at = place(comparison.operands[0].key)
        exact = exact and at.alone
        bound = comparison.operator if at.alone else f"{comparison.operator[:2]}e"
        tighter = max if bound.startswith("g") else min
        bounds[bound] = tighter(at.number, bounds.get(bound, at.number))
    key = f"{NUMBERS}.{numbers_key(path, kind)}"
    return Translation(_filter(must=[models.FieldCondition(key=key, range=models.Range(**bounds))]), exact)


def _exists(path: tuple[str, ...], *, there: bool) -> models.Filter:
    condition = _has(token(path))
    return condition if there else _filter(must_not=[condition])


def _all(parts: list[Translation]) -> Translation:
    return Translation(_filter(must=[part.filter for part in parts]), all(part.exact for part in parts))


def _has(*tokens: str) -> models.Filter:
    """Records with one of the tokens; none has the empty one."""
    match = models.MatchAny(any=list(tokens) or [""])
    return _filter(must=[models.FieldCondition(key=TOKENS, match=match)])


def _filter(
    *,
    must: Sequence[models.Condition] = (),
    must_not: Sequence[models.Condition] = (),
    should: Sequence[models.Condition] = (),
) -> models.Filter:
    """A filter; where it has no conditions, it keeps all."""
    return models.Filter(must=[*must] or None, must_not=[*must_not] or None, should=[*should] or None)
