"""Haystack's filters in the grammar of `cde_rag.stores.filters`."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from haystack.errors import FilterError

from cde_rag.field_names import field_name
from cde_rag.stores.filter_conditions import instant

ORDERED = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
RESERVED = "_haystack"  # key of what a document has beside text and metadata


def where_of(filters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Translate filters; None where they let everything pass.

    Raises:
        FilterError: No filter of Haystack's, an unknown operator, or a value that does not go with its operator.
    """
    return None if not filters else _part(filters)


def names_id(filters: Mapping[str, Any] | None) -> bool:
    """Return True if well-formed filters name the ids of documents."""
    parts = (filters or {}).get("conditions", ())
    return (filters or {}).get("field") == "id" or any(map(names_id, parts))


def _part(part: object) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise FilterError(f"Expected a filter, a mapping, found {part!r:.80}.")
    if "field" in part:
        return _comparison(part)
    for key in ("operator", "conditions"):
        if key not in part:
            raise FilterError(f"Expected the key {key!r} in a filter, found {sorted(part)}.")
    if not isinstance(part["conditions"], list | tuple):
        raise FilterError(f"Expected a list of conditions, found {part['conditions']!r:.80}.")
    parts = [_part(each) for each in part["conditions"]]
    match part["operator"]:
        case "AND":
            return {"and": parts}
        case "OR":
            return {"or": parts}
        case "NOT":
            return {"not": {"and": parts}}
    raise FilterError(f"Expected the operator AND, OR or NOT, found {part['operator']!r}.")


def _comparison(part: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("operator", "value"):
        if key not in part:
            raise FilterError(f"Expected the key {key!r} in a condition, found {sorted(part)}.")
    key, operator, value = _key(part["field"]), part["operator"], part["value"]
    match operator:
        case "==":
            return _equal(key, value)
        case "!=":
            return {"not": _equal(key, value)}
        case "in" | "not in":
            if not isinstance(value, list):
                raise FilterError(f"{part['field']}: {operator!r} takes a list, found {type(value).__name__}.")
            found = {"or": [_equal(key, each) for each in value]}
            return found if operator == "in" else {"not": found}
        case str() if operator in ORDERED:
            return {key: {"in": []}} if value is None else {key: {ORDERED[operator]: _ordered(part["field"], value)}}
    raise FilterError(
        f"{part['field']}: expected one of ==, !=, >, >=, <, <=, in and not in as operator, found {operator!r}."
    )


def _key(field: object) -> str:
    if not isinstance(field, str):
        raise FilterError(f"Expected the name of a field, such as meta.year, found {field!r:.80}.")
    if field == "id":
        return f"{RESERVED}.id"
    if field == "content":
        raise FilterError("Filters are over metadata, such as meta.year; a text is found by the CDERetriever.")
    return field_name(field.removeprefix("meta."))


def _equal(key: str, value: object) -> dict[str, Any]:
    if value is None:
        return {"or": [{key: {"exists": False}}, {key: {"eq": None}}]}
    return {key: {"eq": _operand(value)}}


def _operand(value: object) -> object:
    """Return a value as the grammar compares it: moments by time, however they are written, under every operator."""
    if isinstance(value, datetime):  # in UTC, since ISO 8601 has no seconds of offset
        return {"date": (value if value.tzinfo is None else value.astimezone(timezone.utc)).isoformat()}
    return {"date": value} if isinstance(value, str) and instant(value) is not None else value


def _ordered(field: str, value: object) -> object:
    operand = _operand(value)
    if isinstance(operand, Mapping) or (isinstance(operand, int | float) and not isinstance(operand, bool)):
        return operand
    raise FilterError(f"{field}: >, >=, < and <= take a number, a datetime or an ISO 8601 date, found {value!r:.80}.")
