"""Who is at work on a store: turns of this process's threads, and the lease of one run."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from cde_rag.errors import StoreError


class Turns:
    """Many readers, or one writer; writers that wait keep new readers waiting."""

    def __init__(self) -> None:
        self.lease = threading.Lock()
        self._changed = threading.Condition()
        self._readers = 0
        self._writers = 0  # at work or waiting
        self._writing = False

    @contextmanager
    def reading(self) -> Generator[None, None, None]:
        """Others may read meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Generator[None, None, None]:
        """Nobody else is at work meanwhile."""
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._writing and not self._readers)
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._writers -= 1
                self._changed.notify_all()


@contextmanager
def held(lease: threading.Lock, place: str) -> Generator[None, None, None]:
    """Hold the lease among the threads of this process.

    Raises:
        StoreError: Another run holds it.
    """
    if not lease.acquire(blocking=False):
        raise taken(place)
    try:
        yield
    finally:
        lease.release()


def taken(place: str, hint: str = "") -> StoreError:
    """The error for a lease that another run holds."""
    expected = "expected to be the only run that moves it to another context"
    return StoreError(f"{place}: {expected}, found another at work. Wait until that has ended.{hint}")
