"""Batches of texts of similar length, so that little is computed for padding."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from jaxtyping import Bool, Int64

from cde_rag._validation import check_positive

_STEP: Final = (
    8  # tokens: a third of the shapes, which takes less time than is lost by padding (lab/benchmarks/flat_memory.py)
)
TOKENS_AT_ONCE: Final = 2048  # where the memory of the largest batch is kept (lab/benchmarks/tokens_at_once.py)
_PASS_TOKENS: Final = 64  # a forward pass takes as long as that many tokens more (MiniLM's size, OpenVINO, two cores)


def length_buckets(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield positions of `size` texts at a time, longest texts first, so that lack of memory shows at once.

    Raises:
        TypeError: `size` is no int.
        ValueError: `size` is below 1, with which no text would be embedded.
    """
    size = check_positive(size, "mini_batch_size")
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    for start in range(0, len(order), size):
        yield order[start : start + size]


def tight_buckets(lengths: Sequence[int], size: int, tokens: int | None = None) -> Iterator[list[int]]:
    """Yield positions as `length_buckets`, cut in parts where that saves more padding than a forward pass costs.

    Args:
        lengths: Tokens of each text.
        size: Maximum texts of a bucket.
        tokens: Maximum tokens of a bucket, padding included; one text alone may have more. None: no limit.
    """
    each = np.asarray(lengths)
    for bucket in length_buckets(lengths, size):
        for part in _without_padding(np.array(bucket), each):
            yield from [part] if tokens is None else _even_parts(part, max(tokens // max(lengths[part[0]], 1), 1))


def _even_parts(bucket: list[int], most: int) -> Iterator[list[int]]:
    """Yield a bucket in as few parts of at most so many texts as there can be, of about the same size."""
    parts = -(-len(bucket) // most)
    for part in range(parts):
        yield bucket[part * len(bucket) // parts : (part + 1) * len(bucket) // parts]


def _without_padding(bucket: Int64[np.ndarray, " bucket"], lengths: Int64[np.ndarray, " texts"]) -> Iterator[list[int]]:
    """Yield a bucket, or its parts if a cut saves enough padding; longest texts first."""
    longest = lengths[bucket[0]]
    saved = np.arange(len(bucket), 0, -1) * (longest - lengths[bucket])
    cut = int(saved.argmax())
    if saved[cut] > max(_PASS_TOKENS, len(bucket) * longest // 8):
        yield from _without_padding(bucket[:cut], lengths)
        yield from _without_padding(bucket[cut:], lengths)
    else:
        yield bucket.tolist()


def padded(
    rows: Sequence[Sequence[int]], *, room: int = 0
) -> tuple[Int64[np.ndarray, "batch tokens"], Bool[np.ndarray, "batch tokens"]]:
    """Pad token ids on the right with 0; return them with a mask that is True if there is a token.

    Args:
        rows: Token ids of each text.
        room: Tokens up to which the length is rounded to a multiple of `_STEP`, for engines that compile each shape.
    """
    width = max(map(len, rows))
    width = max(width, min(-(-width // _STEP) * _STEP, room))
    ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.bool_)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = True
    return ids, mask
