"""One ranking of several."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

CONSTANT: Final = 60  # ranks; Cormack et al. (2009)


def reciprocal_ranks(rankings: Sequence[Sequence[str]]) -> dict[str, float]:
    """What each id gets of all rankings: of each that it is in, 1 / (60 + its rank there, from 1 on).

    Returns:
        In the order in which they come, one ranking after the other.

    Source: Cormack, Clarke & Büttcher (2009).

    Example:
        >>> reciprocal_ranks([["a", "b"], ["b"]])["b"] == 1 / 62 + 1 / 61
        True
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, id_ in enumerate(ranking, start=1):
            sums[id_] += 1 / (CONSTANT + rank)
    return dict(sums)
