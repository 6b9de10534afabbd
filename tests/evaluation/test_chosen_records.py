"""A part of a corpus for an evaluation: all that answers, with its neighbours, and others up to a number."""

from collections import Counter
from collections.abc import Iterator

import pytest

from cde_rag import Record
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.own_questions import RUN, OwnCorpus, chosen_records, find_answers

PAGES = {"long.md": 300, **{f"p/{number}.md": 1 + number % 5 for number in range(200)}}
QUESTIONS = [
    JudgedQuestion("", "by id", "", grades={"p/7.md#1": 1}),
    JudgedQuestion("", "by text", "", documents=("page P/9.md, passage 2",)),
    JudgedQuestion("", "by quote", "", answers=(Answer("13.md", "passage 0"),)),
    JudgedQuestion("", "in a long page", "", answers=(Answer("long.md", "passage 200"),)),
]
RIGHT = {"p/7.md#1", "p/9.md#2", "p/13.md#0", "long.md#200"}


def corpus() -> Iterator[Record]:
    for page, size in PAGES.items():
        for number in range(size):
            yield Record(f"{page}#{number}", f"page {page}, passage {number}", metadata={"source": page})


def chosen(limit: int) -> list[Record]:
    return list(chosen_records(corpus, QUESTIONS, limit, parent_key="source"))


@pytest.mark.parametrize("limit", [1, 100, 300, 10_000])
def test_a_part_has_all_answers_and_complete_pages_in_their_order(limit: int) -> None:
    found, every = chosen(limit), list(corpus())
    assert found == [record for record in every if record in found]
    assert {record.id for record in found} >= RIGHT
    sizes = Counter(str(record.metadata["source"]) for record in found)
    judged = RUN + sum(PAGES[page] for page in ("p/7.md", "p/9.md", "p/13.md"))
    assert len(found) <= max(limit, judged)
    assert len(found) >= min(limit, len(every)) - 5  # the next page would not fit
    assert all(size == PAGES[page] for page, size in sizes.items() if page != "long.md")
    assert all(f"long.md#{number}" in {record.id for record in found} for number in range(192, 256))
    assert chosen(limit) == found


def test_questions_have_the_answers_in_a_part_that_they_have_in_all() -> None:
    of_part, of_all = (
        find_answers(QUESTIONS, OwnCorpus.of(records, parent_key="source"), name="pages")
        for records in (chosen(100), corpus())
    )
    assert of_part.queries == of_all.queries
    assert not of_part.dropped
