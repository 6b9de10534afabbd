"""Texts alike by their words: what MinHash finds is what comparing all with all finds, up to the few it may miss."""

import numpy as np
import pytest

from cde_rag_training.clustering.shingles import alike, shingled

WORDS = [f"w{number}" for number in range(400)]


def grams(text, words=5):
    parts = text.lower().split()
    return {tuple(parts[place : place + words]) for place in range(max(len(parts) - words + 1, 1))}


def jaccard(one, other):
    return len(grams(one) & grams(other)) / len(grams(one) | grams(other))


@pytest.fixture(scope="module")
def texts():
    """Random texts, each followed by versions of itself with one to six words changed."""
    random, made = np.random.default_rng(0), []
    for _ in range(40):
        words = random.choice(WORDS, size=random.integers(3, 60)).tolist()
        made.append(" ".join(words))
        for changes in range(1, 7):
            version = list(words)
            for place in random.integers(0, len(words), size=changes):
                version[place] = random.choice(WORDS)
            made.append(" ".join(version))
    return made


def test_an_index_by_hand():
    one = shingled(["the cat sat on the mat today", "a b"], words=5)  # three n-grams, one n-gram
    other = shingled(["The cat sat on  THE mat now", "a b", "b a", "a b c"], words=5)
    rows, scores = alike(one, other, jaccard=0.5)
    assert rows.tolist() == [[0, 0], [1, 1]]
    assert scores.tolist() == [2 / 4, 1.0]


def test_what_is_found_is_what_there_is(texts):
    one, other = shingled(texts[:180], words=5), shingled(texts[60:], words=5)
    rows, scores = alike(one, other, jaccard=0.5)
    found = dict(zip(map(tuple, rows.tolist()), scores.tolist(), strict=True))
    there = {
        (first, second): score
        for first in range(180)
        for second in range(len(texts) - 60)
        if (score := jaccard(texts[first], texts[60 + second])) >= 0.5
    }
    assert found.items() <= there.items()
    assert len(there) > 100
    assert len(found) >= 0.98 * len(there)
    assert rows.tolist() == sorted(rows.tolist())


def test_inside_one_list_each_is_found_once(texts):
    one = shingled(texts, words=5)
    inside, _ = alike(one, one, jaccard=0.5)
    across, _ = alike(one, shingled(texts, words=5), jaccard=0.5)
    assert (inside[:, 0] < inside[:, 1]).all()
    assert {tuple(row) for row in across.tolist() if row[0] < row[1]} == {tuple(row) for row in inside.tolist()}


def test_the_order_of_the_texts_changes_nothing(texts):
    order = np.random.default_rng(1).permutation(len(texts))
    one, other = shingled(texts, words=5), shingled([texts[place] for place in order], words=5)
    rows, shuffled = alike(one, one, jaccard=0.5)[0], alike(other, other, jaccard=0.5)[0]
    assert {frozenset(row) for row in rows.tolist()} == {frozenset(row) for row in order[shuffled].tolist()}


def test_nothing_is_like_nothing():
    none, some = shingled([], words=5), shingled(["a b"], words=5)
    for one, other in ((none, some), (some, none), (none, none)):
        assert alike(one, other, jaccard=0.5)[0].shape == (0, 2)
