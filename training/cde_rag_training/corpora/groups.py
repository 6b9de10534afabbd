"""Inverted index from codes to positions."""

import numpy as np
from jaxtyping import Int64


class Groups:
    """Inverted index from codes to positions.

    Args:
        codes: Code of each position; negative: no group.

    Attributes:
        sizes: Number of positions of each code, up to the highest.

    Examples:
        >>> groups = Groups(np.array([1, 0, -1, 1]))
        >>> groups.of(1).tolist(), groups.sizes.tolist()
        ([0, 3], [1, 2])
    """

    sizes: Int64[np.ndarray, " codes"]

    def __init__(self, codes: Int64[np.ndarray, " positions"]) -> None:
        order = np.argsort(codes, kind="stable")
        self._order = order[np.count_nonzero(codes < 0) :]
        self.sizes = np.bincount(codes[self._order])
        self._ends = self.sizes.cumsum()

    def of(self, code: int) -> Int64[np.ndarray, " group"]:
        """Return the positions of one code, ascending, as a view that must not be written to."""
        end = self._ends[code]
        return self._order[end - self.sizes[code] : end]
