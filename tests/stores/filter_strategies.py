"""Metadata and filters over few names and values, so that filters keep some records and not others."""

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c.d", "")
PATHS = ("a", "b", "a.b", "a.a.b", "c.d")
DATES = (
    "2024-01-31",
    "2024-01-31T00:00:00Z",
    "2024-01-31T01:30+01:30",
    "2024-01-30 23:59:59.999999999",
    "0001-01-01T00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2024-02-30",
)
texts = st.sampled_from(("", "a", "ab", "b", "\0", "a\0", "é", "\uffff", "😀", "1", *DATES)) | st.text(
    "ab\0é😀", max_size=4
)
numbers = st.sampled_from(
    (0, 1, 1.0, -0.0, 0.1, 0.1 + 0.2, 0.3, 2**53 + 1, 2.0**53, 2**63 - 1, 2.0**63, 10**400, 1e308)
)
scalars = st.none() | st.booleans() | numbers | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
metadata = st.dictionaries(st.sampled_from(NAMES), values, max_size=3)

operand_numbers = numbers.filter(lambda value: abs(value) < 10**300)
dates = st.sampled_from(DATES[:-1]).map(lambda text: {"date": text})
operands = st.none() | st.booleans() | operand_numbers | texts | dates
ordered = operand_numbers | texts | dates


def _conditions() -> st.SearchStrategy[Any]:
    operators = {
        "eq": operands,
        "ne": operands,
        "in": st.lists(operands, max_size=4),
        "nin": st.lists(operands, min_size=1, max_size=4),
        "gt": ordered,
        "gte": ordered,
        "lt": ordered,
        "lte": ordered,
        "contains": texts,
        "exists": st.booleans(),
    }
    several = st.fixed_dictionaries({}, optional=operators).filter(len)
    one = st.sampled_from(sorted(operators)).flatmap(lambda name: operators[name].map(lambda value: {name: value}))
    return operands | one | one | several


filters = st.recursive(
    st.dictionaries(st.sampled_from(PATHS), _conditions(), max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: {"and": parts})
        | st.lists(inner, max_size=3).map(lambda parts: {"or": parts})
        | inner.map(lambda part: {"not": part})
    ),
    max_leaves=4,
)
