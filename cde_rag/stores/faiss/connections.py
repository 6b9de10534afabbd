"""Connections of this process to one SQLite file, each bound to the file that it was opened on.

A path may come to name another file while connections are open: a folder was removed and restored, or moved away and
replaced. SQLite then reads and writes the file that it opened. Two cases are distinguished:

* Another file (inode) is at the path. Open connections are closed, which leaves the new file alone: SQLite itself
  compares the inodes before it moves a log (sqlite.org, `SQLITE_FCNTL_HAS_MOVED`).
* The same file has other content: somebody copied files over it. SQLite cannot see that, and closing a connection would
  write pages of the old content into the new one. So these connections stay open until the process ends, unused.

The marker file (`folder.MARKER`) shows the second case: it is written once, so that a copy put over it has another
inode or modification time. A copy that keeps times (`cp -a`, `rsync -a --inplace`) has the marker's time, too: SQLite's
file and log are then older than they were seen to be, by more than the clock was set back. On Windows an open SQLite
file can be neither removed nor replaced, so neither case occurs.
"""

import os
import sqlite3
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cde_rag.errors import StoreError
from cde_rag.stores.faiss.folder import MARKER
from cde_rag.stores.files import keep_alive

_JITTER_NS: Final = 10**9  # between the readings of two clocks, on a busy machine

_kept: Final = list[object]()  # what must not be closed: connections of the process that this one is a fork of


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The files that a store's path names at one moment.

    Attributes:
        file: Device and inode of the SQLite file.
        marker: Inode, modification time in nanoseconds and size of the marker file; None in stores without one.
        written: Last modification of SQLite's file, in nanoseconds.
        logged: Last modification of SQLite's log; None where there is no log.
        clock: Wall clock less the monotonic one, in nanoseconds; changes where the wall clock is set.
    """

    file: tuple[int, int]
    marker: tuple[int, int, int] | None
    written: int = field(compare=False)
    logged: int | None = field(compare=False)
    clock: int = field(compare=False)

    def overwritten_by(self, now: "FileIdentity") -> bool:
        """Return True if other content was copied over the file since this identity was taken."""
        if self.file != now.file:
            return False
        least = -abs(self.clock - now.clock) - _JITTER_NS
        logs = self.logged is not None and now.logged is not None and now.logged - self.logged < least
        return now.written - self.written < least or logs or (self.marker is not None and self.marker != now.marker)

    def same_file(self, now: "FileIdentity | None") -> bool:
        """Return True if the path still names this store."""
        return now is not None and self.file == now.file and not self.overwritten_by(now)


class Connection(sqlite3.Connection):
    """A connection to SQLite.

    Attributes:
        place: The files that it was opened on.
        process: The process that opened it.
        checked_schema: The schema version whose tables were compared with those that a store has.
    """

    place: FileIdentity | None = None
    process: int = 0
    checked_schema: int | None = None

    def __del__(self) -> None:
        """Close the connection of a store that is dropped while it is open; Python 3.13 warns of it otherwise."""
        with suppress(sqlite3.ProgrammingError):  # the file could not be opened
            self.close()


class Connections:
    """Pool of a process's connections to the file at `path`. Safe to use from threads, and after a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()
        _pools.add(self)

    def take(self, here: FileIdentity) -> Connection | None:
        """Return an idle connection to the files at `here`, or None; connections to other files are closed.

        Raises:
            StoreError: Files were copied over the store while this process had it open, or SQLite's log at the path
                belongs to the store that was there before.
        """
        self._leave_inherited()
        with self._lock:
            if any(pool.overwritten(here) for pool in _pools):
                raise copied_over(self.path.parent)
            if self._place is not None and self._place.file != here.file:
                self._check_log()
                for connection in self._idle:
                    connection.close()
                self._open, self._idle = [], []
            self._place = here
            return self._idle.pop() if self._idle else None

    def own(self, connection: Connection) -> None:
        """Take a new connection, which has read something, into the pool; it is lent to the caller."""
        with self._lock:
            self._open.append(connection)
            self._log = _inode(self._log_path)

    def put_back(self, connection: Connection) -> None:
        """Return a connection to the pool; one to a file that is not at the path any more is closed."""
        with self._lock:
            if any(connection is one for one in self._open):
                self._idle.append(connection)
            elif connection.process == os.getpid():
                connection.close()

    def close(self) -> None:
        """Close all connections; they stay open where closing would write into files that were copied over theirs."""
        self._leave_inherited()
        with self._lock:
            here = place_of(self.path)
            if here is not None and self.overwritten(here):
                keep_alive(self, *self._open)
                return
            for connection in self._open:
                connection.close()
            self._place, self._open, self._idle = None, [], []

    def overwritten(self, here: FileIdentity) -> bool:
        """Return True if this pool has connections to the file at `here`, and other content was copied over it."""
        place = self._place
        if not self._open or place is None or not place.overwritten_by(here):
            return False
        again = place_of(self.path)  # another thread may have looked, and a writer written, since `here` was taken
        return again is None or place.overwritten_by(again)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._place: FileIdentity | None = None
        self._open: list[Connection] = []
        self._idle: list[Connection] = []
        self._log: int | None = None  # inode of SQLite's log, as last seen

    def _leave_inherited(self) -> None:
        """Begin with connections of its own in a forked process.

        Source: sqlite.org/howtocorrupt.html, 2.6.
        """
        if self._process != os.getpid():
            _kept.append(self._open)
            self._begin()

    @property
    def _log_path(self) -> str:
        return _log_of(str(self.path))

    def _check_log(self) -> None:
        """Refuse a new file at the path next to the old file's log, which SQLite would read as the new one's."""
        if self._open and self._log is not None and self._log == _inode(self._log_path):
            raise StoreError(
                f"{self._log_path}: expected no log, or one of the store that is at this path now, found that of the "
                "store that was there before. End the processes that have it open, then restore a copy into an empty "
                "folder."
            )


def copied_over(folder: Path) -> StoreError:
    """Return the error for a store whose files were overwritten while it was open."""
    return StoreError(
        f"{folder}: expected the files that this process opened, found that others were copied over them. Nothing more "
        "is read or written. End the processes that have the store open, then restore a copy into an empty folder."
    )


def place_of(path: Path) -> FileIdentity | None:
    """Return the identity of the files at the path of a store's SQLite file; None if there is none."""
    name = str(path)  # as text, since every read comes here and a Path takes as long as the call of the system
    file = _stat(name)
    if file is None:
        return None
    marker, log = _stat(name.removesuffix(path.name) + MARKER), _stat(_log_of(name))
    return FileIdentity(
        (file.st_dev, file.st_ino),
        None if marker is None else (marker.st_ino, marker.st_mtime_ns, marker.st_size),
        file.st_mtime_ns,
        None if log is None else log.st_mtime_ns,
        time.time_ns() - time.monotonic_ns(),
    )


def _log_of(path: str) -> str:
    return f"{path}-wal"


def _inode(path: str) -> int | None:
    found = _stat(path)
    return None if found is None else found.st_ino


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a NUL in the path
        return None


_pools: Final = weakref.WeakSet[Connections]()
