"""Pairs from an unlabelled corpus: the query never stands in the text it asks for, and never asks for two texts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.errors import CorpusError
from cde_rag.records import Record
from cde_rag_training.adapt.corpus_pairs import KINDS, ask, report, to_pairs, without_repeated
from cde_rag_training.adapt.parts import FEWEST, hold_out, retrieval_set
from cde_rag_training.adapt.sections import sampled, sections

LONG = "The pump starts when the pressure falls. It stops at four bar, or when the tank behind the house is empty."
PAGE = """# Pump

Water for the garden comes from a well that is nine metres deep and never dry.

## Starting it
Turn the red key to the left, then wait until the green light is on for a minute.

```sh
## no heading: a comment of the shell
pump --start
```

## Notes
Short.
"""


def asked_of(*records: Record, parent_key: str | None = None):
    return ask(list(sections(records, parent_key=parent_key)), seed=0)


def test_a_page_is_cut_at_its_headings_and_each_asks_for_what_stands_under_it():
    found = list(sections([Record("p", PAGE, "Pump")], parent_key=None))
    assert [(one.id, one.heading) for one in found] == [("p#0", "Pump"), ("p#1", "Starting it"), ("p#2", "Notes")]
    assert "## no heading" in found[1].text
    intro, starting, notes = ask(found, seed=0)
    assert intro
    assert (intro.kind, intro.query, intro.shown) == ("title", "Pump", found[0].text)
    assert starting
    assert (starting.kind, starting.query) == ("heading", "Pump: Starting it")
    assert starting.shown == f"Pump {found[1].text}"
    assert notes is None  # one word


def test_a_title_asks_for_its_text_which_loses_it():
    (one,) = asked_of(Record("r", f"Pumps: {LONG}", "Pumps"))
    assert one
    assert (one.kind, one.query, one.text, one.shown) == ("title", "Pumps", LONG, LONG)


def test_a_title_of_two_texts_asks_for_neither():
    first, second = asked_of(Record("1", LONG, "Pumps"), Record("2", f"Every spring {LONG}", "Pumps"))
    assert first
    assert second
    assert {first.kind, second.kind} == {"keywords", "sentence"}
    sentence = second if second.kind == "sentence" else first
    assert sentence.query not in sentence.shown
    assert sentence.shown.startswith("Pumps ")


def test_equal_headings_of_one_page_ask_for_neither():
    text = f"## Pump\n{LONG}\n## Pump\nSometimes {LONG}"
    assert all(one and one.kind in ("keywords", "sentence") for one in asked_of(Record("r", text, "House")))


def test_a_text_that_stands_twice_is_taken_once():
    records = [Record("1", LONG), Record("2", f" {LONG.upper()}\n"), Record("3", f"No: {LONG}")]
    kept, repeated = without_repeated(sections(records, parent_key=None))
    assert ([one.id for one in kept], repeated) == (["1", "3"], 1)


WORDS = st.sampled_from("pump well key light garden water tank bar house is the of red green metre deep".split())
TEXTS = st.lists(WORDS, max_size=30).map(" ".join)
RECORDS = st.lists(st.tuples(TEXTS, st.sampled_from(["", "Pump", "Well"]), st.sampled_from(["a", "b"])), max_size=12)


@given(RECORDS)
def test_what_is_made_and_what_is_dropped_are_all(rows):
    records = [
        Record(str(number), f"{text}. {text}", title, {"book": book}) for number, (text, title, book) in enumerate(rows)
    ]
    found = list(sections(records, parent_key="book"))
    made = [one for one in ask(found, seed=0) if one is not None]
    told = report(made, {"without ground": len(found) - len(made)})
    assert sum(told.made.values()) + sum(told.dropped.values()) == len(found)
    assert set(told.made) <= set(KINDS)
    assert len(told.examples) == min(10, len(made))
    named = [one.query for one in made if one.kind in ("title", "heading")]
    assert len(set(named)) == len(named)


def test_pairs_name_the_parent_that_several_sections_share():
    made = [one for one in asked_of(Record("p", PAGE, "Pump"), Record("q", LONG, "Pressure")) if one]
    assert [(pair.query, pair.parent) for pair in to_pairs(made)] == [
        ("Pump", "Pump"),
        ("Pump: Starting it", "Pump"),
        ("Pressure", ""),
    ]


def corpus(count: int) -> list[Record]:
    return [Record(str(n), f"{LONG} Number {n} is the one.", f"Pump {n}", {"book": f"b{n // 3}"}) for n in range(count)]


@pytest.mark.parametrize("parent_key", [None, "book"])
def test_no_parent_stands_on_two_sides(parent_key: str | None):
    asked = [one for one in asked_of(*corpus(240), parent_key=parent_key) if one]
    parts = hold_out(asked, seed=0)
    sides = [{one.section.parent for one in part} for part in (parts.training, parts.development, parts.test)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == (80 if parent_key else 240)
    assert abs(len(parts.test) - 48) <= 2
    assert abs(len(parts.development) - 24) <= 2
    assert hold_out(asked[::-1], seed=0).test[0].section.parent == parts.test[0].section.parent
    assert {one.section.parent for one in hold_out(asked, seed=1).test} != sides[2]


def test_too_few_documents_or_parents_are_told():
    asked = [one for one in asked_of(*corpus(60)) if one]
    with pytest.raises(
        CorpusError, match=f"at least {FEWEST['training']} queries for training, found .* from 60 parents"
    ):
        hold_out(asked, seed=0)


def test_a_sample_has_whole_parents_in_any_order():
    records = corpus(300)
    some = list(sampled(records, parent_key="book", limit=90, seed=0))
    assert 60 <= len(some) <= 120
    books = {record.metadata["book"] for record in some}
    assert [record for record in records if record.metadata["book"] in books] == some
    again = list(sampled(records[::-1], parent_key="book", limit=90, seed=0))
    assert again[::-1] == some
    assert list(sampled(records, parent_key="book", limit=300, seed=0)) == records


def test_a_retrieval_set_has_an_answer_to_each_query_and_parents_where_they_are_shared():
    asked = [one for one in asked_of(*corpus(6), parent_key="book") if one]
    data = retrieval_set("pumps", asked[:2], asked, [(one.section.id, one.shown, one.section.parent) for one in asked])
    assert data.queries == ("Pump 0", "Pump 1")
    assert data.judgments == ({"document 0": 1}, {"document 1": 1})
    assert data.corpus.parents == ("b0", "b0", "b0", "b1", "b1", "b1")
    assert not set(data.query_ids) & set(data.corpus.ids)


def test_a_query_of_several_documents_stands_in_one_part_and_finds_them_all():
    asked = [one for one in asked_of(*corpus(240)) if one]
    double = [replace(one, query=f"query {number // 2}") for number, one in enumerate(asked)]
    parts = hold_out(double, seed=0)
    sides = [{one.query for one in part} for part in (parts.training, parts.development, parts.test)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 120
    data = retrieval_set(
        "pumps", parts.test, double, [(one.section.id, one.shown, one.section.parent) for one in asked]
    )
    assert {len(judged) for judged in data.judgments} == {2}
