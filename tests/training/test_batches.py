"""What an update sees: every pair once, a context apart from the batch, siblings that are never the passage itself."""

import numpy as np
import pytest

from cde_rag_training.batches import BatchConfig, Batches
from cde_rag_training.pairs import Pair, parents_of, per_source, without_duplicates


def made(count=600):
    random = np.random.default_rng(0)
    pairs = []
    for number in range(count):
        source = "docs" if number % 3 else "faq"
        parent = f"page {number // 8}" if source == "docs" else ""
        words = " ".join(f"w{word}" for word in random.integers(0, 400, size=30))
        query = f"{parent}: heading {number}" if parent else f"question {number}"
        pairs.append(Pair(query, f"{words}. It is so. That was {number}.", source, f"{source} {number // 150}", parent))
    return pairs


@pytest.fixture(scope="module")
def pairs():
    return made()


@pytest.fixture(scope="module")
def batches(pairs):
    vectors = np.random.default_rng(1).normal(size=(len(pairs), 16)).astype("f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[1] = vectors[4]  # near-duplicates of each other
    config = BatchConfig(batch_size=32, smallest_context=4, largest_context=64)
    return Batches(pairs, vectors, np.arange(len(pairs)) // 40, config, seed=5)


def test_same_update_same_batch(batches):
    assert batches.draw(7) == batches.draw(7)
    assert batches.draw(7) != batches.draw(8)


def test_batches_are_of_one_source_full_and_without_repetition(batches, pairs):
    for update in range(60):
        batch = batches.draw(update)
        assert len({pairs[position].source for position in batch.positions}) == 1
        assert len(set(batch.positions)) == len(batch.positions) == 32
        assert len(batch.queries) == len(batch.documents) == len(batch.siblings) == 32


def test_context_is_apart_from_the_batch_and_its_duplicates(batches):
    sizes = []
    for update in range(60):
        batch = batches.draw(update)
        assert not set(batch.context) & set(batch.positions)
        assert not ({1, 4} & set(batch.context) and {1, 4} & set(batch.positions))
        sizes.append(len(batch.context))
    assert 0.05 < np.mean([size == 0 for size in sizes]) < 0.4  # a fifth under the null context
    assert max(sizes) > 20


def test_siblings_are_of_the_same_parent_but_for_a_few(batches, pairs):
    right = wrong = families = 0
    for update in range(120):
        batch = batches.draw(update)
        for position, siblings in zip(batch.positions, batch.siblings, strict=True):
            assert position not in siblings
            assert len(siblings) <= 16
            if siblings:
                families += 1
                same = all(pairs[other].parent == pairs[position].parent for other in siblings)
                right, wrong = right + same, wrong + (not same)
    assert families > 500
    assert 0 < wrong < 0.1 * right


def test_passages_of_a_parent_are_negatives_of_each_other(batches, pairs):
    shared = []
    for update in range(60):
        batch = batches.draw(update)
        if any(batch.siblings):
            parents = [pairs[position].parent for position in batch.positions]
            shared.append(np.mean([parents.count(parent) > 1 for parent in parents]))
    assert np.mean(shared) > 0.8


def test_half_of_the_queries_lose_their_parent(batches, pairs):
    named = []
    for update in range(80):
        batch = batches.draw(update)
        for position, query in zip(batch.positions, batch.queries, strict=True):
            if pairs[position].parent:
                named.append(query.startswith("page"))
    assert 0.3 < np.mean(named) < 0.5


def test_duplicates_go_and_parents_stay_whole(pairs):
    doubled = [*pairs, Pair("another question", pairs[0].document.upper(), "faq", "faq 0")]
    assert without_duplicates(doubled) == pairs
    assert pairs[3] not in without_duplicates(pairs, against=[pairs[3].query.upper()])
    kept = per_source(pairs, {"docs": 60, "faq": 20})
    whole = parents_of(pairs)
    assert {parent: len(group) for parent, group in parents_of(kept).items()}.items() <= {
        parent: len(group) for parent, group in whole.items()
    }.items()
    assert 60 <= sum(pair.source == "docs" for pair in kept) < 68
    assert sum(pair.source == "faq" for pair in kept) == 20
