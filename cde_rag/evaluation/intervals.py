"""Confidence intervals for differences between two systems: a paired bootstrap over queries, and over sets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

DRAWS = 10_000
CONFIDENCE = 0.95
_AT_ONCE = 2_000_000  # cells of one array of drawn blocks


@dataclass(frozen=True, slots=True)
class PairedQueries:
    """Paired results of two systems on the queries of one set.

    Attributes:
        differences: One system's metric minus the other's, each averaged over context seeds first.
        blocks: A number for each query, the same for queries that are not independent of each other.
    """

    differences: Float64[np.ndarray, " queries"]
    blocks: Int64[np.ndarray, " queries"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference with 95 % intervals; fractions.

    Attributes:
        mean: Per set the mean over queries, then the mean over sets.
        queries: Interval for these sets: their queries are resampled, in blocks. -1 … 1, the full range, if each set
            has a single block: its resamples are all equal and give no information.
        sets: Interval for unseen corpora: the sets are resampled too. None for a single set.
    """

    mean: float
    queries: tuple[float, float]
    sets: tuple[float, float] | None


def compare(sets: Sequence[PairedQueries], *, draws: int = DRAWS, seed: int = 0) -> Difference:
    """Compute the difference between two systems over some sets, with both intervals.

    Args:
        sets: At least one, each with at least one query.
        draws: Number of bootstrap samples.
        seed: Random seed of the draws.

    Source: Efron & Tibshirani (1993), the percentile interval; blocks and sets as in the design, §10.

    Examples:
        >>> sure = PairedQueries(np.full(4, 0.25), np.arange(4))
        >>> compare([sure])
        Difference(mean=0.25, queries=(0.25, 0.25), sets=None)
    """
    mean = float(np.mean([one.differences.mean() for one in sets]))
    same_sets = np.tile(np.arange(len(sets)), (draws, 1))  # (draws, sets): which set each place of a draw holds
    drawn_sets = np.random.default_rng([seed, 0]).integers(len(sets), size=(draws, len(sets)))
    told = any(len(np.unique(one.blocks)) > 1 for one in sets)
    return Difference(
        mean=mean,
        queries=_interval(_draw(sets, same_sets, np.random.default_rng([seed, 1]))) if told else (-1.0, 1.0),
        sets=_interval(_draw(sets, drawn_sets, np.random.default_rng([seed, 2]))) if len(sets) > 1 else None,
    )


def _draw(
    sets: Sequence[PairedQueries], places: Int64[np.ndarray, "draws sets"], rng: np.random.Generator
) -> Float64[np.ndarray, " draws"]:
    """Compute for each draw the mean over its sets; a set drawn twice is resampled independently."""
    means = np.empty(places.shape)
    for number, one in enumerate(sets):
        held = places == number
        means[held] = _block_means(one, int(held.sum()), rng)
    return means.mean(axis=1)


def _block_means(one: PairedQueries, draws: int, rng: np.random.Generator) -> Float64[np.ndarray, " draws"]:
    """Compute means over the queries of blocks drawn with replacement, as many as the set has."""
    _, block = np.unique(one.blocks, return_inverse=True)
    sizes = np.bincount(block)  # (blocks,) queries
    sums = np.bincount(block, weights=one.differences)  # (blocks,)
    step = max(1, _AT_ONCE // len(sizes))
    means = np.empty(draws)
    for start in range(0, draws, step):
        drawn = rng.integers(len(sizes), size=(min(step, draws - start), len(sizes)), dtype=np.int32)  # (draws, blocks)
        means[start : start + step] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return means


def _interval(means: Float64[np.ndarray, " draws"]) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
