"""Fusion of a ranking by vectors and one by words: what it does not depend on, whatever the scores are."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.search.fusion import WEIGHTS, Scored, check_fusion, fuse

FUSIONS = list(WEIGHTS)


def side(least: int, most: int) -> st.SearchStrategy[Scored]:
    """Hits, best first; scores are sixteenths, so that sums of them are exact."""
    ids = st.lists(st.sampled_from("abcdefghijklmn"), unique=True, max_size=10)
    return ids.flatmap(
        lambda found: st.lists(st.integers(least, most), min_size=len(found), max_size=len(found)).map(
            lambda scores: [(id_, score / 16) for id_, score in zip(found, sorted(scores, reverse=True), strict=True)]
        )
    )


vectors, words = side(-16, 16), side(1, 400)
weights = st.floats(0, 1)


@given(vectors, words, weights, st.integers(10, 12))
def test_convex_equals_the_slow_way(by_vectors: Scored, by_words: Scored, weight: float, candidates: int) -> None:
    dense, bm25 = dict(by_vectors), dict(by_words)
    least, best = min(dense.values(), default=0), max(dense.values(), default=0)
    expected = {}
    for id_ in ({*dense} if weight > 0 else set()) | ({*bm25} if weight < 1 else set()):
        near = (1.0 if best == least else (dense[id_] - least) / (best - least)) if id_ in dense else 0.0
        floor = min(bm25.values(), default=0) if len(bm25) == candidates else 0
        top = max(bm25.values(), default=1)
        named = (1.0 if top == floor else (bm25[id_] - floor) / (top - floor)) if id_ in bm25 else 0.0
        expected[id_] = weight * near + (1 - weight) * named
    found = fuse(by_vectors, by_words, weight=weight, candidates=candidates)
    assert dict(found) == pytest.approx(expected)
    assert all(one >= next_ for (_, one), (_, next_) in pairwise(found))
    assert all(-1e-12 <= score <= 1 + 1e-12 for _, score in found)


@given(vectors, words, weights, st.sampled_from(FUSIONS))
def test_hits_without_a_vector_stand_as_by_words_alone(
    by_vectors: Scored, by_words: Scored, weight: float, fusion: Any
) -> None:
    unknown = {id_ for id_, _ in by_words} - {id_ for id_, _ in by_vectors}
    found = dict(fuse(by_vectors, by_words, weight=weight, fusion=fusion, unknown=unknown))
    known = dict(fuse(by_vectors, by_words, weight=weight, fusion=fusion))
    alone = dict(fuse([], by_words, weight=0.0, fusion=fusion))
    if weight < 1:
        expected = {id_: alone[id_] if id_ in unknown else score for id_, score in known.items()}
        assert found == pytest.approx(expected)


@given(vectors, words, weights, st.integers(-64, 64), st.sampled_from([0.25, 0.5, 2, 8]), st.sampled_from([0.5, 4]))
def test_convex_knows_no_unit(
    by_vectors: Scored, by_words: Scored, weight: float, shift: int, scale: float, other: float
) -> None:
    """Neither side; and where words ends at their candidates, no zero either."""
    turned = [(id_, scale * score + shift) for id_, score in by_vectors]
    longer = [(id_, other * score) for id_, score in by_words]
    assert fuse(turned, longer, weight=weight) == fuse(by_vectors, by_words, weight=weight)
    cut = {"weight": weight, "candidates": len(by_words)}
    raised = [(id_, score + 3) for id_, score in longer]
    assert fuse(turned, raised, **cut) == fuse(by_vectors, by_words, **cut)


@given(vectors, words, weights, st.randoms(use_true_random=False))
def test_convex_asks_for_scores_and_not_for_places(
    by_vectors: Scored, by_words: Scored, weight: float, dice: random.Random
) -> None:
    shuffled = [dice.sample(list(hits), len(hits)) for hits in (by_vectors, by_words)]
    assert dict(fuse(*shuffled, weight=weight)) == dict(fuse(by_vectors, by_words, weight=weight))


@pytest.mark.parametrize("fusion", FUSIONS)
@given(by_vectors=vectors, by_words=words, weight=st.none() | weights)
def test_names_do_not_matter(by_vectors: Scored, by_words: Scored, weight: float | None, fusion: str) -> None:
    renamed = [[(f"id {ord(id_)}", score) for id_, score in hits] for hits in (by_vectors, by_words)]
    found = fuse(by_vectors, by_words, fusion=fusion, weight=weight)
    assert fuse(*renamed, fusion=fusion, weight=weight) == [(f"id {ord(id_)}", score) for id_, score in found]


@pytest.mark.parametrize("fusion", FUSIONS)
@given(by_vectors=vectors, by_words=words)
def test_weight_1_is_vectors_and_weight_0_is_words(by_vectors: Scored, by_words: Scored, fusion: str) -> None:
    for weight, hits in ((1.0, by_vectors), (0.0, by_words)):
        found = [id_ for id_, _ in fuse(by_vectors, by_words, fusion=fusion, weight=weight)]
        assert found == [id_ for id_, _ in hits]


@given(vectors, words)
def test_reciprocal_ranks_are_those_of_the_paper(by_vectors: Scored, by_words: Scored) -> None:
    sums: dict[str, float] = {}
    for hits in (by_vectors, by_words):
        for rank, (id_, _) in enumerate(hits, start=1):
            sums[id_] = sums.get(id_, 0) + 1 / (60 + rank)
    found = fuse(by_vectors, by_words, fusion="reciprocal_ranks")
    assert found == sorted(sums.items(), key=lambda one: -one[1])


def test_the_default_weight_is_the_one_that_was_chosen() -> None:
    near, written = [("a", 1.0), ("b", 0.0)], [("b", 3.0)]
    assert fuse(near, written) == [("a", WEIGHTS["convex"]), ("b", 1 - WEIGHTS["convex"])]


@pytest.mark.usefixtures("unchecked")
def test_scores_are_plain_numbers_whatever_the_weight_is() -> None:
    found = fuse([("a", 1.0), ("b", 0.5)], [("b", 3.0)], weight=np.float32(0.5))  # type: ignore[arg-type]
    assert [type(score) for _, score in found] == [float, float]


def test_one_side_may_have_found_nothing() -> None:
    assert fuse([], []) == []
    assert fuse([("a", 0.3)], []) == [("a", 0.65)]
    assert fuse([], [("a", 7.0), ("b", 3.5)], weight=0.5) == [("a", 0.5), ("b", 0.25)]
    assert fuse([], [("a", 7.0), ("b", 3.5)], weight=0.5, candidates=2) == [("a", 0.5), ("b", 0.0)]
    assert fuse([("a", 0.5), ("b", 0.5)], [], weight=1.0) == [("a", 1.0), ("b", 1.0)]


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_a_senseless_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="Expected a weight of vectors from 0"):
        fuse([], [], weight=weight)


@pytest.mark.parametrize("weight", ["0.5", True, [0.5]])
@pytest.mark.usefixtures("unchecked")
def test_a_weight_that_is_no_number_is_refused(weight: Any) -> None:
    with pytest.raises(TypeError, match="weight must be a number, not "):
        fuse([], [], weight=weight)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_fusion_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected a fusion among convex, reciprocal_ranks, found 'sum'"):
        fuse([], [], fusion="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="found 'ranks'"):
        check_fusion("ranks", None)  # type: ignore[arg-type]
