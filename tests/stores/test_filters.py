"""Filters: what each operator keeps, in cases to check by eye; and laws that hold for all metadata.

A store's filters are compared with `matches` in contract.py; here `matches` itself is tested.
"""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from filter_cases import BOOK, CASES, filters, metadata
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.errors import FilterError
from cde_rag.stores.filter_conditions import instant
from cde_rag.stores.filters import MAX_DEPTH, MAX_PARTS, MAX_VALUES, matches, parse


@pytest.mark.parametrize(("where", "kept"), CASES)
def test_keeps_the_book(where: dict[str, Any], kept: bool) -> None:
    assert matches(where, BOOK) is kept


@pytest.mark.parametrize("where", [{"": {"exists": True}}, {".": 6}, {"..not": 7}, {".a": {"gt": 7}}, {"a.": 9}])
def test_an_empty_key_has_a_name(where: dict[str, Any]) -> None:
    assert matches(where, {"": {"": 6, "not": 7, "a": 8}, "a": {"": 9}})
    assert not matches(where, {"not": 7, "a": 8})


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ({"not": "year"}, "where.not"),
        ({"not": {1: 2}}, "where.not"),
        ({"and": 1}, "called 'and' is named '.and'"),
        ({"or": {"in": [1]}}, "'.or'"),
        ({"not": 1}, "'.not'"),
        ({"year": {}}, "where.year"),
        ({"year": {"gte ": 2020}}, "where.year"),
        ({"year": {"$gte": 2020}}, "where.year"),
        ({"year": {"from": {"lt": 2020}}}, "dotted path"),
        ({"year": [2020, 2021]}, '"in"'),
        ({"year": {"in": 2020}}, "where.year.in"),
        ({"year": {"in": "2020"}}, "where.year.in"),
        ({"year": {"nin": []}}, "where.year.nin"),
        ({"year": {"in": [[2020]]}}, "where.year.in"),
        ({"year": {"gt": None}}, "where.year.gt"),
        ({"year": {"gt": True}}, "where.year.gt"),
        ({"year": {"gt": float("nan")}}, "where.year.gt"),
        ({"year": {"lt": float("inf")}}, "where.year.lt"),
        ({"year": {"lt": 10**400}}, "where.year.lt"),
        ({"year": {"exists": 1}}, "where.year.exists"),
        ({"tags": {"contains": 1}}, "where.tags.contains"),
        ({"published": datetime(2024, 1, 31, tzinfo=timezone.utc)}, "isoformat"),
        ({"published": {"date": "31.1.2024"}}, "2024-01-31"),
        ({"published": {"date": 2024}}, "2024-01-31"),
        ({"published": {"date": "2024-01-31", "gt": 1}}, "where.published"),
        ({"and": {"year": 2020}}, "where.and"),
        ({"or": [{"year": 2020}, {"year": {"is": 2021}}]}, "where.or[1].year"),
        ({"and": [{"year": 2020}, []]}, "where.and[1]"),
        ({"not": [{"year": 2020}]}, "where.not"),
        ({"name": "\ud800"}, "surrogate"),
        ({"na\ud800me": "x"}, "surrogate"),
    ],
)
def test_what_is_outside_the_grammar_is_named_with_its_place(where: Any, at: str) -> None:
    with pytest.raises(FilterError) as raised:
        parse(where)
    assert at in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_the_size_of_a_filter_is_limited() -> None:
    deep: dict[str, Any] = {"year": 2020}
    for _ in range(MAX_DEPTH):
        deep = {"not": deep}
    assert matches(deep, {"year": 2020}) is (MAX_DEPTH % 2 == 0)
    with pytest.raises(FilterError, match="flatter"):
        parse({"not": deep})
    parse({"or": [{"year": year} for year in range(MAX_PARTS - 1)]})
    with pytest.raises(FilterError, match='"in"'):
        parse({"or": [{"year": year} for year in range(MAX_PARTS)]})
    parse({"year": {"in": list(range(MAX_VALUES))}})
    with pytest.raises(FilterError, match="Split"):
        parse({"year": {"in": list(range(MAX_VALUES + 1))}})


@given(metadata, filters, filters)
def test_groups_are_logic(found: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = matches(one, found), matches(other, found)
    assert matches({"not": one}, found) is not first
    assert matches({"and": [one, other]}, found) is (first and second)
    assert matches({"or": [one, other]}, found) is (first or second)


moments = st.datetimes(timezones=st.timezones() | st.just(timezone.utc), allow_imaginary=False)


@given(moments, moments)
def test_dates_compare_as_moments(one: datetime, other: datetime) -> None:
    minutes = [timezone(timedelta(minutes=moment.utcoffset() // timedelta(minutes=1))) for moment in (one, other)]
    one, other = one.replace(tzinfo=minutes[0]), other.replace(tzinfo=minutes[1])  # ISO 8601 has no seconds of offset
    assert (instant(one.isoformat()) < instant(other.isoformat())) is (one < other)
    assert (instant(one.isoformat()) == instant(other.isoformat())) is (one == other)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2024", "20240131", "2024-1-31", "2024-01-32", "0000-01-01", "2024-01-31\n", "٢٠٢٤-٠١-٣١"),
        *("2024-01-31T", "2024-01-31T24:00", "2024-01-31T12:00:60", "2024-01-31T12:00+24:00", "2024-01-31T12:00+00:60"),
    ],
)
def test_other_strings_are_no_dates(text: str) -> None:
    assert instant(text) is None
