"""Maximal marginal relevance against its definition, alone and through a collection."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_collection import collection

from cde_rag._validation import check_positive
from cde_rag.errors import ContextMismatchError
from cde_rag.search.fusion import marginal_relevance


def units(rows: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_definition(query: np.ndarray, candidates: np.ndarray, k: int, diversity: float) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < min(k, len(candidates)):
        gains = {
            position: (1 - diversity) * float(candidates[position] @ query)
            - diversity * max((float(candidates[position] @ candidates[other]) for other in chosen), default=0.0)
            for position in range(len(candidates))
            if position not in chosen
        }
        chosen.append(max(gains, key=lambda position: gains[position]))
    return chosen


@given(st.integers(0, 12), st.integers(1, 15), st.sampled_from([0.0, 0.3, 0.5, 0.9]), st.integers(0, 50))
def test_it_is_what_the_definition_says(rows: int, k: int, diversity: float, seed: int):
    query, candidates = units(1, seed)[0], units(rows, seed + 1)
    assert marginal_relevance(query, candidates, k, diversity=diversity) == by_definition(
        query, candidates, k, diversity
    )


@pytest.mark.parametrize("diversity", [-0.1, 1.1, float("nan")])
def test_diversity_is_a_share(diversity: float):
    with pytest.raises(ValueError, match="between 0 and 1"):
        marginal_relevance(units(1, 0)[0], units(3, 1), 2, diversity=diversity)


def test_a_collection_without_diversity_gives_its_search():
    papers = collection(parent_key=None)
    papers.add([f"{word} {number}" for word in ("river", "money") for number in range(10)])
    assert papers.search_diverse("river", 5, diversity=0.0) == papers.search("river", 5, by="vectors")


def test_twins_are_passed_over():
    papers = collection(parent_key=None)
    papers.add(["river bank", "river bank", "money loan", "flood"], ids=["a", "twin of a", "b", "c"])
    assert "twin of a" in {hit.id for hit in papers.search("river bank", 2, by="vectors")}
    first, second = papers.search_diverse("river bank", 2, diversity=0.7)
    assert {first.id, second.id} != {"a", "twin of a"}
    assert first == papers.search("river bank", 1, by="vectors")[0]


@pytest.mark.filterwarnings("ignore::cde_rag.errors.UnknownFieldWarning")
def test_nothing_is_found_where_nothing_matches():
    papers = collection(parent_key=None)
    papers.add(["river bank"])
    assert papers.search_diverse("river", where={"year": 1}) == []


def test_what_is_deleted_meanwhile_is_not_among_the_hits(monkeypatch: pytest.MonkeyPatch):
    papers = collection(parent_key=None)
    papers.add(["river bank", "river", "flood"], ids=["a", "b", "c"])
    real = papers.store.vectors

    def vectors(ids: list[str], *, fingerprint: str) -> np.ndarray:
        papers.delete(["b"])
        return real(ids, fingerprint=fingerprint)

    monkeypatch.setattr(papers.store, "vectors", vectors)
    assert {hit.id for hit in papers.search_diverse("river", 3)} == {"a", "c"}


def test_search_by_vector_is_search():
    papers = collection(parent_key=None)
    papers.add([f"{word} {number}" for word in ("river", "money") for number in range(10)])
    queries = ["river", "money 3"]
    vectors, space = papers.embedder.embed_queries(queries), papers.embedder.fingerprint
    assert papers.store.search(vectors, 4, fingerprint=space) == papers.search_batch(queries, 4, by="vectors")
    stored = papers.store.vectors([papers.search("money 3", 1, by="vectors")[0].id], fingerprint=space)
    (itself,) = papers.store.search(stored, 1, fingerprint=space)
    assert itself[0].score == pytest.approx(1, abs=1e-5)
    with pytest.raises(ContextMismatchError):
        papers.store.search(vectors, 4, fingerprint="0" * 64)


@pytest.mark.parametrize("whole", [np.int64, np.uint8, np.array])
@pytest.mark.usefixtures("unchecked")
def test_counts_are_whole_numbers_of_any_type(whole: Callable[[int], Any]):
    """Such as those of NumPy and pandas."""
    papers = collection(parent_key=None)
    papers.add([f"{word} {number}" for word in ("river", "money") for number in range(10)])
    for search in (
        lambda k: papers.search("money", k, offset=k),
        lambda k: papers.searcher("words").search("money", k, offset=k),
        lambda k: papers.searcher("hybrid", candidates=k).search_batch(["money"], k),
        lambda k: papers.search_groups("money", k, group_by="page", group_size=k),
        lambda k: papers.search_diverse("money", k, candidates=k),
    ):
        assert search(whole(3)) == search(3)


@pytest.mark.parametrize("k", [2.5, "3", True, np.float64(3), np.True_, None])
def test_k_is_an_int(k: object):
    with pytest.raises(TypeError, match=re.escape(f"k must be an int, not {k!r}")):
        check_positive(k, "k")
