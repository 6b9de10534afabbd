"""LlamaIndex's filters mean in a collection what they mean in LlamaIndex."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from llama_index.vector_stores.cde.conditions import where_of

from cde_rag.errors import FilterError
from cde_rag.stores.filters import matches

NUMBERS = st.integers(-3, 3)
TEXTS = st.text("ab", max_size=3)
WORDS = st.text("ab", min_size=1, max_size=3)  # a list of empty strings is empty for us
METADATA = st.fixed_dictionaries({}, optional={"n": NUMBERS, "t": TEXTS, "l": st.lists(WORDS, max_size=3)})
ORDERED = st.sampled_from(["==", "!=", ">", ">=", "<", "<="])


def conditions() -> st.SearchStrategy[MetadataFilter]:
    def of(key: str, operator: st.SearchStrategy[str], value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.builds(MetadataFilter, key=st.just(key), operator=operator.map(FilterOperator), value=value)

    some = st.sampled_from(["in", "nin"])
    return st.one_of(
        of("n", ORDERED, NUMBERS),
        of("t", ORDERED, TEXTS),
        of("n", some, st.lists(NUMBERS, min_size=1, max_size=3)),
        of("t", some, st.lists(TEXTS, min_size=1, max_size=3)),
        of("t", st.just("text_match"), TEXTS),
        of("l", st.sampled_from(["any", "all"]), st.lists(TEXTS, min_size=1, max_size=3)),
        of("l", st.just("contains"), TEXTS),
        of("l", st.just("is_empty"), st.none()),
        of("t", st.just("is_empty"), st.none()),
        of("n", st.just("is_empty"), st.none()),
    )


@given(METADATA, st.lists(conditions(), max_size=3), st.sampled_from(FilterCondition))
def test_filters_agree_with_llama_index(
    metadata: dict[str, Any], filters: list[MetadataFilter], condition: FilterCondition
) -> None:
    both = MetadataFilters(filters=list(filters), condition=condition)
    expected = build_metadata_filter_fn(lambda _: metadata, both)("any")
    where = where_of(both)
    assert (where is None or matches(where, metadata)) == expected


@given(METADATA, st.lists(conditions(), min_size=1, max_size=2), st.lists(conditions(), min_size=1, max_size=2))
def test_groups_nest(metadata: dict[str, Any], one: list[MetadataFilter], two: list[MetadataFilter]) -> None:
    inner = MetadataFilters(filters=list(two), condition=FilterCondition.OR)
    where = where_of(MetadataFilters(filters=[*one, inner]))
    assert where is not None
    assert matches(where, metadata) == all(
        build_metadata_filter_fn(lambda _: metadata, group)("any")
        for group in (MetadataFilters(filters=list(one)), inner)
    )


@pytest.mark.parametrize(
    ("operator", "value"), [("text_match_insensitive", "a"), ("all", "a"), ("==", ["a"]), ("in", "a"), ("any", 1)]
)
def test_what_has_no_equivalent_is_refused(operator: str, value: Any) -> None:
    with pytest.raises(FilterError):
        matches(
            where_of(MetadataFilters(filters=[MetadataFilter(key="t", operator=FilterOperator(operator), value=value)]))
            or {},
            {"t": "a"},
        )
