"""Files: their digests, and writing them so that a crash leaves the old content or the new one, complete."""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cde_rag.errors import CDEError, StoreError


def open_file(path: Path) -> BinaryIO:
    """Open a file of a folder of ours for reading: a model's, a store's or the cache's.

    Raises:
        OSError: It is missing or not readable, or no file: a FIFO or device would block for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path) -> bytes:
    """Read a file of a folder of ours; raises like `open_file`."""
    with open_file(path) as file:
        return file.read()


def user_path(place: str | Path) -> Path:
    """Return the path that a user names; `~` and `~name` at its begin are home folders, as in a shell."""
    return Path(os.path.expanduser(place))  # noqa: PTH111 - Path.expanduser fails where there is no such user


def given_path(place: str | Path, name: str, error: type[CDEError] = StoreError) -> Path:
    """Return the path that a user names as an argument; an empty or blank one, often of unset variables, is refused.

    Args:
        place: Argument of the caller.
        name: Name of the argument at the start of the message, such as "The folder of the backup".
        error: Class of the error.

    Raises:
        CDEError: `place` is an empty string, which would be the present folder, or a blank one; of the class `error`.
    """
    if isinstance(place, str) and not place.strip():
        raise error(f"{name} is an empty path. Is a variable unset? (The present folder is '.'.)")
    return user_path(place)


def file_sha256(path: Path) -> str:
    """Compute the sha256 of a file's bytes, in hex; raises like `open_file`."""
    found = hashlib.sha256()
    with open_file(path) as file:
        while piece := file.read(2**20):
            found.update(piece)
    return found.hexdigest()


def written(path: Path) -> tuple[int, int, int, int]:
    """Return device, inode, size in bytes and modification time in nanoseconds of a file, to detect changes.

    Raises:
        OSError: There is no such file.
    """
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "nt":  # Windows cannot open folders; its file systems journal renames
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary path whose file takes the place of `path`, durably, when the block ends without an error.

    Raises:
        OSError: The folder is missing or not writable, or has no space.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: after a crash the old content or the new one is there, complete."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
