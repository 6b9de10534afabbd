"""From clusters to full batches, each from one source: every pair at most once an epoch, another packing each epoch.

Large clusters are split and small ones merged with their neighbours, in random order or along a greedy tour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, Int64

from cde_rag.errors import CorpusError


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """Configuration of packing clusters into batches."""

    batch_size: int = 512  # pairs                                                         paper table 1
    order: Literal["tour", "random"] = "tour"  # in which small clusters are merged        paper §10.5
    source_exponent: float = 0.5  # α: a source is drawn with probability ∝ pairs^α        GTE §3.4
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse empty batches."""
        if self.batch_size < 1:
            raise ValueError(f"Expected a batch_size of at least 1, found {self.batch_size}.")


def greedy_tour(centroids: Float32[np.ndarray, "clusters dim"], *, start: int) -> Int64[np.ndarray, " clusters"]:
    """Order clusters so that each is followed by the nearest (L2) unvisited one.

    Args:
        centroids: Centroids of the clusters.
        start: The first cluster.

    Source: paper §10.5 (TSP packing).

    Examples:
        >>> greedy_tour(np.array([[0.0], [5.0], [1.0], [3.0]], dtype="f4"), start=2).tolist()
        [2, 0, 3, 1]
    """
    left = np.arange(len(centroids))
    tour = [start]
    while len(left) > 1:
        left = left[left != tour[-1]]
        distances = ((centroids[left] - centroids[tour[-1]]) ** 2).sum(axis=1)
        tour.append(int(left[distances.argmin()]))
    return np.array(tour, dtype=np.int64)


def centroids_of(
    vectors: Float32[np.ndarray, "pairs dim"], clusters: Int64[np.ndarray, " pairs"]
) -> Float32[np.ndarray, "clusters dim"]:
    """Compute the mean vector of each cluster; clusters are numbered from 0 without gaps.

    Source: the paper's code, which takes document vectors.
    """
    order = np.argsort(clusters, kind="stable")
    sizes = np.bincount(clusters)
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    sums = np.add.reduceat(vectors[order], starts, axis=0, dtype=np.float64)
    return (sums / sizes[:, None]).astype(np.float32)


def pack(
    clusters: Int64[np.ndarray, " pairs"],
    order: Int64[np.ndarray, " clusters"],
    *,
    batch_size: int,
    random: np.random.Generator,
) -> Int64[np.ndarray, "batches {batch_size}"]:
    """Pack one source's pairs into full batches for one epoch; return positions, batches in random order.

    A cluster of a batch or more fills batches of its own; its remainder and smaller clusters are concatenated in the
    given order and cut. Fewer pairs than a batch, drawn at random, are left out.

    Args:
        clusters: The cluster of each pair, from 0 and without gaps.
        order: Order of the clusters.
        batch_size: Pairs in a batch.
        random: Draws the pairs left out, the order inside clusters, and the order of the batches.

    Source: paper §4.1 "Packing".
    """
    kept = random.permutation(len(clusters))[: len(clusters) // batch_size * batch_size]
    ends = np.bincount(clusters[kept], minlength=len(order)).cumsum()
    groups = np.split(kept[np.argsort(clusters[kept], kind="stable")], ends[:-1])
    cuts = [len(group) // batch_size * batch_size for group in groups]
    pieces = [groups[cluster][: cuts[cluster]] for cluster in order]
    pieces += [groups[cluster][cuts[cluster] :] for cluster in order]
    batches = np.concatenate(pieces).reshape(-1, batch_size)
    return random.permutation(batches)


class Packing:
    """Batches of a data set, a pure function of the arguments.

    Args:
        clusters: The cluster of each pair; a cluster lies in one source.
        sources: The source of each pair.
        documents: Surrogate embeddings, for the tour; read once, source by source.
        config: How to pack.

    Raises:
        CorpusError: A source has fewer pairs than a batch.
    """

    def __init__(
        self,
        clusters: Int64[np.ndarray, " pairs"],
        sources: Sequence[str],
        documents: Float[np.ndarray, "pairs dim"],
        config: PackingConfig,
    ) -> None:
        self._config = config
        self._names, source_of = np.unique(np.asarray(sources), return_inverse=True)
        self._rows = [np.flatnonzero(source_of == number) for number in range(len(self._names))]
        for name, rows in zip(self._names.tolist(), self._rows, strict=True):
            if len(rows) < config.batch_size:
                raise CorpusError(
                    f"Expected {config.batch_size} pairs or more (a batch) of each source, found {len(rows)} of "
                    f"{name!r}. Leave that source out, join it to another, or choose smaller batches."
                )
        self._clusters = [np.unique(clusters[rows], return_inverse=True)[1].astype(np.int64) for rows in self._rows]
        self._centroids = [
            centroids_of(documents[rows].astype(np.float32), held) if config.order == "tour" else None
            for rows, held in zip(self._rows, self._clusters, strict=True)
        ]

    @property
    def per_epoch(self) -> int:
        """Number of batches of an epoch over all sources."""
        return sum(len(rows) // self._config.batch_size for rows in self._rows)

    def epoch(self, number: int) -> Int64[np.ndarray, "batches batch_size"]:
        """Return one epoch's batches of pair positions, sources mixed; less than a batch per source is left out."""
        batches = np.concatenate([self._source(source, number) for source in range(len(self._rows))])
        return np.random.default_rng([self._config.seed, number]).permutation(batches)

    def sampled(self, start: int = 0) -> Iterator[Int64[np.ndarray, " batch_size"]]:
        """Yield batches without end, each of a source that is drawn with probability ∝ pairs^α.

        A source goes through its own epochs: each of its pairs once, then packed again.

        Args:
            start: The first update; those before it are skipped, for a run that resumes.

        Source: Li et al. 2023 (GTE) eq. 4.
        """
        weights = np.array([len(rows) for rows in self._rows], dtype=np.float64) ** self._config.source_exponent
        random = np.random.default_rng(self._config.seed)
        visits = [0] * len(weights)
        packed: dict[int, tuple[int, np.ndarray]] = {}
        for update in count():
            source = int(random.choice(len(weights), p=weights / weights.sum()))
            epoch, place = divmod(visits[source], len(self._rows[source]) // self._config.batch_size)
            visits[source] += 1
            if update < start:
                continue
            if source not in packed or packed[source][0] != epoch:
                packed[source] = epoch, self._source(source, epoch)
            yield packed[source][1][place]

    def batches(self, start: int = 0) -> Iterator[Int64[np.ndarray, " batch_size"]]:
        """Yield batches without end: `sampled`, but for α = 1 complete epochs, one after the other.

        Args:
            start: The first update wanted.
        """
        if self._config.source_exponent != 1:
            yield from self.sampled(start)
        first, place = divmod(start, self.per_epoch)
        for number in count(first):
            yield from self.epoch(number)[place if number == first else 0 :]

    def _source(self, source: int, epoch: int) -> Int64[np.ndarray, "batches batch_size"]:
        clusters, centroids = self._clusters[source], self._centroids[source]
        random = np.random.default_rng([self._config.seed, epoch, *str(self._names[source]).encode()])
        number = int(clusters.max()) + 1
        if centroids is None:
            order = random.permutation(number)
        else:
            order = greedy_tour(centroids, start=int(random.integers(number)))
        return self._rows[source][pack(clusters, order, batch_size=self._config.batch_size, random=random)]


def difficulty(
    batches: Int64[np.ndarray, "batches batch_size"],
    queries: Float32[np.ndarray, "pairs dim"],
    documents: Float32[np.ndarray, "pairs dim"],
) -> Float32[np.ndarray, " batches"]:
    """Compute the mean surrogate score of a query with the other documents of its batch; NaN for batches of one.

    Args:
        batches: Positions of pairs.
        queries: Surrogate embeddings, unit norm.
        documents: Surrogate embeddings, unit norm; row i belongs to query i.

    Source: paper figure 6.
    """
    size = batches.shape[1]
    sums = [queries[batch].sum(axis=0) @ documents[batch].sum(axis=0) for batch in batches]
    own = [(queries[batch] * documents[batch]).sum() for batch in batches]
    with np.errstate(invalid="ignore"):
        return (np.array(sums, dtype=np.float32) - np.array(own, dtype=np.float32)) / np.float32(size * (size - 1))
