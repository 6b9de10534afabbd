"""Filters to try: cases to check by eye, and random ones over few names and values, so that they keep some records."""

from typing import Any

from hypothesis import strategies as st

BOOK = {
    "title": "Contextual Document Embeddings",
    "year": 2024,
    "score": 4.5,
    "draft": False,
    "editor": None,
    "tags": ["retrieval", "embeddings"],
    "pages": [3, 10],
    "nothing": [],
    "author": {"name": "Morris", "papers": [{"year": 2023}, {"year": 2024}]},
    "published": "2024-10-03T12:00:00+02:00",
    "edited": "2024-10-03T12:00:00.500Z",
    "dotted.key": 1,
    "half.dotted": {"key": 2, "list.of": [{"dotted.keys": 3}]},
    "both": {"ways": 4},
    "both.ways": 5,
    "and": 8,
    "or": ["either"],
    "not": False,
    ".and": 9,
    "$gte": 10,
    "eq": 11,
    "back\\slash": 12,
    '"quoted"': 13,
    "a.b.c.d.e.f.g.h.i.j.k.l": 14,
    "m": {"n": {"o": {"p": {"q": {"r": {"s": {"t": {"u": {"v": {"w": 15}}}}}}}}}},
}

CASES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"year": 2024}, True),
    ({"year": 2024.0}, True),
    ({"year": "2024"}, False),
    ({"year": {"eq": 2024}, "draft": False}, True),
    ({"year": 2024, "draft": True}, False),
    ({"draft": 0}, False),
    ({"editor": None}, True),
    ({"absent": None}, False),
    ({"year": {"ne": 2023}}, True),
    ({"year": {"ne": 2024}}, False),
    ({"year": {"ne": "2023"}}, False),
    ({"absent": {"ne": 2023}}, False),
    ({"not": {"absent": 2023}}, True),
    ({"year": {"in": [2023, 2024]}}, True),
    ({"year": {"in": []}}, False),
    ({"year": {"nin": [2023, 2022]}}, True),
    ({"year": {"nin": ["2023"]}}, False),
    ({"year": {"nin": ["2023", 2022]}}, True),
    ({"score": {"gt": 4, "lt": 5}}, True),
    ({"score": {"gt": "4"}}, False),
    ({"title": {"gte": "Contextual", "lt": "D"}}, True),
    ({"title": {"contains": "Document"}}, True),
    ({"title": {"contains": "document"}}, False),
    ({"year": {"contains": "20"}}, False),
    ({"tags": "retrieval"}, True),
    ({"tags": {"ne": "retrieval"}}, True),
    ({"not": {"tags": "retrieval"}}, False),
    ({"tags": {"contains": "embed"}}, True),
    ({"pages": {"gt": 5}}, True),
    ({"pages": {"gt": 5, "lt": 10}}, False),
    ({"and": [{"pages": {"gt": 5}}, {"pages": {"lt": 10}}]}, True),
    ({"nothing": {"exists": True}}, False),
    ({"nothing": {"ne": 1}}, False),
    ({"editor": {"exists": True}}, True),
    ({"absent": {"exists": False}}, True),
    ({"year": {"exists": False}}, False),
    ({"year": {"exists": True, "gt": 2024}}, False),
    ({"author.name": "Morris"}, True),
    ({"author.papers.year": 2023}, True),
    ({"author.papers.month": {"exists": True}}, False),
    ({"author": {"exists": True}}, True),
    ({"author": {"ne": "Morris"}}, False),
    ({"published": {"date": "2024-10-03T10:00:00Z"}}, True),
    ({"published": "2024-10-03T10:00:00Z"}, False),
    ({"published": {"gt": {"date": "2024-10-03"}, "lt": {"date": "2024-10-04"}}}, True),
    ({"published": {"in": [{"date": "2024-10-03"}, {"date": "2024-10-03T10:00"}]}}, True),
    ({"title": {"ne": {"date": "2024-10-03"}}}, False),
    ({"edited": {"date": "2024-10-03T12:00:00.5Z"}}, True),
    ({"edited": {"gt": {"date": "2024-10-03T12:00:00.45Z"}}}, True),
    ({"dotted.key": 1}, True),
    ({"dotted.key": {"ne": 1}}, False),
    ({"dotted.key": {"exists": False}}, False),
    ({"dotted": {"exists": True}}, False),
    ({"half.dotted.key": {"gt": 1}}, True),
    ({"half.dotted.list.of.dotted.keys": 3}, True),
    ({"half.dotted": {"exists": True}}, True),
    ({"both.ways": {"in": [4]}}, True),
    ({"both.ways": 5}, True),
    ({"both.ways": {"gt": 4, "lt": 5}}, False),
    ({"not": {"both.ways": {"in": [3, 6]}}}, True),
    ({".and": 8}, True),
    ({".and": 9}, False),
    ({"..and": 9}, True),
    ({".or": "either"}, True),
    ({".not": False}, True),
    ({"not": {".not": False}}, False),
    ({"$gte": {"gte": 10}}, True),
    ({"eq": {"eq": 11}}, True),
    ({"back\\slash": 12}, True),
    ({'"quoted"': 13}, True),
    ({"a.b.c.d.e.f.g.h.i.j.k.l": 14}, True),
    ({"m.n.o.p.q.r.s.t.u.v.w": 15}, True),
    ({"m.n.o.p.q.r.s.t.u.v": {"exists": False}}, False),
    ({"or": [{"year": 1999}, {"tags": "retrieval"}]}, True),
    ({"or": []}, False),
    ({"and": []}, True),
    ({"not": {}}, False),
    ({"not": {"or": [{"year": 1999}, {"draft": True}]}, "year": 2024}, True),
]

NAMES = ("a", "b", "c", "d", "c.d", "a.b", "b.", "", "and", ".and", '"')
PATHS = ("a", "b", "a.b", "a.a.b", "c.d", "a.c.d", "c.d.a.b", "b.", "b..a", "", ".and", "..and", '"')
DATES = (
    "2024-01-31",
    "2024-01-31T00:00:00Z",
    "2024-01-31T01:30+01:30",
    "2024-01-30 23:59:59.999999999",
    "0001-01-01T00:00+23:59",
    "9999-12-31T23:59:59-23:59",
)
TEXTS = ("", "a", "ab", "b", "\0", "a\0", "é", "\uffff", "😀", "1", "2024-02-30", *DATES)
NUMBERS = (0, 1, 1.0, -0.0, 0.1 + 0.2, 0.3, 2**53 + 1, 2.0**53, 2**63 - 1, 2.0**63, -(2**64))

few = st.sampled_from((None, True, 0, 1, 2, "a", "ab", "2024-01-31", "2024-01-31T00:00Z"))
scalars = few | few | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS)
strange = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.just(10**400)
values = st.recursive(
    scalars | strange,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
metadata = st.fixed_dictionaries({"a": scalars | st.lists(scalars, max_size=3) | values}) | st.dictionaries(
    st.sampled_from(NAMES), values, max_size=3
)

dates = st.sampled_from(DATES).map(lambda text: {"date": text})
operands = scalars | dates
ordered = st.sampled_from((0, 1, "a", "ab", *NUMBERS, *TEXTS)) | dates
OPERANDS = {
    "eq": operands,
    "ne": operands,
    "in": st.lists(operands, max_size=4),
    "nin": st.lists(operands, min_size=1, max_size=4),
    "gt": ordered,
    "gte": ordered,
    "lt": ordered,
    "lte": ordered,
    "contains": st.sampled_from(("", "a", "b", "0", "\0", "2024")),
    "exists": st.booleans(),
}
one_operator = st.sampled_from(sorted(OPERANDS)).flatmap(lambda name: OPERANDS[name].map(lambda value: {name: value}))
two_operators = st.tuples(one_operator, one_operator).map(lambda pair: pair[0] | pair[1])
fields = st.dictionaries(
    st.just("a") | st.sampled_from(PATHS), operands | one_operator | two_operators, min_size=1, max_size=2
)
filters = st.recursive(
    fields,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: {"and": parts})
        | st.lists(inner, max_size=3).map(lambda parts: {"or": parts})
        | inner.map(lambda part: {"not": part})
    ),
    max_leaves=4,
)
