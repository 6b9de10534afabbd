"""Filters of the grammar as conditions on the two fields of payload_fields.py."""

from typing import Final, NamedTuple

from cde_rag.stores.filter_conditions import And, Field, FieldComparison, Filter, Not, Or
from cde_rag.stores.qdrant_base.payload_fields import NUMBERS, TOKENS, numbers_key, place, token
from cde_rag.stores.qdrant_base.selection import Between, Every, No, Selection, Some, Tagged

_RANGES: Final = ("gt", "gte", "lt", "lte")


class Translation(NamedTuple):
    """A filter for Qdrant.

    Attributes:
        where: Keeps every record that the filter of the grammar keeps.
        exact: Keeps no other.
    """

    where: Selection
    exact: bool


def translate(where: Filter) -> Translation:
    """Translate a filter to the narrowest selection on the payload fields that keeps all its matches."""
    match where:
        case And(parts):
            return _all([translate(part) for part in parts])
        case Or(parts):
            some = [translate(part) for part in parts]
            if not some:
                return Translation(_has(), exact=True)
            return Translation(Some(tuple(part.where for part in some)), all(part.exact for part in some))
        case Not(part):
            inner = translate(part)
            return Translation(No(inner.where) if inner.exact else Every(), inner.exact)
        case Field(path, comparisons, exists):
            wanted = [] if exists is None else [Translation(_exists(path, there=exists), exact=True)]
            return _all([*wanted, *_comparisons(path, comparisons)])


def _comparisons(path: tuple[str, ...], comparisons: tuple[FieldComparison, ...]) -> list[Translation]:
    """Translate comparisons that one and the same element has to pass."""
    kinds = {operand.kind for comparison in comparisons for operand in comparison.operands}
    ranges = [one for one in comparisons if one.operator in _RANGES]
    if ranges == list(comparisons) and kinds in ({"number"}, {"date"}):
        return [_range(path, comparisons)]
    parts = [_range(path, (one,)) if one in ranges else _comparison(path, one) for one in comparisons]
    together = len(comparisons) < 2  # otherwise one element could pass one of them, and another element another
    return [Translation(part.where, part.exact and together) for part in parts]


def _comparison(path: tuple[str, ...], comparison: FieldComparison) -> Translation:
    if comparison.operator == "in":
        values = [token(path, operand.kind, operand.key) for operand in comparison.operands]
        return Translation(_has(*values), exact=True)
    kinds = {token(path, operand.kind) for operand in comparison.operands}
    return Translation(_has(*sorted(kinds)), exact=False)


def _range(path: tuple[str, ...], comparisons: tuple[FieldComparison, ...]) -> Translation:
    """Translate range comparisons of one kind."""
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
    return Translation(Between(key, bounds), exact)


def _exists(path: tuple[str, ...], *, there: bool) -> Selection:
    return _has(token(path)) if there else No(_has(token(path)))


def _all(parts: list[Translation]) -> Translation:
    return Translation(Every(tuple(part.where for part in parts)), all(part.exact for part in parts))


def _has(*tokens: str) -> Selection:
    """Return the selection of records with one of the tokens."""
    return Tagged(TOKENS, tokens)
