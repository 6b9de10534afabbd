"""Fusion of a ranking by vectors and one by BM25, convex or by reciprocal ranks; maximal marginal relevance (MMR)."""

from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypeVar, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_number

Key = TypeVar("Key", bound=Hashable)
Scored: TypeAlias = Sequence[tuple[str, float]]
"""Ids and scores of the hits of one query, best first."""

Ranking: TypeAlias = Literal["hybrid", "vectors", "bm25", "words"]
"""Values of `by` in a search: both rankings fused, one of them, or "words", another name for "bm25"."""

Fusion: TypeAlias = Literal["convex", "reciprocal_ranks"]
"""Ways to fuse; see `fuse`."""

RANKINGS: Final = ("hybrid", "vectors", "bm25")
CANDIDATES: Final = 100  # hits of each side that are fused; the weights below were chosen with as many
CONSTANT: Final = 60  # ranks; Cormack et al. (2009)
WEIGHTS: Final[Mapping[str, float]] = {"convex": 0.65, "reciprocal_ranks": 0.5}  # lab/pages/fusion.md


def ranking_of(by: str) -> Ranking:
    """Return the ranking that a value of `by` names: "bm25" for "words", else the value.

    Raises:
        ValueError: There is no such ranking.
    """
    found = "bm25" if by == "words" else by
    if found not in RANKINGS:
        raise ValueError(f"by={by!r} is no ranking. Write one of {', '.join(RANKINGS)}.")
    return cast(Ranking, found)


def fuse(
    vectors: Sequence[tuple[Key, float]],
    words: Sequence[tuple[Key, float]],
    *,
    fusion: Fusion = "convex",
    weight: float | None = None,
    candidates: int = CANDIDATES,
    unknown: Container[Hashable] = frozenset(),
) -> list[tuple[Key, float]]:
    """Fuse two rankings into one, best first; equal scores are ranked by vectors first, then by words.

    A hit that is missing in one side gets 0 from it. A side of weight 0 is left out with its hits.

    Args:
        vectors: Hits by dot product, best first: an id or another key of each, and its score.
        words: Likewise hits by BM25; scores above 0.
        fusion: "convex": w times the score by vectors plus 1 − w times that by words, each side's scores brought to
            0 … 1 by min–max normalisation; if words find fewer than `candidates`, 0 stays 0. "reciprocal_ranks":
            2 w / (60 + rank by vectors) plus 2 (1 − w) / (60 + rank by words).
        weight: Weight w of the vectors, from 0 to 1; by default 0.65 for "convex", chosen on development sets, and 0.5
            for "reciprocal_ranks".
        candidates: Number of hits that were requested of each side.
        unknown: Hits by words that have no vector yet: their score by words stands for the one by vectors, too (ours).

    Raises:
        TypeError: A weight that is no number.
        ValueError: Another fusion, or a weight outside [0, 1].

    Source: Bruch, Gai & Ingber (2023) for convex combinations; Cormack, Clarke & Büttcher (2009) for reciprocal ranks.

    Examples:
        >>> fuse([("a", 1.0), ("b", 0.75), ("c", 0.5)], [("d", 6.0), ("b", 3.0)], weight=0.75)
        [('a', 0.75), ('b', 0.5), ('d', 0.25), ('c', 0.0)]
    """
    weight = check_fusion(fusion, weight)
    sums: dict[Key, float] = {}
    for share, hits, cut in ((weight, vectors, True), (1 - weight, words, len(words) >= candidates)):
        if share > 0:
            scores = [score for _, score in hits]
            shares = _min_max(scores, from_zero=not cut) if fusion == "convex" else _reciprocal(len(hits))
            for (id_, _), one in zip(hits, shares, strict=True):
                sums[id_] = sums.get(id_, 0.0) + (1.0 if id_ in unknown else share) * one
    return sorted(sums.items(), key=lambda one: -one[1])


def check_fusion(fusion: Fusion, weight: float | None) -> float:
    """Return the weight to use: the given one, or the default of the fusion.

    Raises:
        TypeError: A weight that is no number.
        ValueError: Another fusion, or a weight outside [0, 1].
    """
    if fusion not in WEIGHTS:
        raise ValueError(f"Expected a fusion among {', '.join(WEIGHTS)}, found {fusion!r}. Name one of them.")
    if weight is None:
        return WEIGHTS[fusion]
    check_number(weight, "weight")
    if not 0 <= weight <= 1:
        raise ValueError(
            f"Expected a weight of vectors from 0 (words alone) to 1 (vectors alone), found {weight!r}. Leave it out "
            f"for {WEIGHTS[fusion]}."
        )
    return float(weight)


def _min_max(scores: Sequence[float], *, from_zero: bool) -> list[float]:
    """Normalise scores to 0 … 1: the best becomes 1, the lowest (or 0) becomes 0; equal scores all become 1."""
    best, least = max(scores, default=1.0), 0.0 if from_zero else min(scores, default=0.0)
    return [(score - least) / (best - least) if best > least else 1.0 for score in scores]


def _reciprocal(count: int) -> list[float]:
    """Return 2 / (60 + rank) per rank, so that two sides of weight ½ give the sum of reciprocal ranks."""
    return [2 / (CONSTANT + rank) for rank in range(1, count + 1)]


def marginal_relevance(
    query: Float32[np.ndarray, "dim"], candidates: Float32[np.ndarray, "candidates dim"], k: int, *, diversity: float
) -> list[int]:
    """Select up to `k` candidates one by one by maximal marginal relevance; return their positions.

    Args:
        query: Unit norm.
        candidates: Unit norm.
        k: At least 1.
        diversity: Trade-off from 0 (relevance only) to 1 (diversity only).

    Raises:
        ValueError: `diversity` is outside [0, 1].

    Source: Carbonell & Goldstein 1998 (maximal marginal relevance), λ = 1 − diversity.
    """
    if not 0 <= diversity <= 1:
        raise ValueError(f"diversity must be between 0 and 1, not {diversity}")
    gains = (1 - diversity) * (candidates @ query)
    nearest_chosen = np.zeros(len(candidates), dtype=np.float32)
    chosen: list[int] = []
    while len(chosen) < min(k, len(candidates)):
        marginal = gains - diversity * nearest_chosen
        marginal[chosen] = -np.inf
        best = int(marginal.argmax())
        likeness = candidates @ candidates[best]
        nearest_chosen = likeness if not chosen else np.maximum(nearest_chosen, likeness)
        chosen.append(best)
    return chosen
