"""A cached surrogate gives what it would give uncached, asks for each text once, and goes on after a kill."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cde_rag import CDEError
from cde_rag_training.clustering import surrogate
from cde_rag_training.clustering.surrogate import cached, tfidf_svd

TEXTS = ["the river flood", "a bank loan", "money in the bank", "river delta water", "loan interest rate", "fish boat"]


class Letters:
    """Counts letters, and remembers what it was asked."""

    def __init__(self, dim=26):
        self.asked, self.dim = [], dim

    def __call__(self, texts):
        self.asked += texts
        rows = [[text.count(chr(97 + place)) for place in range(self.dim)] for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(texts), self.dim)


@settings(max_examples=25)
@given(st.lists(st.lists(st.sampled_from(TEXTS), max_size=9), max_size=4), st.integers(1, 4))
def test_cached_equals_uncached_and_no_text_is_asked_twice(tmp_path_factory, lists, block):
    folder, plain = tmp_path_factory.mktemp("surrogate"), Letters()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surrogate, "BLOCK", block)
        for texts in lists:
            embed = cached(plain, "letters", folder)
            np.testing.assert_array_equal(embed(texts), Letters()(texts))
    asked = [text for text in plain.asked if text]
    assert len(asked) == len(set(asked))


def test_a_run_that_was_killed_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(surrogate, "BLOCK", 2)
    plain = Letters()

    def dies(texts):
        if TEXTS[4] in texts:
            raise KeyboardInterrupt
        return plain(texts)

    with pytest.raises(KeyboardInterrupt):
        cached(dies, "letters", tmp_path)(TEXTS)
    assert plain.asked == TEXTS[:4]
    assert len(list((tmp_path / "letters").iterdir())) == 2
    np.testing.assert_array_equal(cached(plain, "letters", tmp_path)(TEXTS), Letters()(TEXTS))
    assert plain.asked == TEXTS


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cached(Letters(), "letters", tmp_path)(TEXTS)
    assert list((tmp_path / "letters").iterdir()) == []


def test_names_keep_surrogates_apart(tmp_path):
    cached(Letters(), "letters", tmp_path)(TEXTS)
    short = Letters(dim=5)
    assert cached(short, "short", tmp_path)(TEXTS).shape == (6, 5)
    with pytest.raises(CDEError, match="another surrogate has been cached under the name 'letters'"):
        cached(short, "letters", tmp_path)([*TEXTS, "new"])
    with pytest.raises(ValueError, match="Expected a name of letters"):
        cached(short, "../letters", tmp_path)
    with pytest.raises(TypeError, match="pass"):
        cached(short, "short", tmp_path)("one text")


def test_a_damaged_block_is_named(tmp_path):
    cached(Letters(), "letters", tmp_path)(TEXTS)
    (block,) = (tmp_path / "letters").iterdir()
    block.write_bytes(block.read_bytes()[:-7])
    with pytest.raises(CDEError, match=rf"{block.name}, found a damaged file .* Delete it"):
        cached(Letters(), "letters", tmp_path)(TEXTS)


def test_tfidf_puts_like_texts_together():
    embed = tfidf_svd(TEXTS, dims=4, seed=0)
    vectors = embed([*TEXTS, "unknown words"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (7, 4)
    np.testing.assert_allclose(np.linalg.norm(vectors[:6], axis=1), 1, atol=1e-5)
    assert not vectors[6].any()
    scores = vectors @ vectors.T
    assert scores[1, 2] > scores[1, 3]
    assert scores[0, 3] > scores[0, 4]
    np.testing.assert_array_equal(embed(TEXTS), tfidf_svd(TEXTS, dims=4, seed=0)(TEXTS))


def test_tfidf_needs_words():
    with pytest.raises(CDEError, match="Expected texts with words, found none"):
        tfidf_svd(["", " "])
    with pytest.raises(CDEError, match="at least two different words"):
        tfidf_svd(["one one", "one"])
