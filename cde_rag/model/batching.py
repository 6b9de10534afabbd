"""Batches of texts of similar length, so that little is computed for padding."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int64


def length_buckets(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield positions of at most `size` texts at a time, longest texts first, so that lack of memory shows at once."""
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    for start in range(0, len(order), size):
        yield order[start : start + size]


def padded(
    rows: Sequence[Sequence[int]],
) -> tuple[Int64[np.ndarray, "batch tokens"], Bool[np.ndarray, "batch tokens"]]:
    """Pad token ids on the right with 0; return them with a mask that is True if there is a token."""
    width = max(map(len, rows))
    ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.bool_)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = True
    return ids, mask
