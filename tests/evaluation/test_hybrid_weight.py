"""The weight of hybrid search, chosen by judged queries."""

import numpy as np
import pytest

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import query_blocks
from cde_rag.evaluation.hybrid_weight import FOLDS, WeightChoice, choose_weight, one_standard_error
from cde_rag.evaluation.metrics import ndcg
from cde_rag.search.fusion import WEIGHTS, Scored, fuse

Side = list[Scored]


def side(rng: np.random.Generator, queries: int, *, right: float) -> Side:
    """Rankings of documents d0 … d39, with the query's own first in some share of them."""
    found: Side = []
    for number in range(queries):
        order = rng.permutation(40).tolist()
        if rng.random() < right:
            order.remove(number % 40)
            order.insert(0, number % 40)
        found.append([(f"d{place}", float(1 / (rank + 1))) for rank, place in enumerate(order)])
    return found


def chosen(queries: int, vectors: float, words: float, *, seed: int = 0) -> WeightChoice:
    rng = np.random.default_rng(seed)
    judgments = [{f"d{number % 40}": 1} for number in range(queries)]
    return choose_weight(side(rng, queries, right=vectors), side(rng, queries, right=words), judgments)


def test_the_better_side_gets_the_weight_and_a_sure_gain() -> None:
    words = chosen(200, 0.1, 0.9)
    assert words.weight < 0.5
    assert words.is_sure
    assert words.gain.mean == pytest.approx(words.held_out - words.current)
    vectors = chosen(200, 0.9, 0.1)
    assert vectors.weight > 0.5
    assert vectors.figures[1.0] > vectors.figures[0.0]


def test_figures_are_those_of_fused_rankings() -> None:
    rng = np.random.default_rng(1)
    sides = side(rng, 30, right=0.5), side(rng, 30, right=0.5)
    judgments = [{f"d{number}": 2, "d3": 1} for number in range(30)]
    choice = choose_weight(*sides, judgments)
    for weight in (0.0, 0.35, WEIGHTS["convex"], 1.0):
        ranked = [[id_ for id_, _ in fuse(*pair, weight=weight)] for pair in zip(*sides, strict=True)]
        mean = np.mean([ndcg(one, judged, 10) for one, judged in zip(ranked, judgments, strict=True)])
        assert choice.figures[weight] == pytest.approx(mean)
    assert choice.current == choice.figures[0.65]
    assert choice.figures[choice.weight] <= max(choice.figures.values())


def test_the_gain_is_over_the_weight_that_is_in_use() -> None:
    rng = np.random.default_rng(3)
    sides = side(rng, 200, right=0.9), side(rng, 200, right=0.3)
    judgments = [{f"d{number % 40}": 1} for number in range(200)]
    bad, default = choose_weight(*sides, judgments, current=0.11), choose_weight(*sides, judgments)
    assert bad.is_sure
    assert bad.current < default.current
    assert (bad.current_weight, default.current_weight) == (0.11, 0.65)
    own = choose_weight(*sides, judgments, current=bad.weight)
    assert own.weight == bad.weight


def test_equal_sides_gain_nothing() -> None:
    rankings = side(np.random.default_rng(2), 40, right=0.5)
    choice = choose_weight(rankings, rankings, [{f"d{number}": 1} for number in range(40)])
    assert choice.weight == WEIGHTS["convex"]
    assert choice.gain.mean == 0
    assert not choice.is_sure


@pytest.mark.long  # hundreds of drawings
def test_noise_is_rarely_a_sure_gain() -> None:
    """The default is the best weight here: others gain on the queries that chose them, by chance."""
    found = [chosen(60, 0.5, 0.25, seed=seed) for seed in range(40)]
    assert np.mean([one.figures[one.weight] - one.current for one in found]) > 0
    assert np.mean([one.held_out - one.figures[one.weight] for one in found]) < 0
    assert np.mean([one.is_sure for one in found]) <= 0.2  # 95 % intervals of 60 queries


def test_queries_of_one_document_do_not_score_each_other() -> None:
    """All queries ask for one of two documents, so that a fold holds half of them, and its rival chooses."""
    judgments = [{f"d{number % 2}": 1} for number in range(40)]
    assert len(set(query_blocks(judgments))) == 2 < FOLDS
    good: Scored = [("d0", 1.0), ("d1", 0.9)]
    bad: Scored = [("d8", 1.0), ("d9", 0.9)]
    vectors = [good if number % 2 else bad for number in range(40)]
    words = [bad if number % 2 else good for number in range(40)]
    choice = choose_weight(vectors, words, judgments)
    assert choice.held_out < choice.figures[choice.weight]  # each document's queries want what the other's lose by


def test_a_weight_is_left_only_for_one_that_is_better_by_a_standard_error() -> None:
    scores = np.full((21, 100), 0.5)
    scores[8, :4] = 1.0  # 0.02 better in the mean, by four queries of a hundred
    assert one_standard_error(scores) == 8
    scores[8, 4:8] = 0.05  # and worse on four others: 0.002, with an error of 0.013
    assert one_standard_error(scores) == 13
    scores[:, :] = np.linspace(1, 0, 21)[:, None] + np.random.default_rng(0).normal(0, 1e-6, 100)
    assert one_standard_error(scores) == 0


def test_a_few_queries_choose_nothing() -> None:
    with pytest.raises(CorpusError, match=r"at least 20 judged queries to choose a weight, found 19\. Judge more"):
        chosen(19, 0.5, 0.5)
