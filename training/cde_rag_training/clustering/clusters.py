"""Clusters of like pairs, so that a batch holds hard negatives. faiss is imported when there is one to make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import require

ALL_POINTS = 2**30  # per centroid: faiss would train on a sample of 256


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Configuration of the clustering. The presets are `PAPER` and `LAPTOP`."""

    size: int = 512  # pairs per cluster aimed at                          paper table 1
    steps: int = 100  # of k-means                                         paper §5.1
    attempts: int = 3  # from different first centroids; the best is kept  paper §5.1
    dims: int | None = None  # that surrogate embeddings are reduced to; None: all of them
    seed: int = 0


PAPER = ClusterConfig()
LAPTOP = ClusterConfig(steps=25, attempts=1, dims=64)  # 100 000 pairs in less than a minute on two cores


def paired_kmeans(
    queries: Float32[np.ndarray, "pairs dim"],
    documents: Float32[np.ndarray, "pairs dim"],
    *,
    count: int,
    steps: int,
    attempts: int,
    seed: int,
) -> Int64[np.ndarray, " pairs"]:
    """Cluster pairs by asymmetric spherical k-means.

    A pair is near to another whose document or query is near to its query. It runs on all GPUs where FAISS is built for
    them (the last bits of centroids differ from a CPU's), else on the CPU.

    Args:
        queries: Surrogate embeddings, unit norm.
        documents: Surrogate embeddings, unit norm; row i belongs to query i.
        count: Number of centroids, at most the number of pairs. Both orders share them, so fewer clusters may come out.
        steps: Number of steps of k-means.
        attempts: Number of runs from different first centroids; the best is kept.
        seed: Random seed of the first centroids.

    Returns:
        The cluster of each pair, from 0 and without gaps.

    Source: paper §4.1 eq. 2–3: rows [d; q] and [q; d] share centroids, and a pair takes the cluster of its row [q; d].
    """
    faiss: Any = require("faiss", "faiss")
    forward = unit(np.concatenate([queries, documents], axis=1))
    backward = unit(np.concatenate([documents, queries], axis=1))
    kmeans = faiss.Kmeans(
        forward.shape[1],
        count,
        niter=steps,
        nredo=attempts,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=ALL_POINTS,
        gpu=hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0,
    )
    kmeans.train(np.concatenate([forward, backward]))
    _, nearest = kmeans.index.search(forward, 1)
    return np.unique(nearest[:, 0], return_inverse=True)[1].astype(np.int64)


def clusters_of_source(
    queries: Float32[np.ndarray, "pairs dim"], documents: Float32[np.ndarray, "pairs dim"], config: ClusterConfig
) -> Int64[np.ndarray, " pairs"]:
    """Cluster the pairs of one source, so that no cluster exceeds twice the target size.

    k-means gives clusters of very different sizes; one that is too large is clustered again by itself, and cut in
    order if that does not divide it (equal pairs).

    Args:
        queries: Surrogate embeddings, unit norm.
        documents: Surrogate embeddings, unit norm; row i belongs to query i.
        config: How to cluster.

    Returns:
        The cluster of each pair, from 0 and without gaps.

    Source: paper §4.1 and §5.1; clustering again is ours.
    """
    if config.dims is not None:
        queries, documents = reduced(queries, documents, config.dims)
    clusters = np.zeros(len(queries), dtype=np.int64)
    large, following = [0] if len(queries) else [], 1
    while large:
        rows = np.flatnonzero(clusters == large.pop())
        parts = _parts(queries[rows], documents[rows], config)
        names = following + np.arange(parts.max() + 1)
        clusters[rows] = names[parts]
        following += len(names)
        large += names[np.bincount(parts) > 2 * config.size].tolist()
    return np.unique(clusters, return_inverse=True)[1].astype(np.int64)


def _parts(
    queries: Float32[np.ndarray, "pairs dim"], documents: Float32[np.ndarray, "pairs dim"], config: ClusterConfig
) -> Int64[np.ndarray, " pairs"]:
    count = -(-len(queries) // config.size)
    parts = paired_kmeans(
        queries, documents, count=count, steps=config.steps, attempts=config.attempts, seed=config.seed
    )
    if count > 1 and parts.max() == 0:
        return np.arange(len(queries)) // config.size
    return parts


def cluster_pairs(
    queries: Float32[np.ndarray, "pairs dim"],
    documents: Float32[np.ndarray, "pairs dim"],
    sources: Sequence[str],
    config: ClusterConfig,
) -> Int64[np.ndarray, " pairs"]:
    """Cluster pairs within each source.

    Args:
        queries: Surrogate embeddings, unit norm.
        documents: Surrogate embeddings, unit norm; row i belongs to query i.
        sources: The source of each pair.
        config: How to cluster.

    Returns:
        The cluster of each pair, from 0 and without gaps; sources follow each other in order of name.

    Source: paper §5.1 ("per-domain").
    """
    clusters = np.zeros(len(queries), dtype=np.int64)
    names, source_of = np.unique(np.asarray(sources), return_inverse=True)
    following = 0
    for source in range(len(names)):
        rows = np.flatnonzero(source_of == source)
        clusters[rows] = following + clusters_of_source(queries[rows], documents[rows], config)
        following = int(clusters[rows].max()) + 1
    return clusters


def reduced(
    queries: Float32[np.ndarray, "pairs dim"], documents: Float32[np.ndarray, "pairs dim"], dims: int
) -> tuple[Float32[np.ndarray, "pairs less"], Float32[np.ndarray, "pairs less"]]:
    """Project both sides onto the `dims` main directions of their second moment, unit norm.

    Vectors that have no more dimensions are returned unchanged.

    Source: the paper's code (truncated SVD to 128 dims), here exact and over both sides.
    """
    if dims >= queries.shape[1]:
        return queries, documents
    directions = main_directions(queries, documents, dims)
    return unit(queries @ directions), unit(documents @ directions)


def main_directions(
    queries: Float32[np.ndarray, "pairs dim"], documents: Float32[np.ndarray, "pairs dim"], dims: int
) -> Float32[np.ndarray, "dim less"]:
    """Return the `dims` main directions of both sides' second moment."""
    _, vectors = np.linalg.eigh((queries.T @ queries + documents.T @ documents).astype(np.float64))
    return vectors[:, -dims:].astype(np.float32)


def unit(vectors: Float32[np.ndarray, "rows dim"]) -> Float32[np.ndarray, "rows dim"]:
    """Normalise rows to norm 1; rows of zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, np.float32(1))
