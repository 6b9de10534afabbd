"""Baselines for passages of longer documents."""

import numpy as np
import pytest

from cde_rag import CDEModel
from cde_rag.evaluation import parents as module
from cde_rag.evaluation.baselines import MiniLM
from cde_rag.evaluation.parents import groups, join_neighbours, mix_lead, mix_siblings
from cde_rag.models.plain.corpus_map import unit


def test_siblings_by_hand() -> None:
    documents = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.8, 0]], dtype=np.float32)
    mixed = mix_siblings(documents, ["p", "p", "p", None])
    np.testing.assert_allclose(mixed[0], np.array([1, 0.15, 0.15]) / np.linalg.norm([1, 0.15, 0.15]), rtol=1e-6)
    np.testing.assert_allclose(mixed[3], documents[3], rtol=1e-6)
    assert documents[0].tolist() == [1, 0, 0]  # what was given stays


def test_the_lead_by_hand() -> None:
    documents = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    mixed = mix_lead(documents, ["p", None, "p", "p"])
    np.testing.assert_allclose(mixed[:2], documents[:2], rtol=1e-6)  # the first of its parent, and one without
    np.testing.assert_allclose(mixed[2], np.array([0.5, 1, 0]) / np.linalg.norm([0.5, 1]), rtol=1e-6)
    np.testing.assert_allclose(mixed[3], np.array([0.5, 0, 1]) / np.linalg.norm([0.5, 1]), rtol=1e-6)
    assert documents[2].tolist() == [0, 1, 0]  # what was given stays


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


def test_a_passage_is_the_mean_of_its_own_tokens_in_the_parent_s_reading(minilm: MiniLM) -> None:
    texts = ["berlin is the capital of germany .", "it lies on the river ."]
    (read,) = minilm._model.encode([" ".join(texts)], output_value="token_embeddings", show_progress_bar=False)
    tokens = read.float().cpu().numpy()  # [CLS], the seven and six words, [SEP]
    assert len(tokens) == 15
    expected = unit(np.stack([tokens[1:8].mean(axis=0), tokens[8:14].mean(axis=0)]))
    assert min(cosines(minilm.late_chunking(texts, ["p", "p"]), expected)) > 0.9999


def test_the_plain_embedder_reads_256_tokens_as_the_bundled_model_does(minilm: MiniLM) -> None:
    words = ["river", "bank", "money", "fish"] * 100
    whole, as_many, fewer = minilm([" ".join(words[:count]) for count in (400, 254, 200)])  # and [CLS] and [SEP]
    np.testing.assert_allclose(whole, as_many, atol=1e-6)
    assert np.abs(whole - fewer).max() > 1e-3
    assert CDEModel.from_pretrained("cde-mini").config.max_length == 256


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
