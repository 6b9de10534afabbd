"""Positions by code, looked up without a search."""

import numpy as np
from jaxtyping import Int64


class Groups:
    """The positions of each code.

    Args:
        codes: Of each position; below 0: of no group.

    Attributes:
        sizes: Positions of each code, up to the highest.

    Example:
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
        """The positions of one code, ascending. A view: not to be written to."""
        end = self._ends[code]
        return self._order[end - self.sizes[code] : end]
