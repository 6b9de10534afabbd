"""Exact search: the rows with the highest dot products, as if every product were computed in float64.

Products of float32 vectors computed in float32 are off by less than a small bound, so the k best rows are among those
whose float32 score comes within that of the k-th; only these are scored again, in float64, each row by itself. Equal
vectors get equal scores wherever they lie.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from jaxtyping import Float32, Float64, Int64

from cde_rag.stores.faiss.vectors import BLOCK_ROWS, VectorBlocks

_SCORES: Final = 2**24  # scores in memory at once: 64 MiB
_WHOLE: Final = 4  # where more than one row in so many counts, whole blocks are scored: copying rows costs more


def candidates(
    vectors: VectorBlocks, queries: Float32[np.ndarray, "queries dim"], k: int, rows: Int64[np.ndarray, "rows"] | None
) -> Iterator[Int64[np.ndarray, "_"]]:
    """Yield, for each query, the rows that can be among its k best.

    Args:
        vectors: Vectors to search.
        queries: Unit vectors.
        k: Number of hits wanted.
        rows: Rows to search among, ascending; None for all.
    """
    count = len(vectors) if rows is None else len(rows)
    whole = rows is None or count > len(vectors) // _WHOLE
    scored = len(vectors) if whole else count
    slack = 2 * queries.shape[1] * np.finfo(np.float32).eps  # of two scores, each off by at most dim · eps / 2; doubled
    at_once = max(1, _SCORES // max(1, scored))
    for first in range(0, len(queries), at_once):
        some = queries[first : first + at_once]
        scores = np.empty((len(some), scored), np.float32)
        start = 0
        for block in _blocks(vectors, None if whole else rows):
            scores[:, start : start + len(block)] = (block @ some.T).T
            start += len(block)
        for line in scores if rows is None or not whole else scores[:, rows]:
            least = -np.inf if k >= count else np.partition(line, count - k)[count - k] - slack
            near = np.flatnonzero(line >= least)
            yield near if rows is None else rows[near]


def exact_scores(
    vectors: VectorBlocks, rows: Int64[np.ndarray, "rows"], query: Float32[np.ndarray, "dim"]
) -> Float64[np.ndarray, "rows"]:
    """Compute dot products of rows with a query in float64; a row's score depends on that row alone."""
    scores = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK_ROWS):
        some = slice(start, start + BLOCK_ROWS)
        scores[some] = (vectors.take(rows[some]) * query.astype(np.float64)).sum(axis=1)
    return scores


def _blocks(vectors: VectorBlocks, rows: Int64[np.ndarray, "rows"] | None) -> Iterator[Float32[np.ndarray, "some dim"]]:
    """Yield the rows, block by block of the file."""
    if rows is None:
        for number in range(vectors.blocks):
            yield vectors.block(number)
        return
    for some in np.split(rows, np.flatnonzero(np.diff(rows // BLOCK_ROWS)) + 1):
        yield vectors.take(some)
