"""Checksum of a complete file in its own footer."""

import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO, Final

from cde_rag.errors import StoreError, StoreFormatError

BLANK: Final = "0" * 64  # what stands for the digest while it is computed
_INTEGRITY: Final = re.compile(rb'\{"integrity":"([0-9a-f]{64})",')
_PIECE: Final = 2**20  # bytes


def seal(path: Path) -> None:
    """Write the digest of a file that has zeros in its place into its footer, durably."""
    with path.open("r+b") as file:
        place = _place_of_integrity(file, path)
        digest = _digest(file, place)
        file.seek(place)
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def checked_integrity(path: Path) -> bytes:
    """Verify the digest in a file's footer, and return it.

    Raises:
        StoreFormatError: The digest is wrong or missing.
    """
    try:
        with path.open("rb") as file:
            place = _place_of_integrity(file, path)
            file.seek(place)
            stated, found = file.read(len(BLANK)), _digest(file, place)
    except OSError as error:
        raise StoreError(f"{path}: not readable ({error.strerror}).") from error
    if found != stated:
        raise unreadable(path, "a file that was truncated or changed: its sha256 is another")
    return stated


def _place_of_integrity(file: BinaryIO, path: Path) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > size - 12:
        raise unreadable(path, "no footer of Parquet: truncated, or something else")
    start = file.seek(size - 8 - length)
    found = _INTEGRITY.search(file.read(length))
    if found is None:
        raise unreadable(path, "no integrity in its footer: another's Parquet file, which cde-rag index reads")
    return start + found.start(1)


def _digest(file: BinaryIO, place: int) -> bytes:
    """Compute the sha256 of the file with zeros in place of the digest."""
    digest, file_end = hashlib.sha256(), file.seek(0, os.SEEK_END)
    for start, end, blank in ((0, place, b""), (place + len(BLANK), file_end, BLANK.encode())):
        digest.update(blank)
        file.seek(start)
        while start < end:
            piece = file.read(min(_PIECE, end - start))
            digest.update(piece)
            start += len(piece)
    return digest.hexdigest().encode()


def unreadable(path: Path, found: str) -> StoreFormatError:
    """Return the error for a damaged export."""
    return StoreFormatError(f"{path}: expected an intact export of a collection, found {found}. Restore a copy.")
