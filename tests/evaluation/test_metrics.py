"""Metrics of one ranking: checked by hand, then against loops that follow the definitions word by word."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.evaluation.metrics import METRICS, hit, ndcg, recall, reciprocal_rank, score

GRADED = {"b": 3, "c": 1, "d": 2}
RANKING = ["a", "b", "c", "e"]  # grades 0, 3, 1, 0; d is missing

documents = st.sampled_from("abcdefghij")
rankings = st.lists(documents, unique=True)
judgments = st.dictionaries(documents, st.integers(1, 4), min_size=1)
cuts = st.integers(1, 12)


def test_ndcg_by_hand() -> None:
    gained = 3 / math.log2(3) + 1 / math.log2(4)
    best = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(RANKING, GRADED, 10) == pytest.approx(gained / best)
    assert ndcg(RANKING, GRADED, 2) == pytest.approx((3 / math.log2(3)) / (3 + 2 / math.log2(3)))
    assert ndcg(RANKING, GRADED, 1) == 0


def test_the_others_by_hand() -> None:
    assert recall(RANKING, GRADED, 2) == pytest.approx(1 / 3)
    assert recall(RANKING, GRADED, 10) == pytest.approx(2 / 3)
    assert (hit(RANKING, GRADED, 1), hit(RANKING, GRADED, 2)) == (0, 1)
    assert (reciprocal_rank(RANKING, GRADED, 1), reciprocal_rank(RANKING, GRADED, 10)) == (0, 0.5)


def slow_ndcg(ranking: list[str], judged: dict[str, int], k: int) -> float:
    def gain(order: list[str]) -> float:
        total = 0.0
        for rank in range(1, min(k, len(order)) + 1):
            if order[rank - 1] in judged:
                total += judged[order[rank - 1]] / math.log2(rank + 1)
        return total

    return gain(ranking) / gain(sorted(judged, key=lambda document: judged[document], reverse=True))


@given(rankings, judgments, cuts)
def test_ndcg_equals_the_slow_loop(ranking: list[str], judged: dict[str, int], k: int) -> None:
    assert ndcg(ranking, judged, k) == pytest.approx(slow_ndcg(ranking, judged, k))


@given(rankings, judgments, cuts)
def test_the_others_equal_slow_loops(ranking: list[str], judged: dict[str, int], k: int) -> None:
    found = [rank for rank, document in enumerate(ranking, start=1) if document in judged and rank <= k]
    assert recall(ranking, judged, k) == len(found) / len(judged)
    assert hit(ranking, judged, k) == (1 if found else 0)
    assert reciprocal_rank(ranking, judged, k) == (1 / found[0] if found else 0)


@given(judgments, cuts)
def test_the_best_order_is_one_and_nothing_is_better(judged: dict[str, int], k: int) -> None:
    best = sorted(judged, key=lambda document: -judged[document])
    assert ndcg(best, judged, k) == pytest.approx(1)
    assert ndcg(best[::-1], judged, k) <= 1 + 1e-12


def test_score_keeps_queries_apart() -> None:
    figures = score([["a"], ["x", "a"]], [{"a": 1}, {"a": 2, "y": 1}])
    assert figures.keys() == METRICS.keys()
    np.testing.assert_allclose(figures["mrr@10"], [1, 0.5])
    np.testing.assert_allclose(figures["recall@100"], [1, 0.5])
