"""Files: their digests, and writing them so that a crash leaves the old content or the new one, complete."""

import hashlib
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def user_path(place: str | Path) -> Path:
    """Return the path that a user names; `~` and `~name` at its begin are home folders, as in a shell."""
    return Path(os.path.expanduser(place))  # noqa: PTH111 - Path.expanduser fails where there is no such user


def file_sha256(path: Path) -> str:
    """Compute the sha256 of a file's bytes, in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
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
