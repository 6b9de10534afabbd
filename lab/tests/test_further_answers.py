"""Passages above the marked ones are read, and count as answers where a reader found them to be."""

import pytest

from cde_rag.evaluation.answer_passages import PagePassage
from cde_rag.evaluation.answer_scores import JudgedPassages
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.question_folder import Site
from lab.experiments.further_answers import MINILM, above, candidates, counts, further_rows

PASSAGES = tuple(PagePassage(page, 0, "", page, f"the page {page}") for page in "abcdefghijklm")
QUESTIONS = tuple(JudgedQuestion(f"q{at}", f"{at}?", "plain", (Answer("c", "c"),)) for at in range(3))
DATA = JudgedPassages(Site("made"), PASSAGES, QUESTIONS, (frozenset({"c#0"}), frozenset({"c#0"}), frozenset({"m#0"})))


def ids(pages: str) -> list[str]:
    return [f"{page}#0" for page in pages]


RANKINGS = {MINILM: [[ids("abcd"), ids("cab"), ids("abcdefghijklm")]], "other": [[ids("bca"), ids("c"), ids("dm")]]}


def test_what_stands_above_the_first_marked_passage_is_read() -> None:
    assert above([ids("abcd"), ids("bca")], frozenset(ids("c")), 10) == ids("ab")
    assert above([ids("cab")], frozenset(ids("c")), 10) == []
    assert above([ids("abcdefghijklm")], frozenset(ids("m")), 10) == ids("abcdefghij")
    assert above([ids("abcd")], frozenset(ids("d")), 2) == ids("ab")


def test_a_reader_gets_each_passage_once_with_a_marked_one() -> None:
    first, last = candidates([DATA], RANKINGS)
    assert (first["corpus"], first["question"], first["text"]) == ("made", "q0", "0?")
    assert sorted(each["id"] for each in first["passages"]) == ids("abc")
    assert sorted(each["id"] for each in last["passages"]) == ids("abcdefghijm")
    assert {each["text"] for each in first["passages"]} == {"the page a", "the page b", "the page c"}
    assert candidates([DATA], RANKINGS) == [first, last]


def test_further_answers_raise_both_systems() -> None:
    further = {"made": {"q0": frozenset(ids("a")), "q2": frozenset(ids("b"))}}
    minilm, other = further_rows([DATA], RANKINGS, further)
    assert minilm.marked == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert minilm.further == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert other.marked == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert other.further == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert other.gain == pytest.approx(other.further - minilm.further)
    assert other.gain_marked == pytest.approx(other.marked - minilm.marked)
    assert other.low <= other.gain <= other.high


def test_verdicts_are_counted() -> None:
    none = {"answers": [], "partly": []}
    rows = [
        {"read": 4, "marked": "yes", "answers": ids("ab"), "partly": ids("d")},
        {"read": 3, "marked": "partly", **none},
        {"read": 2, "marked": "none", **none},
    ]
    assert counts(rows).splitlines() == [
        "2 marked: 1 answer, 1 partly",
        "7 others: 2 answer, 1 partly",
        "3 questions: 1 with further answers",
    ]
