"""Difficulty of batches as clusters shrink (paper figure 6), and by the order of packing (figure 14)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cde_rag_training.clustering.clusters import ClusterConfig, cluster_pairs
from cde_rag_training.clustering.packing import Packing, PackingConfig, difficulty
from cde_rag_training.data.prepared import Prepared
from lab.experiments.result_tables import new_figure, write_table

SMALLEST = 32  # pairs, of clusters and of batches
LARGEST_BATCH = 2048  # pairs
ORDERED_BATCH = 256  # pairs of a batch, for the order of packing
STEPS, DIMS = 10, 64  # of the experiment's k-means


class DifficultyRow(NamedTuple):
    """One point of figure 6.

    Attributes:
        cluster_size: Pairs of a cluster aimed at; 0: pairs at random inside a source.
        batch_size: Pairs.
        difficulty: Mean surrogate cosine of a query with the other documents of its batch.
    """

    cluster_size: int
    batch_size: int
    difficulty: float


def batch_difficulty(
    prepared: Prepared, *, cluster_sizes: Sequence[int], batch_sizes: Sequence[int], seed: int
) -> list[DifficultyRow]:
    """Measure the difficulty of one epoch's batches for each cluster size and batch size.

    Args:
        prepared: The data; sources with fewer pairs than the largest batch are left out.
        cluster_sizes: Target size in pairs; 0 for random batches.
        batch_sizes: Sizes in pairs.
        seed: Random seed of clustering and packing.

    Raises:
        MissingExtraError: faiss is not installed.

    Source: paper figure 6.
    """
    kept = np.isin(prepared.sources, np.flatnonzero(np.bincount(prepared.sources) >= max(batch_sizes)))
    rows = np.flatnonzero(kept)
    queries, documents = prepared.query_vectors_of(rows), prepared.document_vectors_of(rows)
    names = [prepared.source_names[source] for source in prepared.sources[rows]]
    found: list[DifficultyRow] = []
    for size in cluster_sizes:
        config = ClusterConfig(size=size, steps=STEPS, attempts=1, dims=DIMS, seed=seed)
        sources = np.ascontiguousarray(prepared.sources[rows])
        clusters = cluster_pairs(queries, documents, names, config) if size else sources
        for batch_size in batch_sizes:
            packing = PackingConfig(batch_size=batch_size, order="tour" if size else "random", seed=seed)
            batches = Packing(clusters, names, documents, packing).epoch(0)
            mean = float(difficulty(batches, queries, documents).mean())
            found.append(DifficultyRow(size, batch_size, mean))
    return found


class OrderRow(NamedTuple):
    """Batches of one epoch, packed in one order.

    Attributes:
        cluster_size: Pairs of a cluster aimed at.
        order: "tour" or "random".
        difficulty: Mean surrogate cosine of a query with the other documents of its batch, mean over seeds.
        spread: Standard deviation over seeds (ddof 0).
    """

    cluster_size: int
    order: str
    difficulty: float
    spread: float


def packing_orders(
    prepared: Prepared, *, cluster_sizes: Sequence[int], batch_size: int, seeds: Sequence[int]
) -> list[OrderRow]:
    """Measure the difficulty of batches along the greedy tour and in random order.

    Args:
        prepared: The data; sources with fewer pairs than a batch are left out.
        cluster_sizes: Target size in pairs.
        batch_size: Size in pairs.
        seeds: Random seeds of clustering and packing.

    Raises:
        MissingExtraError: faiss is not installed.

    Source: paper figure 14, which has the quality after training.
    """
    rows = np.flatnonzero(np.isin(prepared.sources, np.flatnonzero(np.bincount(prepared.sources) >= batch_size)))
    queries, documents = prepared.query_vectors_of(rows), prepared.document_vectors_of(rows)
    names = [prepared.source_names[source] for source in prepared.sources[rows]]
    found: list[OrderRow] = []
    for size in cluster_sizes:
        means: dict[Literal["tour", "random"], list[float]] = {"tour": [], "random": []}
        for seed in seeds:
            config = ClusterConfig(size=size, steps=STEPS, attempts=1, dims=DIMS, seed=seed)
            clusters = cluster_pairs(queries, documents, names, config)
            for order, of_order in means.items():
                packing = PackingConfig(batch_size=batch_size, order=order, seed=seed)
                batches = Packing(clusters, names, documents, packing).epoch(0)
                of_order.append(float(difficulty(batches, queries, documents).mean()))
        found += [OrderRow(size, order, float(np.mean(each)), float(np.std(each))) for order, each in means.items()]
    return found


def run_orders(prepared: Prepared, output: Path, seed: int) -> list[Path]:
    """Write packing.csv and packing.svg: batches of 256 pairs, or as large as the smallest source, and three seeds."""
    batch_size = min(ORDERED_BATCH, int(np.bincount(prepared.sources).min()))
    sizes = [size for step in range(5) if (size := batch_size // 2**step) >= 4][::-1]
    found = packing_orders(prepared, cluster_sizes=sizes, batch_size=batch_size, seeds=range(seed, seed + 3))
    figure, axes = new_figure()
    for order in ("tour", "random"):
        line = [row for row in found if row.order == order]
        spreads = [row.spread for row in line]
        axes.errorbar([row.cluster_size for row in line], [row.difficulty for row in line], spreads, label=order)
    axes.set(xscale="log", xlabel="cluster size (pairs)", ylabel="mean cosine with other documents")
    axes.set_title(f"Difficulty of batches of {batch_size}, by the order of packing", fontsize=10)
    axes.legend()
    figure.savefig(output / "packing.svg")
    return [write_table(output / "packing.csv", found), output / "packing.svg"]


def run(prepared: Prepared, output: Path, seed: int) -> list[Path]:
    """Write difficulty.csv and difficulty.svg.

    Cluster sizes start at 32 pairs and grow by a factor of 4, up to half of the largest source.
    """
    largest = int(np.bincount(prepared.sources).max())
    sizes = [size for step in range(7) if (size := SMALLEST * 4**step) <= max(largest // 2, SMALLEST)]
    batch_sizes = [size for size in sizes if size <= LARGEST_BATCH]
    found = batch_difficulty(prepared, cluster_sizes=[*sizes, 0], batch_sizes=batch_sizes, seed=seed)
    return [write_table(output / "difficulty.csv", found), _plot(found, output / "difficulty.svg")]


def _plot(rows: Sequence[DifficultyRow], path: Path) -> Path:
    figure, axes = new_figure()
    for size in sorted({row.batch_size for row in rows}):
        line = [row for row in rows if row.batch_size == size and row.cluster_size]
        axes.plot([row.cluster_size for row in line], [row.difficulty for row in line], marker="o", label=f"{size}")
        (at_random,) = [row.difficulty for row in rows if row.batch_size == size and not row.cluster_size]
        axes.axhline(at_random, color="grey", linewidth=0.5)
    axes.set(xscale="log", xlabel="cluster size (pairs)", ylabel="mean cosine with other documents")
    axes.set_title("Difficulty of batches; grey: pairs at random", fontsize=10)
    axes.legend(title="batch size")
    figure.savefig(path)
    return path
