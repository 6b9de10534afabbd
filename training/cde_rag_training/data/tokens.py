"""Texts as token ids, row after row, in two plain arrays that can be memory-mapped."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64, UInt16, UInt32


class TokenRows:
    """Texts as token ids.

    Args:
        ids: The token ids of all texts, one text after the other, special tokens included.
        starts: Where each text starts, and the end of the last.

    Examples:
        >>> rows = TokenRows(np.array([101, 7592, 102, 101, 102], dtype=np.uint16), np.array([0, 3, 5]))
        >>> len(rows), rows[1], rows.lengths.tolist()
        (2, [101, 102], [3, 2])
    """

    def __init__(
        self,
        ids: UInt16[np.ndarray, " tokens"] | UInt32[np.ndarray, " tokens"],
        starts: Int64[np.ndarray, " texts_and_end"],
    ) -> None:
        self.ids, self.starts = ids, starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int | np.integer) -> list[int]:
        """Return the token ids of one text.

        Raises:
            IndexError: There is no such row; rows are counted from 0, never from the end, where -1 says "none".
        """
        if not 0 <= row < len(self):
            raise IndexError(f"Expected a text row from 0 to {len(self) - 1}, found {row}.")
        return self.ids[self.starts[row] : self.starts[row + 1]].tolist()

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        """Tokens of each text."""
        return np.diff(self.starts)


def id_type(vocabulary: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type for token ids: two bytes for up to 65 536 of them.

    Args:
        vocabulary: One more than the highest id.
    """
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32


def token_rows(texts: Iterable[Sequence[int]], *, vocabulary: int) -> TokenRows:
    """Concatenate token ids into rows, in memory.

    Args:
        texts: The token ids of each text.
        vocabulary: One more than the highest id.
    """
    parts = [np.asarray(ids, dtype=id_type(vocabulary)) for ids in texts]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=id_type(vocabulary))
    return TokenRows(ids, np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()]))
