"""A folder with a store, shared by all objects of this process that use it; one process at a time may."""

import contextlib
import os
import threading
import weakref
from pathlib import Path
from typing import Final

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.folder import check_folder, fsync_folder, locked
from cde_rag.stores.points.turns import Turns
from cde_rag.stores.qdrant_edge.engine import Engine
from cde_rag.stores.qdrant_edge.generations import load, shard_of
from cde_rag.stores.qdrant_edge.seals import broken_seals, seal_files

LOCK: Final = "cde.lock"
_SEALED: Final = "shard.json"
_COMPARED: Final = 2**26  # bytes of the largest file that is read to be compared whenever the store is opened


class Place:
    """The folder, its turns, and the engine while somebody uses it.

    Attributes:
        folder: Of the store.
        turns: Of all who use it.
        shaping: Held by who builds indexes, or replaces the engine by another; taken before a turn.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.turns = Turns()
        self.shaping = threading.Lock()
        self._users: set[int] = set()
        self._changing = threading.RLock()
        self._process = os.getpid()
        self._engine: Engine | None = None
        self._lock = contextlib.ExitStack()

    @property
    def sealed(self) -> Path:
        """The file with checksums of the engine's files."""
        return self.folder / _SEALED

    @property
    def is_open(self) -> bool:
        """Whether somebody in this process uses it."""
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
                hint = "Close it there; what several processes need is kept on a server, or by FAISS"
                taken = f"{self.folder}: expected to be the only process that uses it, found another at work. {hint}"
                self._lock.enter_context(locked(self.folder / LOCK, taken))
                self._process = os.getpid()
            self._users.add(user)

    def open(self, user: int) -> Engine:
        """The engine, opened where it is not yet.

        Raises:
            StoreError: There is no store, another process uses it, or the folder cannot be written.
            StoreFormatError: A file is not as it was when the store was closed.
        """
        with self._changing:
            new = user not in self._users
            if new or self._engine is None or self._process != os.getpid():
                self.lock(user)
            try:
                self._engine = self._engine or self._loaded()
            except BaseException:
                if new:
                    self.leave(user)
                raise
            return self._engine

    def use(self, engine: Engine | None) -> None:
        """Close the engine and take another, or none. The place is locked, and nobody reads."""
        with self._changing:
            old, self._engine = self._engine, engine
            if old is not None:
                old.close()

    def leave(self, user: int) -> None:
        """Close the engine where nobody else uses it."""
        with self._changing:
            self._users.discard(user)
            if self._users or self._process != os.getpid():  # after a fork, the parent has it open
                return
            with self._lock:
                if self._engine is not None:
                    engine, self._engine = self._engine, None
                    engine.close()
                    with contextlib.suppress(OSError):  # without checksums it is a store all the same
                        seal_files(engine.folder, self.sealed)

    def _loaded(self) -> Engine:
        shard = shard_of(self.folder, load(self.folder))
        for damage in broken_seals(shard, self.sealed, most=_COMPARED):
            raise StoreFormatError(f"{self.folder / damage.where}: {damage.found} Restore a copy.")
        self.sealed.unlink(missing_ok=True)
        fsync_folder(self.folder)
        return Engine.load(shard)


_places: weakref.WeakValueDictionary[Path, Place] = weakref.WeakValueDictionary()
_places_lock = threading.Lock()


def place_at(folder: Path) -> Place:
    """The place that all objects of this process share which use that folder."""
    with _places_lock:
        resolved = folder.resolve()
        place = _places.get(resolved)
        if place is None:
            place = _places[resolved] = Place(folder)
        return place
