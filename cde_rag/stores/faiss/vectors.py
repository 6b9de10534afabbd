"""Append-only vector file of a generation: contiguous float32 rows, little-endian, without a header.

The rows form blocks of `BLOCK_ROWS`, each with a CRC-32 stored in SQLite; the last block's is updated by every append.
Rows that an interrupted append left after the committed ones are truncated by the next append.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag._files import fsync_folder
from cde_rag.errors import StoreFormatError

BLOCK_ROWS: Final = 1024
_FLOAT: Final = np.dtype("<f4")


class VectorFile:
    """The file at `path` with vectors of length `dim`. Safe to use from threads; one process appends at a time."""

    def __init__(self, path: Path, dim: int) -> None:
        self.path = path
        self.dim = dim
        self._checked: dict[int, int] = {}  # block → the checksum that its bytes were seen to have

    def append(self, vectors: Float32[np.ndarray, "new dim"], *, rows: int, check: Callable[[], None]) -> None:
        """Write vectors after the first `rows`, durably: they are on the disk when this returns.

        Args:
            vectors: New rows.
            rows: How many rows the file keeps.
            check: Raises where the file may be another store's; called once it is open, before it is changed.

        Raises:
            OSError: The disk is full, or the file not writable. The first `rows` are as before.
            StoreFormatError: There are fewer than `rows` rows.
        """
        with self.path.open("r+b" if rows else "ab") as file:
            check()
            self.check_size(rows)
            file.truncate(rows * self._row_bytes)
            file.seek(0, os.SEEK_END)
            file.write(np.ascontiguousarray(vectors, _FLOAT).data)
            file.flush()
            os.fsync(file.fileno())
        if rows == 0:
            fsync_folder(self.path.parent)

    def read(self, rows: int, checksums: Int64[np.ndarray, "blocks"]) -> "VectorBlocks":
        """Open the first `rows` rows, whose blocks must have these checksums.

        Raises:
            StoreFormatError: The file is shorter.
            FileNotFoundError: There is no such file.
        """
        if rows == 0:
            return VectorBlocks(self.path, np.empty((0, self.dim), np.float32), checksums, self._checked)
        self.check_size(rows)
        blocks = -(-rows // BLOCK_ROWS)
        if len(checksums) != blocks:
            raise StoreFormatError(f"{self.path}: expected checksums of {blocks} blocks, found {len(checksums)}.")
        matrix = np.memmap(self.path, _FLOAT, "r", shape=(rows, self.dim))
        return VectorBlocks(self.path, np.asarray(matrix), checksums, self._checked)

    @property
    def _row_bytes(self) -> int:
        return self.dim * _FLOAT.itemsize

    def check_size(self, rows: int) -> None:
        """Refuse a file of fewer rows.

        Raises:
            StoreFormatError: It is one.
            FileNotFoundError: There is no such file.
        """
        needed, found = rows * self._row_bytes, self.path.stat().st_size
        if found < needed:
            raise StoreFormatError(f"{self.path}: expected at least {needed} bytes, found {found}. Restore a copy.")


class VectorBlocks:
    """The committed rows of a vector file at one moment, mapped into memory.

    A block is compared with its checksum when a process first touches it, so that a flipped bit is an error, never a
    wrong score.
    """

    def __init__(
        self,
        path: Path,
        matrix: Float32[np.ndarray, "rows dim"],
        checksums: Int64[np.ndarray, "blocks"],
        checked: dict[int, int],
    ) -> None:
        self.path = path
        self._matrix = matrix
        self._checksums = checksums
        self._checked = checked

    def __len__(self) -> int:
        return len(self._matrix)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._matrix.shape[1]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self._checksums)

    def block(self, number: int) -> Float32[np.ndarray, "rows dim"]:
        """Return the rows of a block: `BLOCK_ROWS` of them, fewer in the last.

        Raises:
            StoreFormatError: The block's bytes do not have its checksum.
        """
        block = self._matrix[number * BLOCK_ROWS : (number + 1) * BLOCK_ROWS]
        wanted = int(self._checksums[number])
        if self._checked.get(number) != wanted:
            found = zlib.crc32(block.data)
            if found != wanted:
                place = f"{self.path}, block {number}"
                raise StoreFormatError(f"{place}: expected checksum {wanted:08x}, found {found:08x}. Restore a copy.")
            self._checked[number] = wanted
        return block

    def take(self, rows: Int64[np.ndarray, "taken"]) -> Float32[np.ndarray, "taken dim"]:
        """Return the given rows, in the order given.

        Raises:
            StoreFormatError: There is no such row, or a row's block does not have its checksum.
        """
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise StoreFormatError(f"{self.path}: expected rows below {len(self)}, found {rows.min()} to {rows.max()}.")
        for number in np.unique(rows // BLOCK_ROWS):
            self.block(int(number))
        return self._matrix[rows]


def extended(vectors: Float32[np.ndarray, "new dim"], *, rows: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield checksums of the blocks that an append changes, as (block, checksum).

    Args:
        vectors: Appended vectors.
        rows: Number of rows before.
        last: Checksum of the last block before, if it was not full; extended without reading the block again.
    """
    start = 0
    while start < len(vectors):
        block, filled = divmod(rows + start, BLOCK_ROWS)
        end = start + BLOCK_ROWS - filled
        yield block, zlib.crc32(vectors[start:end].astype(_FLOAT, copy=False).tobytes(), last if filled else 0)
        start = end
