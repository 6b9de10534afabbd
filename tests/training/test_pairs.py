"""Exact duplicates go, and a sample keeps parents whole, whatever the order of the pairs."""

import pytest

from cde_rag_training.data.pairs import Pair, per_source, without_duplicates


@pytest.fixture
def pairs():
    passages = [
        Pair(f"heading {number}", f"passage {number}", "docs", "guide", f"page {number // 8}") for number in range(200)
    ]
    return passages + [Pair(f"question {number}", f"answer {number}", "faq", "faq") for number in range(100)]


def test_the_first_of_equal_documents_stays(pairs):
    again = Pair("another question", f" {pairs[0].document.upper()} ", "faq", "faq")
    assert without_duplicates([*pairs, again]) == pairs
    assert without_duplicates([again, *pairs]) == [again, *pairs[1:]]


def test_texts_of_evaluation_sets_go_on_either_side(pairs):
    against = [pairs[3].query.upper(), pairs[7].document, "unknown"]
    assert without_duplicates(pairs, against=against) == [*pairs[:3], *pairs[4:7], *pairs[8:]]


def test_a_sample_keeps_parents_whole_and_the_order(pairs):
    kept = per_source(pairs, {"docs": 60, "faq": 20})
    assert kept == [pair for pair in pairs if pair in kept]
    assert sum(pair.source == "faq" for pair in kept) == 20
    parents = [pair.parent for pair in kept if pair.source == "docs"]
    assert len(parents) == 64
    assert {parents.count(parent) for parent in parents} == {8}


def test_the_order_of_the_pairs_changes_no_sample(pairs):
    limits = {"docs": 40, "faq": 30}
    assert set(per_source(pairs[::-1], limits)) == set(per_source(pairs, limits))
