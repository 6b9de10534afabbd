"""Clusters of pairs: the golden partition, all points, sizes near the target, inside a source."""

import subprocess
import sys

import numpy as np
import pytest
from goldens import golden, golden_json
from hypothesis import given, settings
from hypothesis import strategies as st

from cde_rag_training.clustering.clusters import (
    LAPTOP,
    PAPER,
    ClusterConfig,
    cluster_pairs,
    clusters_of_source,
    paired_kmeans,
    reduced,
    unit,
)


def planted(count, groups, dim=12, noise=0.3, seed=0):
    """Pairs around group centres, those of queries and of documents unlike each other."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(2, groups, dim))
    labels = random.integers(groups, size=count)
    sides = centres[:, labels] + noise * random.normal(size=(2, count, dim))
    return unit(sides[0].astype("f4")), unit(sides[1].astype("f4")), labels


def same_partition(one, other):
    return np.array_equal(one[:, None] == one[None, :], other[:, None] == other[None, :])


def test_golden_partition(shared_data):
    tensors, facts = golden(shared_data, "packing/paired_kmeans"), golden_json(shared_data, "packing/packing")["kmeans"]
    clusters = paired_kmeans(
        tensors["query"].numpy(),
        tensors["document"].numpy(),
        count=facts["k"],
        steps=facts["niter"],
        attempts=facts["nredo"],
        seed=facts["seed"],
    )
    expected = np.empty(40, dtype=np.int64)
    for number, members in enumerate(facts["partition"]):
        expected[members] = number
    assert same_partition(clusters, expected)
    assert same_partition(clusters, tensors["assignments"].numpy())


def test_the_presets_say_what_the_paper_does():
    assert (PAPER.steps, PAPER.attempts, PAPER.dims) == (100, 3, None)
    assert LAPTOP.dims is not None
    assert LAPTOP.steps < PAPER.steps


def test_all_points_are_used(monkeypatch):
    """Centroids are the means of all rows [q; d] and [d; q] that are nearest to them, not of a sample of 256 each."""
    import faiss

    made = []

    class Recorded(faiss.Kmeans):
        def __init__(self, *sizes, **options):
            super().__init__(*sizes, **options)
            made.append(self)

    monkeypatch.setattr(faiss, "Kmeans", Recorded)
    queries, documents, _ = planted(2000, 3)
    paired_kmeans(queries, documents, count=3, steps=60, attempts=1, seed=0)
    both = [(queries, documents), (documents, queries)]
    rows = unit(np.concatenate([np.concatenate(sides, axis=1) for sides in both]))
    centroids = made[0].centroids
    nearest = (rows @ centroids.T).argmax(axis=1)
    for number, centroid in enumerate(centroids):
        mean = rows[nearest == number].sum(axis=0)
        np.testing.assert_allclose(centroid, mean / np.linalg.norm(mean), atol=1e-4)


@pytest.mark.parametrize(("built", "there"), [(True, 2), (True, 0), (False, 2)])
def test_gpus_are_used_where_faiss_has_them(monkeypatch, built, there):
    """A stand-in for a FAISS with GPUs: its k-means is asked for them, and computes on the CPU."""
    import faiss

    asked = []

    class Recorded(faiss.Kmeans):
        def __init__(self, *sizes, gpu, **options):
            super().__init__(*sizes, **options)
            asked.append(gpu)

    monkeypatch.setattr(faiss, "Kmeans", Recorded)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: there)
    if built:
        monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    queries, documents, _ = planted(200, 3)
    assert len(paired_kmeans(queries, documents, count=3, steps=5, attempts=1, seed=0)) == 200
    assert asked == [built and there > 0]


@pytest.mark.parametrize("config", [PAPER, LAPTOP], ids=["paper", "laptop"])
def test_planted_groups_stay_apart(config):
    """Queries are unlike their documents here, so that the two orders of a pair lie apart: six groups of rows."""
    queries, documents, labels = planted(300, 3, dim=80, noise=0.2)
    few = reduced(queries, documents, config.dims or 80)
    clusters = paired_kmeans(*few, count=12, steps=config.steps, attempts=config.attempts, seed=1)
    assert all(len(set(labels[clusters == one])) == 1 for one in range(clusters.max() + 1))


@settings(max_examples=15)
@given(st.integers(1, 200), st.integers(1, 6), st.sampled_from([4, 16]), st.booleans(), st.integers(0, 9))
def test_clusters_are_numbered_and_none_is_too_large(count, groups, size, alike, seed):
    queries, documents, _ = planted(count, groups, noise=0.0 if alike else 0.3, seed=seed)
    config = ClusterConfig(size=size, steps=5, attempts=1)
    clusters = clusters_of_source(queries, documents, config)
    sizes = np.bincount(clusters)
    assert len(clusters) == count
    assert sizes.min() >= 1
    assert sizes.max() <= 2 * size
    assert np.array_equal(clusters, clusters_of_source(queries, documents, config))


def test_sizes_are_near_the_target():
    queries, documents, _ = planted(3000, 40, noise=0.8)
    sizes = np.bincount(clusters_of_source(queries, documents, ClusterConfig(size=50, steps=10, attempts=1)))
    assert 25 <= (sizes**2).sum() / sizes.sum() <= 100  # of the cluster that a pair finds itself in


def test_a_cluster_lies_in_one_source():
    queries, documents, _ = planted(200, 2)
    sources = ["even" if number % 2 else "odd" for number in range(200)]
    clusters = cluster_pairs(queries, documents, sources, ClusterConfig(size=20, steps=5, attempts=1))
    assert all(len({sources[row] for row in np.flatnonzero(clusters == one)}) == 1 for one in range(clusters.max() + 1))
    assert np.bincount(clusters).min() > 0
    odd = np.array(sources) == "odd"
    alone = clusters_of_source(queries[odd], documents[odd], ClusterConfig(size=20, steps=5, attempts=1))
    assert same_partition(clusters[odd], alone)  # other sources change nothing


def test_reduction_keeps_the_scores_that_few_directions_hold():
    random = np.random.default_rng(0)
    queries, documents = (unit((random.normal(size=(50, 4)) @ random.normal(size=(4, 20))).astype("f4")) for _ in "qd")
    plain = reduced(queries, documents, 8)
    np.testing.assert_allclose(plain[0] @ plain[1].T, queries @ documents.T, atol=1e-5)
    assert reduced(queries, documents, 20)[0] is queries
    assert reduced(queries, documents, 3)[1].shape == (50, 3)


def test_training_imports_no_faiss():
    """So that it runs on a bare machine from what was prepared elsewhere."""
    code = (
        "import sys, cde_rag_training.loop.trainer, cde_rag_training.clustering.packing\n"
        "import cde_rag_training.clustering.clusters; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "cde_rag_training.loop.trainer" in loaded
    assert {"faiss", "bm25s", "sklearn", "sentence_transformers"}.isdisjoint(loaded)
