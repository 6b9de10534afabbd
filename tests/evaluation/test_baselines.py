"""Baselines without a contextual model, over vectors that can be checked by eye."""

from collections.abc import Sequence

import numpy as np
import pytest

from cde_rag.evaluation.baselines import BASELINES, baseline_rankings, mix_siblings, unit, whitening
from cde_rag.evaluation.beir import Corpus, RetrievalSet

VECTORS = {"red cat": (1.0, 0.0), "red dog": (0.9, 0.4), "red": (0.8, 0.6), "a red dog?": (0.96, 0.28)}


def embed(texts: Sequence[str]) -> np.ndarray:
    return unit(np.array([VECTORS[text] for text in texts], dtype=np.float32))


def small_set(parents: tuple[str | None, ...] | None = None) -> RetrievalSet:
    corpus = Corpus("small", ("cat", "dog", "red"), ("red cat", "red dog", "red"), parents)
    return RetrievalSet(corpus, ("q",), ("a red dog?",), ({"dog": 1},))


def test_what_runs() -> None:
    assert [name for name, _ in baseline_rankings(small_set(), None)] == ["bm25"]
    assert {name for name, _ in baseline_rankings(small_set(), embed)} == BASELINES - {"siblings_mean"}
    assert {name for name, _ in baseline_rankings(small_set(("p", "p", None)), embed)} == BASELINES


def test_rankings_by_hand() -> None:
    found = dict(baseline_rankings(small_set(), embed))
    assert found["bm25"] == [["dog", "red", "cat"]]
    assert found["minilm"] == [["dog", "cat", "red"]]  # cosines 0.987, 0.960, 0.936
    assert found["hybrid"] == [["dog", "cat", "red"]]  # second and third once each: equal sums, by id


def test_no_shared_word_is_not_found() -> None:
    corpus = Corpus("small", ("cat", "dog"), ("red cat", "red dog"))
    data = RetrievalSet(corpus, ("q",), ("any dog?",), ({"dog": 1},))
    assert dict(baseline_rankings(data, None))["bm25"] == [["dog"]]


def test_centring_takes_the_documents_mean_from_both_sides() -> None:
    # one far document pulls the mean away; seen from there the query lies in another direction
    vectors = {"near": (0.8, 0.6), "far": (-0.6, 0.8), "ask": (1.0, 0.0)}
    corpus = Corpus("two", ("near", "far"), ("near", "far"))
    data = RetrievalSet(corpus, ("q",), ("ask",), ({"near": 1},))
    centred = dict(baseline_rankings(data, lambda texts: np.array([vectors[text] for text in texts], dtype=np.float32)))
    assert centred["centred"] == [["near", "far"]]
    mean = np.array([0.1, 0.7])
    query, near = np.array([1.0, 0.0]) - mean, np.array([0.8, 0.6]) - mean
    assert query @ near > 0 > query @ -near  # two centred documents are each other's opposite


def test_siblings_by_hand() -> None:
    documents = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.8, 0]], dtype=np.float32)
    mixed = mix_siblings(documents, ["p", "p", "p", None])
    np.testing.assert_allclose(mixed[0], np.array([1, 0.15, 0.15]) / np.linalg.norm([1, 0.15, 0.15]), rtol=1e-6)
    np.testing.assert_allclose(mixed[3], documents[3], rtol=1e-6)
    assert documents[0].tolist() == [1, 0, 0]  # what was given stays


def test_whitening_shortens_what_all_documents_share() -> None:
    rng = np.random.default_rng(0)
    documents = unit((rng.normal(size=(200, 6)) + 3 * np.eye(6)[0]).astype(np.float32))
    matrix = whitening(documents)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-6)
    lengths = np.linalg.norm(matrix, axis=1)
    assert lengths[0] == lengths.min()
    assert 0.5 < lengths[0] / lengths[1:].mean() < 0.95  # mildly


def test_whitening_of_equal_directions_is_a_scale() -> None:
    documents = np.concatenate([np.eye(4), -np.eye(4)]).astype(np.float32)
    np.testing.assert_allclose(whitening(documents), np.eye(4) * 6**-0.25, atol=1e-6)


def test_unit_rows_and_zero_rows() -> None:
    found = unit(np.array([[3, 4], [0, 0]], dtype=np.float32))
    assert found == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
