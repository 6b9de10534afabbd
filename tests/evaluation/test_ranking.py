"""Rankings: rows are queries, columns documents; the order of the columns never matters."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cde_rag.evaluation.ranking import fuse, rank, rank_vectors

few_scores = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0])  # many ties
scores = st.integers(1, 12).flatmap(
    lambda documents: st.integers(1, 4).flatmap(
        lambda queries: arrays(np.float32, (queries, documents), elements=few_scores)
    )
)


def names(count: int) -> list[str]:
    return [f"d{i}" for i in range(count)]  # d10 stands before d2: ids are strings


def test_by_hand() -> None:
    rows = np.array([[0.1, 0.9, 0.5], [0.7, 0.7, -np.inf]], dtype=np.float32)
    assert rank(rows, ["b", "a", "c"], ["q1", "q2"]) == [["a", "c", "b"], ["a", "b"]]


def test_the_best_passage_counts() -> None:
    rows = np.array([[0.1, 0.9, 0.5, 0.7, 0.2], [0.3, -np.inf, 0.4, -np.inf, 0.5]], dtype=np.float32)
    assert rank(rows, ["b", "a", "b", "c", "c"], ["q1", "q2"]) == [["a", "c", "b"], ["c", "b"]]
    assert rank(rows[:1], ["b", "a", "b", "c", "c"], ["q1"], depth=2) == [["a", "c"]]


def test_a_query_does_not_find_itself() -> None:
    rows = np.array([[0.9, 0.5], [0.9, 0.5]], dtype=np.float32)
    assert rank(rows, ["x", "y"], ["x", "z"], depth=1) == [["y"], ["x"]]


@given(scores, st.integers(1, 14), st.randoms(use_true_random=False))
def test_equals_sorting_and_ignores_the_order_of_the_corpus(rows: np.ndarray, depth: int, random) -> None:
    ids, queries = names(rows.shape[1]), [f"d{i}" for i in range(rows.shape[0])]
    expected = []
    for row, query in zip(rows, queries, strict=True):
        found = [(-score, name) for name, score in zip(ids, row, strict=True) if score > -np.inf and name != query]
        expected.append([name for _, name in sorted(found)][:depth])
    assert rank(rows, ids, queries, depth=depth) == expected
    shuffled = random.sample(range(len(ids)), len(ids))
    assert rank(rows[:, shuffled], [ids[i] for i in shuffled], queries, depth=depth) == expected


@pytest.mark.parametrize("queries", [1, 127, 128, 300])
def test_vectors_are_ranked_by_dot_product(queries: int) -> None:
    rng = np.random.default_rng(0)
    asked, documents = (rng.normal(size=(count, 8)).astype(np.float32) for count in (queries, 40))
    query_ids = [f"q{i}" for i in range(queries)]
    expected = [[f"d{i}" for i in np.argsort(-row)] for row in asked @ documents.T]
    assert rank_vectors(asked, documents, names(40), query_ids) == expected


def test_rank_wants_a_row_for_each_query() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        rank(np.zeros((1, 2), dtype=np.float32), ["a", "b"], ["q1", "q2"])


def test_fusion_by_hand() -> None:
    assert fuse([["a", "b", "c"], ["c", "a"]]) == ["a", "c", "b"]  # 1/61 + 1/62 > 1/63 + 1/61 > 1/62
    assert fuse([["b"], ["a"]]) == ["a", "b"]  # equal sums: by id
    assert fuse([["a", "b"], []], depth=1) == ["a"]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), min_size=1, max_size=3))
def test_fusion_equals_the_slow_loop(rankings: list[list[str]]) -> None:
    found = {document for ranking in rankings for document in ranking}
    sums = {
        document: sum(1 / (61 + ranking.index(document)) for ranking in rankings if document in ranking)
        for document in found
    }
    fused = fuse(rankings)
    assert set(fused) == found
    assert all(sums[one] >= sums[next_] - 1e-12 for one, next_ in pairwise(fused))
