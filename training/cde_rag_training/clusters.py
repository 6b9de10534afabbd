"""Clusters of like pairs, so that a batch holds hard negatives."""

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import require


def paired_kmeans(
    queries: Float32[np.ndarray, "pairs dim"],
    documents: Float32[np.ndarray, "pairs dim"],
    *,
    size: int,
    seed: int,
    steps: int = 20,
) -> Int64[np.ndarray, " pairs"]:
    """Asymmetric spherical k-means over pairs: a pair is near to another whose document or query is near to its query.

    Args:
        queries: Surrogate embeddings, unit norm.
        documents: Surrogate embeddings, unit norm; row i belongs to query i.
        size: Pairs per cluster aimed at; there are ⌈pairs / size⌉ clusters.
        seed: Of the first centroids.
        steps: Of k-means; the paper takes 100.

    Returns:
        The cluster of each pair, from 0.

    Source: paper §4.1 eq. 2–3: rows [d; q] and [q; d] share centroids, and a pair takes the cluster of its row [q; d].
    """
    faiss = require("faiss", "faiss")
    forward = np.concatenate([queries, documents], axis=1) / np.float32(np.sqrt(2))
    backward = np.concatenate([documents, queries], axis=1) / np.float32(np.sqrt(2))
    k = -(-len(queries) // size)
    kmeans = faiss.Kmeans(
        forward.shape[1],
        k,
        niter=steps,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=2**30,
    )
    kmeans.train(np.concatenate([forward, backward]))
    _, nearest = kmeans.index.search(forward, 1)
    return nearest[:, 0].astype(np.int64)
