"""Objects that a process loads once and shares, such as the mapping of a file or a model."""

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Loaded = TypeVar("Loaded")


class Shared(Generic[Loaded]):
    """Objects by their source; each is freed with its last user. Thread-safe.

    A forked process loads its own, since the threads of an engine do not survive a fork.
    """

    def __init__(self) -> None:
        self._begin()

    def get(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """Return an object that is in use already, or load it; others wait meanwhile."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = load()
            return found

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._objects = weakref.WeakValueDictionary[Hashable, Loaded]()
