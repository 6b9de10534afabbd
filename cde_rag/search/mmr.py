"""Maximal marginal relevance: selection of hits near the query and unlike each other."""

import numpy as np
from jaxtyping import Float32


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
