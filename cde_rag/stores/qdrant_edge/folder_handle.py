"""Folder of a store, shared by all objects of this process that use it, and locked against other processes.

The folder may be removed and restored, moved away and replaced, or get other files copied over its own, while it is
open. The engine keeps using the files that it opened and writes some of them by their path, even when it is closed. So
each call first compares the lock's file and the manifest with those that this process opened or wrote, and raises where
they are others; the engine is then left as it is until the process ends. On Windows the files of an open store can be
neither removed nor replaced.
"""

import contextlib
import os
import threading
import weakref
from pathlib import Path
from typing import Final, TypeAlias

from cde_rag._files import fsync_folder
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.files import check_folder, check_path, keep_alive, locked
from cde_rag.stores.qdrant_base.locks import ReadWriteLock
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_edge.shard import EdgeShard
from cde_rag.stores.qdrant_edge.shard_generations import MANIFEST, load, save, shard_of
from cde_rag.stores.qdrant_edge.verify import changed_files, write_checksums

LOCK: Final = "cde.lock"
_CHECKSUMS: Final = "shard.json"
_COMPARED: Final = 2**26  # bytes of the largest file that is read to be compared whenever the store is opened


class FolderHandle:
    """Handle of a folder: its locks, and the engine while an object of this process uses it.

    Attributes:
        folder: Folder of the store.
        read_write_lock: Lock of all its users.
        shaping: Lock for building indexes, or for replacing the engine with the right to write. A build takes minutes,
            so that nobody waits for it with that right.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_write_lock = ReadWriteLock()
        self.shaping = threading.Lock()
        self._users: set[int] = set()
        self._changing = threading.RLock()
        self._process = os.getpid()
        self._engine: EdgeShard | None = None
        self._lock = contextlib.ExitStack()
        self._opened: tuple[_File | None, ...] | None = None  # what is at the path, as this process left it

    @property
    def checksums(self) -> Path:
        """The file with checksums of the engine's files."""
        return self.folder / _CHECKSUMS

    @property
    def is_open(self) -> bool:
        """True if an object of this process uses it."""
        return self._engine is not None

    def lock(self, user: int) -> None:
        """Keep all other processes from it, until `leave`.

        Raises:
            StoreError: Another process uses it, or the folder cannot be written.
        """
        with self._changing:
            if self._engine is not None and self._process != os.getpid():
                hint = "Close it before the fork, and open it in one process."
                raise StoreError(f"{self.folder}: expected the process that opened it, found a fork of it. {hint}")
            check_folder(self.folder)
            if not os.access(self.folder, os.W_OK):
                hint = "The engine writes its log even to read. Copy it to where it can be written."
                raise StoreError(f"{self.folder}: expected a folder that can be written, found one that cannot. {hint}")
            if not self._users:
                hint = "Close it there, or use a Qdrant server or a FaissStore for several processes"
                taken = f"{self.folder}: another process has this store open. {hint}"
                self._lock.enter_context(locked(self.folder / LOCK, taken))
                self._process = os.getpid()
                self._touch()
            self.check()
            self._users.add(user)

    def open(self, user: int) -> EdgeShard:
        """Return the engine, and open it if necessary.

        Raises:
            StoreError: There is no store, another process uses it, or the folder cannot be written.
            StoreFormatError: A file changed since the store was closed.
        """
        with self._changing:
            new = user not in self._users
            if new or self._engine is None or self._process != os.getpid():
                self.lock(user)
            self.check()
            try:
                if self._engine is None:
                    self._engine = self._loaded()
                    self._engine.on_write = self._touch
            except BaseException:
                if new:
                    self.leave(user)
                raise
            return self._engine

    def save(self, manifest: PointsManifest) -> None:
        """Replace the manifest.

        Raises:
            StoreError: Another store is at the path.
        """
        with self._changing:
            self.check()
            save(self.folder, manifest)
            self._opened = self._found()

    def use(self, engine: EdgeShard | None) -> None:
        """Close the engine and use another, or none. The caller holds all locks."""
        with self._changing:
            old, self._engine = self._engine, engine
            if engine is not None:
                engine.on_write = self._touch
            if old is not None:
                self._close(old)

    def leave(self, user: int) -> None:
        """Close the engine unless other objects use it."""
        with self._changing:
            self._users.discard(user)
            if self._users or self._process != os.getpid():  # after a fork, the parent has it open
                return
            with self._lock:
                if self._engine is not None:
                    engine, self._engine = self._engine, None
                    if self._close(engine):
                        with contextlib.suppress(OSError):  # without checksums it is a store all the same
                            write_checksums(engine.folder, self.checksums)
                self._opened = None

    def check(self) -> None:
        """Refuse another store at the path than the one that is open, if one is.

        Raises:
            StoreError: It is another, or none.
        """
        with self._changing:  # another thread may be replacing the manifest
            if self._opened not in (None, self._found()):
                raise StoreError(
                    f"{self.folder}: expected the files that this process opened, found others in their place, or "
                    "none. Nothing more is read or written. Close this store, and open the one that is there now; "
                    "restore a copy into an empty folder, not over an open store."
                )

    def _touch(self) -> None:
        """Give the manifest the time of this opening or write: an earlier copy that keeps times has another one."""
        with self._changing:
            if self._opened in (None, self._found()):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self.folder / MANIFEST)
                self._opened = self._found()

    def _found(self) -> "tuple[_File | None, ...]":
        return _file(self.folder / LOCK, content=False), _file(self.folder / MANIFEST, content=True)

    def _close(self, engine: EdgeShard) -> bool:
        """Close an engine, unless it would write into another store; returns True if it was closed."""
        if self._opened != self._found():
            keep_alive(engine)
            return False
        engine.close()
        return True

    def _loaded(self) -> EdgeShard:
        shard = shard_of(self.folder, load(self.folder))
        for damage in changed_files(shard, self.checksums, most=_COMPARED):
            raise StoreFormatError(f"{self.folder / damage.where}: {damage.found} Restore a copy.")
        self.checksums.unlink(missing_ok=True)
        fsync_folder(self.folder)
        return EdgeShard.load(shard)


_File: TypeAlias = tuple[int, ...]


def _file(path: Path, *, content: bool) -> _File | None:
    """Return device and inode of a file, plus size and time if its content matters; None if there is no file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino, *((found.st_size, found.st_mtime_ns) if content else ()))


_handles: weakref.WeakValueDictionary[Path, FolderHandle] = weakref.WeakValueDictionary()
_handles_lock = threading.Lock()


def handle_of(folder: Path) -> FolderHandle:
    """Return the handle shared by all objects of this process that use that folder.

    Raises:
        StoreError: The path holds a NUL.
    """
    check_path(folder)
    with _handles_lock:
        resolved = folder.resolve()
        place = _handles.get(resolved)
        if place is None:
            place = _handles[resolved] = FolderHandle(folder)
        return place
