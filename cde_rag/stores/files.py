"""The folder of a store: checks of its path, and files that survive a power failure."""

import contextlib
import ctypes
import os
import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from cde_rag._files import fsync_folder, open_file
from cde_rag.errors import StoreError

# On these, SQLite's locks and the memory that its processes share do not hold. Source: sqlite.org/wal.html, overview
_NETWORK: Final = re.compile(
    r"(fuse\.)?(afs|beegfs|ceph|cifs|davfs2?|gcsfuse|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|rclone|s3fs"
    r"|smb3|smbfs|sshfs)"
)
TENANTS: Final = "tenants"  # folder in a collection's, of the collections of its tenants
MARKERS: Final = {"faiss": "collection.sqlite", "qdrant": "cde.json"}  # a file in every folder of that kind
_MOUNTS: Final = Path("/proc/self/mounts")
_PIECE: Final = 2**20  # bytes


def check_folder(folder: Path) -> None:
    """Refuse paths that cannot be the folder of a store.

    Raises:
        StoreError: Its name holds a NUL, it is a file, or is on a network file system (detected on Linux only).
    """
    check_path(folder)
    if folder.exists() and not folder.is_dir():
        raise StoreError(
            f"{folder}: expected a folder (a store is a folder of files), found a file. Give another path."
        )
    kind = _filesystem(folder, os.fsdecode(_MOUNTS.read_bytes())) if _MOUNTS.exists() else ""
    if _NETWORK.fullmatch(kind):
        reason = "its locks and shared memory do not hold between machines"
        raise StoreError(
            f"{folder}: expected a local file system, found {kind}; {reason}. Put the store on a local disk."
        )


def check_path(path: Path) -> None:
    """Refuse a path that no file system has.

    Raises:
        StoreError: It holds a NUL.
    """
    if "\0" in str(path):
        raise StoreError(f"{str(path)!r}: expected a path, found a NUL character in it.")


def check_outside(path: Path, *, own: Path | None = None) -> None:
    """Refuse a path inside the folder of a collection, which would be lost with it, and not be in its backups.

    Args:
        path: Of a file or folder that is to be written.
        own: Folder of the collection that is copied there, of whatever kind; None if it is in none.

    Raises:
        StoreError: It is inside the folder of a collection, or holds a NUL.
    """
    check_path(path)
    path = path.resolve()
    for folder in path.parents:
        if (own is not None and folder == own.resolve()) or any((folder / name).exists() for name in MARKERS.values()):
            raise StoreError(
                f"{path}: expected a path outside of collections, found it in the folder of one, {folder}. Give "
                f"another path, such as {folder.parent / path.name}."
            )


def check_store_outside(folder: Path) -> None:
    """Refuse a folder for a new store inside that of another collection; a tenant's is where its collection keeps it.

    Raises:
        StoreError: It is inside the folder of another collection.
    """
    place = folder.resolve()
    check_outside(place.parents[1] if place.parent.name == TENANTS else place)


def check_new(folder: Path, *, first: str, others: "re.Pattern[str]") -> None:
    """Refuse a folder with other files, or in another collection's; files left by an interrupted creation are allowed.

    Args:
        folder: Folder of the store to create.
        first: Name of the file that a creation writes first.
        others: Names of the files it writes after that.

    Raises:
        StoreError: It holds a file that does not belong to a store, or is inside the folder of another collection.
    """
    check_store_outside(folder)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    begun = first in names
    if foreign := [name for name in names if not (begun and (name == first or others.fullmatch(name)))]:
        raise StoreError(
            f"{folder}: expected no folder, or an empty one, for a new store; found {foreign[0]!r} in it"
            f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''}. Give a path of its own."
        )


def _filesystem(path: Path, mounts: str) -> str:
    r"""Return the type of the file system that `path` is or would be on, by a table in the form of /proc/mounts.

    Examples:
        >>> _filesystem(Path("/mnt/my disk/papers"), "/dev/a / ext4 rw 0 0\nhost:/b /mnt/my\\040disk nfs4 rw 0 0\n")
        'nfs4'
    """
    place = path.resolve()
    found, kind = Path("/"), ""
    for line in mounts.splitlines():
        _, point, type_, *_ = line.split(" ")
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        if place.is_relative_to(mounted) and mounted.is_relative_to(found):
            found, kind = mounted, type_
    return kind


def write_new(path: Path, data: bytes) -> None:
    """Write a file that nothing refers to yet, not atomically; it and its name are on the disk when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(path.parent)


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably; after a crash the old or the new file is there, complete.

    The caller holds the store's lock, so that the new file has one name, which `check_new` knows and the next call
    overwrites. Contexts are saved without a lock: `cde_rag._files.write_durably` gives each call a name.
    """
    new = path.with_name(f"{path.name}.new")
    write_new(new, data)
    new.replace(path)
    fsync_folder(path.parent)


def copy_durably(folder: Path, copy: Path) -> None:
    """Copy a folder without concurrent writers; holes in files stay holes. Durable when this returns.

    Raises:
        StoreError: It holds a link, whose target may be anybody's.
    """
    copy.mkdir()
    for path in folder.iterdir():
        check_no_link(path)
        if path.is_dir():
            copy_durably(path, copy / path.name)
            continue
        with open_file(path) as source, (copy / path.name).open("wb") as target:
            for start, piece in pieces(source):
                target.seek(start)
                target.write(piece)
            target.truncate(os.fstat(source.fileno()).st_size)
            target.flush()
            os.fsync(target.fileno())
    fsync_folder(copy)


def check_no_link(path: Path) -> None:
    """Refuse a symbolic link.

    Raises:
        StoreError: It is one.
    """
    if path.is_symlink():
        raise StoreError(
            f"{path}: expected a file or folder, found a link to {path.readlink()}. Links are not followed. Put a "
            "copy of the target in its place, or remove it."
        )


def pieces(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield a file's pieces with their positions, without pieces of zeros, be they holes or not."""
    size, start = os.fstat(file.fileno()).st_size, 0
    while start < size:
        if hasattr(os, "SEEK_DATA"):
            try:
                start = os.lseek(file.fileno(), start, os.SEEK_DATA) // _PIECE * _PIECE
            except OSError:  # a hole up to the end
                return
        file.seek(start)
        piece = file.read(_PIECE)
        if piece.count(0) != len(piece):
            yield start, piece
        start += _PIECE


@contextmanager
def locked(path: Path, taken: str, *, wait_s: float = 0.0) -> Generator[None, None, None]:
    """Hold a lock among all processes and threads; it is released with the block, or with the process.

    Args:
        path: Path of the lock's file: an empty SQLite file, whose locks work alike on all systems.
        taken: Error message if another holds it.
        wait_s: Seconds to wait for another to release it.

    Raises:
        StoreError: Another holds it, or its folder is not writable.
    """
    try:
        connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise StoreError(f"{path}: expected to write it, found: {error}.") from error
    with contextlib.closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise StoreError(f"{taken} ({error}).") from error
        yield


def keep_alive(*objects: object) -> None:
    """Keep objects alive past the end of the interpreter, for those that would write files when they end."""
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
