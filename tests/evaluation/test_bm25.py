"""BM25 against its formula, and what a search returns."""

import math

import numpy as np
import pytest

from cde_rag.errors import CorpusError
from cde_rag.evaluation.bm25 import BM25

TEXTS = ["red green", "green green green blue", "the red the blue the red", "yellow"]


def slow_scores(texts: list[list[str]], query: list[str]) -> list[float]:
    """Lucene's BM25 with k1 = 1.2 and b = 0.75, word by word."""
    average = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    for word in query:
        holding = sum(word in text for text in texts)
        idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
        for i, text in enumerate(texts):
            count = text.count(word)
            scores[i] += idf * count / (count + 1.2 * (1 - 0.75 + 0.75 * len(text) / average))
    return scores


def test_equals_the_formula() -> None:
    words = [[word for word in text.split() if word != "the"] for text in TEXTS]
    np.testing.assert_allclose(BM25(TEXTS).scores("the green or red"), slow_scores(words, ["green", "red"]), rtol=1e-5)


def test_search_is_best_first_and_finds_only_shared_words() -> None:
    found = BM25(TEXTS).search("reds", k=10)  # a stem of red
    assert [position for position, _ in found] == [2, 0]
    assert found[0][1] > found[1][1] > 0
    assert [type(value) for value in found[0]] == [int, float]


def test_equal_scores_stand_in_order() -> None:
    index = BM25(["cat one", "dog", "cat two", "cat six"])
    assert [position for position, _ in index.search("cat", k=2)] == [0, 2]


@pytest.mark.parametrize("query", ["", "   ", "the", "purple", "?!"])
def test_nothing_to_find(query: str) -> None:
    assert BM25(TEXTS).search(query) == []


def test_a_corpus_of_stop_words_is_searched_in_vain() -> None:
    assert BM25(["the", "of a"]).search("the") == []


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_positive(k: int) -> None:
    with pytest.raises(ValueError, match="k"):
        BM25(TEXTS).search("red", k=k)


def test_bad_corpora() -> None:
    with pytest.raises(CorpusError, match="at least one text"):
        BM25([])
    with pytest.raises(TypeError, match="BM25 takes a list"):
        BM25("red")
