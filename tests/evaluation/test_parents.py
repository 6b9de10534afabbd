"""Baselines for passages of longer documents."""

import numpy as np
import pytest

from cde_rag.evaluation import parents as module
from cde_rag.evaluation.baselines import MiniLM
from cde_rag.evaluation.parents import groups, join_neighbours, mix_siblings, unit


def test_siblings_by_hand() -> None:
    documents = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.8, 0]], dtype=np.float32)
    mixed = mix_siblings(documents, ["p", "p", "p", None])
    np.testing.assert_allclose(mixed[0], np.array([1, 0.15, 0.15]) / np.linalg.norm([1, 0.15, 0.15]), rtol=1e-6)
    np.testing.assert_allclose(mixed[3], documents[3], rtol=1e-6)
    assert documents[0].tolist() == [1, 0, 0]  # what was given stays


def test_neighbours_by_hand() -> None:
    texts, parents = ["a", "x", "b", "c", "alone"], ["p", "q", "p", "p", None]
    assert join_neighbours(texts, parents) == ["a b", "x", "b a c", "c b", "alone"]


def test_groups_keep_the_order_and_leave_the_parentless_alone() -> None:
    assert groups(["p", None, "q", "p", None]) == [[0, 3], [1], [2], [4]]


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM(device="cpu")


def cosines(one: np.ndarray, other: np.ndarray) -> list[float]:
    return (one * other).sum(axis=1).tolist()


def test_a_text_alone_is_read_as_always_but_for_its_special_tokens(minilm: MiniLM) -> None:
    texts = ["The bank of the river was flooded in spring.", "Interest rates rise when credit is scarce."]
    chunked = minilm.late_chunking(texts, [None, None])
    assert min(cosines(chunked, minilm(texts))) > 0.97  # which pools [CLS] and [SEP] too
    assert cosines(chunked, chunked) == pytest.approx([1, 1], abs=1e-5)


def test_passages_of_a_parent_see_each_other(minilm: MiniLM) -> None:
    texts = ["Berlin is the capital of Germany.", "The city has 3.7 million inhabitants.", "It lies on the Spree."]
    alone, together = minilm.late_chunking(texts, [None] * 3), minilm.late_chunking(texts, ["p"] * 3)
    moved = cosines(alone, together)
    assert max(moved) < 0.99
    assert together[1] @ minilm(["population of Berlin"])[0] > alone[1] @ minilm(["population of Berlin"])[0]


def test_a_long_parent_is_read_in_windows_of_whole_passages() -> None:
    tokens = [[7] * length for length in (300, 200, 11, 600, 5)]
    windows = list(module._windows(tokens, [[0, 1, 2, 3], [4]]))
    assert windows == [[(0, 300), (1, 200)], [(2, 11)], [(3, 510)], [(4, 5)]]


def test_unit_rows_and_zero_rows() -> None:
    found = unit(np.array([[3, 4], [0, 0]], dtype=np.float32))
    assert found == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
