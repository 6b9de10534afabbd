"""LlamaIndex's metadata filters in the grammar of `cde_rag.stores.filters`."""

from typing import Any

from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from cde_rag.errors import FilterError
from cde_rag.field_names import field_name

COMPARED = {  # the same in both
    FilterOperator.EQ: "eq",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.ANY: "in",
    FilterOperator.CONTAINS: "eq",  # lists match if an element does
    FilterOperator.TEXT_MATCH: "contains",
}
DENIED = {FilterOperator.NE: "eq", FilterOperator.NIN: "in"}  # true in LlamaIndex where the field is missing


def where_of(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """Translate filters; None without any. A group without filters is left out.

    Values are compared within their kind (numbers with numbers, strings with strings), and lists match if any element
    does.

    Raises:
        FilterError: An operator without an equivalent, or a value that does not go with its operator.
    """
    if filters is None:
        return None
    given = [where_of(part) if isinstance(part, MetadataFilters) else _condition(part) for part in filters.filters]
    parts = [part for part in given if part is not None]
    if not parts:
        return None
    match filters.condition:
        case FilterCondition.OR:
            return {"or": parts}
        case FilterCondition.NOT:
            return {"not": {"or": parts}}
        case _:
            return {"and": parts}


def check_groups(filters: MetadataFilters, remedy: str) -> None:
    """Refuse filters of a deletion with a group without filters, which `where_of` leaves out.

    Args:
        filters: Filters.
        remedy: Sentence that says how all nodes are reached.

    Raises:
        FilterError: There is one.
    """
    if not filters.filters:
        raise FilterError(f"A group of the filters is empty. Is a variable unset? Leave it out. {remedy}")
    for part in filters.filters:
        if isinstance(part, MetadataFilters):
            check_groups(part, remedy)


def _condition(part: MetadataFilter) -> dict[str, Any]:
    key, value = field_name(part.key), part.value
    if part.operator in COMPARED:
        return {key: {COMPARED[part.operator]: value}}
    if part.operator in DENIED:
        return {"not": {key: {DENIED[part.operator]: value}}}
    if part.operator == FilterOperator.ALL and isinstance(value, list):
        return {"and": [{key: {"eq": each}} for each in value]}
    if part.operator == FilterOperator.IS_EMPTY:
        anything = [{key: {"ne": ""}}, {key: {"ne": 0}}, {key: 0}, {key: {"in": [True, False]}}]
        return {"not": {"or": anything}}  # also [""] and objects, whose values have keys of their own, are empty
    known = ", ".join(operator.value for operator in (*COMPARED, *DENIED, FilterOperator.IS_EMPTY))
    raise FilterError(
        f"{part.key}: the filter {part.operator.value!r} with {value!r:.80} has no equivalent in a collection. Known "
        f"are {known}, and 'all' with a list."
    )
