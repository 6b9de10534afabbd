"""Batches are full, of one source, and hold every pair at most once; they are harder than random ones."""

import gzip
import itertools
import json

import numpy as np
import pytest
from goldens import golden, golden_json
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cde_rag import CDEError
from cde_rag_training.clustering.clusters import ClusterConfig, cluster_pairs, unit
from cde_rag_training.clustering.packing import Packing, PackingConfig, centroids_of, difficulty, greedy_tour, pack
from cde_rag_training.clustering.surrogate import tfidf_svd


def some_vectors(count, dim=6, seed=0):
    return unit(np.random.default_rng(seed).normal(size=(count, dim)).astype("f4"))


def length(centroids, order):
    return float(np.linalg.norm(np.diff(centroids[order], axis=0), axis=1).sum())


@pytest.mark.parametrize("seed", ["42", "43"])
def test_golden_tours(shared_data, seed):
    centroids = golden(shared_data, "packing/tsp_centroids")["centroids"].numpy()
    start = int(np.random.default_rng(int(seed)).integers(0, len(centroids)))
    expected = golden_json(shared_data, "packing/packing")["tsp_greedy_orders_by_rng_seed"][seed]
    assert greedy_tour(centroids, start=start).tolist() == expected


@settings(max_examples=30)
@given(st.integers(20, 60), st.integers(0, 99))
def test_a_tour_visits_all_and_is_shorter_than_random_orders(count, seed):
    centroids, random = some_vectors(count, dim=3, seed=seed), np.random.default_rng(seed)
    tour = greedy_tour(centroids, start=int(random.integers(count)))
    assert sorted(tour.tolist()) == list(range(count))
    assert length(centroids, tour) < np.mean([length(centroids, random.permutation(count)) for _ in range(20)])


def test_centroids_are_means():
    vectors, clusters = some_vectors(30), np.random.default_rng(0).permutation(np.arange(30) % 4)
    expected = [vectors[clusters == number].mean(axis=0) for number in range(4)]
    np.testing.assert_allclose(centroids_of(vectors, clusters), expected, atol=1e-6)


@given(arrays(np.int64, st.integers(0, 200), elements=st.integers(0, 9)), st.integers(1, 40), st.integers(0, 9))
def test_full_batches_and_no_pair_twice(clusters, batch_size, seed):
    order = np.random.default_rng(seed).permutation(10)
    batches = pack(clusters, order, batch_size=batch_size, random=np.random.default_rng(seed))
    assert batches.shape[1] == batch_size
    assert len(np.unique(batches)) == batches.size
    assert 0 <= len(clusters) - batches.size < batch_size
    again = pack(clusters, order, batch_size=batch_size, random=np.random.default_rng(seed))
    assert np.array_equal(batches, again)


@given(arrays(np.int64, st.integers(1, 200), elements=st.integers(0, 9)), st.integers(1, 40))
def test_a_large_cluster_fills_batches_of_its_own(clusters, batch_size):
    random = np.random.default_rng(0)
    batches = pack(clusters, np.arange(10), batch_size=batch_size, random=random)
    pure = sum(len(set(clusters[batch])) == 1 for batch in batches)
    kept = np.bincount(clusters[batches.ravel()], minlength=10)
    assert pure >= (kept // batch_size).sum()


def test_small_clusters_are_merged_in_the_given_order():
    clusters = np.repeat(np.arange(6), 2)
    batches = pack(clusters, np.array([0, 5, 1, 4, 2, 3]), batch_size=4, random=np.random.default_rng(0))
    assert {frozenset(clusters[batch].tolist()) for batch in batches} == {
        frozenset({0, 5}),
        frozenset({1, 4}),
        frozenset({2, 3}),
    }


def made(order="tour", exponent=0.5):
    random = np.random.default_rng(0)
    sources = random.permutation(["big"] * 300 + ["small"] * 50).tolist()
    clusters = random.integers(12, size=350) * 2 + (np.array(sources) == "big")
    config = PackingConfig(batch_size=16, order=order, source_exponent=exponent, seed=3)
    return Packing(clusters, sources, some_vectors(350), config), sources


@pytest.mark.parametrize("order", ["tour", "random"])
def test_an_epoch_has_every_pair_once_and_the_next_is_another(order):
    packing, sources = made(order)
    first, second = packing.epoch(0), packing.epoch(1)
    assert first.shape == second.shape == (18 + 3, 16)
    assert len(np.unique(first)) == first.size
    assert all(len({sources[row] for row in batch}) == 1 for batch in first)
    assert {frozenset(batch.tolist()) for batch in first}.isdisjoint(frozenset(batch.tolist()) for batch in second)
    assert np.array_equal(first, made(order)[0].epoch(0))
    left_out = [set(range(350)) - set(packing.epoch(number).ravel().tolist()) for number in range(12)]
    assert len(set.intersection(*left_out)) == 0  # no pair is left out for ever
    assert len(set.union(*left_out)) > 60


def test_sources_are_drawn_by_their_size_to_the_power_of_alpha():
    for exponent, expected in ((0.0, 1 / 2), (0.5, 300**0.5 / (300**0.5 + 50**0.5)), (1.0, 300 / 350)):
        packing, sources = made(exponent=exponent)
        batches = list(itertools.islice(packing.sampled(), 400))
        share = np.mean([sources[batch[0]] == "big" for batch in batches])
        assert share == pytest.approx(expected, abs=0.07)


def test_sampling_goes_through_a_source_before_it_comes_again():
    packing, sources = made()
    batches = [batch for batch in itertools.islice(packing.sampled(), 60) if sources[batch[0]] == "small"]
    assert len(np.unique(batches[:3])) == 48
    assert len(np.unique(batches[3:6])) == 48
    assert not np.array_equal(np.sort(batches[:3], axis=1), np.sort(batches[3:6], axis=1))


def test_sampling_goes_on_where_it_stopped():
    packing, _ = made()
    whole = list(itertools.islice(packing.sampled(), 40))
    rest = list(itertools.islice(made()[0].sampled(start=25), 15))
    assert np.array_equal(whole[25:], rest)


def test_a_source_smaller_than_a_batch_is_named():
    with pytest.raises(CDEError, match=r"Expected 32 pairs or more .* found 20 of 'tiny'"):
        Packing(np.zeros(20, dtype=np.int64), ["tiny"] * 20, some_vectors(20), PackingConfig(batch_size=32))


def test_for_alpha_of_one_whole_epochs_follow_each_other():
    packing, _ = made(exponent=1.0)
    epochs = np.concatenate([packing.epoch(0), packing.epoch(1)])
    for start in (0, 5, 21, 30):
        assert np.array_equal(list(itertools.islice(packing.batches(start), 42 - start)), epochs[start:])
    drawn, other = made()[0].batches(3), made()[0].sampled(3)
    assert all(np.array_equal(next(drawn), next(other)) for _ in range(5))


def test_difficulty_is_the_mean_over_other_documents():
    queries, documents = some_vectors(8), some_vectors(8, seed=1)
    batch = np.array([[0, 3, 5], [1, 2, 7]])
    expected = [np.mean([queries[i] @ documents[j] for i in one for j in one if i != j]) for one in batch]
    np.testing.assert_allclose(difficulty(batch, queries, documents), expected, atol=1e-6)


def test_batches_of_real_pairs_are_harder_the_smaller_the_clusters(shared_data):
    """Figure 6: random batches are the easiest; difficulty rises as clusters shrink and as batches do."""
    pairs = []
    for source in ("medquad", "movies"):
        with gzip.open(shared_data / "train" / source / "pairs.jsonl.gz", "rt") as lines:
            pairs += [(source, json.loads(line)) for line in itertools.islice(lines, 1000)]
    texts = [[pair[side] for _, pair in pairs] for side in ("query", "document")]
    surrogate = tfidf_svd([*texts[0], *texts[1]], dims=64, seed=0)
    queries, documents = surrogate(texts[0]), surrogate(texts[1])
    sources = [source for source, _ in pairs]

    def mean_difficulty(size, batch_size=32, order="tour"):
        clusters = cluster_pairs(queries, documents, sources, ClusterConfig(size=size, steps=10, attempts=1))
        packing = Packing(clusters, sources, documents, PackingConfig(batch_size=batch_size, order=order))
        return float(difficulty(packing.epoch(0), queries, documents).mean())

    shuffled = np.random.default_rng(0).permutation(2000)[:1984].reshape(-1, 32)
    random = float(difficulty(shuffled, queries, documents).mean())
    by_size = [mean_difficulty(size) for size in (32, 128, 512)]
    assert by_size[0] > by_size[1] > by_size[2] > 1.5 * random
    assert by_size[0] > 1.2 * by_size[2]
    assert mean_difficulty(32, batch_size=128) < by_size[0]
    assert mean_difficulty(8) > mean_difficulty(8, order="random")  # clusters of a quarter batch, merged
