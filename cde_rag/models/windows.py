"""Windows of a long text: consecutive parts that a model reads completely, and one vector of theirs."""

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from jaxtyping import Float32

CHARACTERS_A_TOKEN: Final = 8  # of what is tokenized at first to find a window's end; more if all of that is read
_WORD: Final = re.compile(r"\S")


def cut_into_windows(text: str, reach: Callable[[str], int], max_length: int) -> list[str]:
    """Cut a text into windows, one after another, which end between words where there are any.

    Takes linear time in the length of the text. White space between two windows belongs to neither.

    Args:
        text: A text that is not blank.
        reach: Returns the number of characters that the model reads of a text, from its start.
        max_length: Tokens that it reads.
    """
    found: list[str] = []
    start = 0
    while (word := _WORD.search(text, start)) is not None:
        start, end = word.start(), _end(text, word.start(), reach, CHARACTERS_A_TOKEN * max_length)
        found.append(text[start:end])
        start = end
    return found


def _end(text: str, start: int, reach: Callable[[str], int], shown: int) -> int:
    """Return the end of the window that begins at `start`."""
    while (read := reach(text[start : start + shown])) >= shown:
        shown *= 2
    end = start + read
    if end >= len(text) or text[end].isspace():
        return end
    for place in range(end - 1, start + read // 2, -1):
        if text[place].isspace():
            return place
    return max(end, start + 1)


def pool_windows(
    vectors: Float32[np.ndarray, "windows dim"], tokens: Sequence[int], starts: Sequence[int]
) -> Float32[np.ndarray, "texts dim"]:
    """Pool the vectors of windows: the mean, weighted by tokens, brought to unit length.

    Args:
        vectors: Unit vectors of all windows, those of one text one after another.
        tokens: Number of tokens of each.
        starts: Row of each text's first window.

    Returns:
        Unit norm. The vector of a text with one window is the same to the bit; that of windows whose mean is zero is
        the first one's.
    """
    if len(starts) == len(vectors):  # each text is one window
        return vectors
    weights = np.asarray(tokens, dtype=np.float32)[:, None]
    sums: Float32[np.ndarray, "texts dim"] = np.add.reduceat(vectors * weights, starts, axis=0)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    alone = np.diff([*starts, len(vectors)])[:, None] == 1
    first = vectors[list(starts)]
    return np.where(alone | (norms < 1e-6), first, sums / np.maximum(norms, 1e-6)).astype(np.float32)
