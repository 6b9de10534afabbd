"""Locks of a store: a readers–writer lock of this process's threads, and the lease of one run."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from cde_rag.errors import StoreError


class ReadWriteLock:
    """Many readers, or one writer; the writer whose turn it is next keeps new readers waiting."""

    def __init__(self) -> None:
        self.lease = threading.Lock()
        self._changed = threading.Condition()
        self._readers = 0
        self._next = False  # a writer holds the lock, or waits for readers to end
        self._right = threading.RLock()  # to write

    @contextmanager
    def reading(self) -> Generator[None, None, None]:
        """Hold the lock for reading; others may read meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._next)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, *, wait: bool = True) -> Generator[None, None, None]:
        """Hold the right to write; others may read, and this thread may write.

        Raises:
            StoreError: Another thread holds it, and this one is not to wait.
        """
        if not self._right.acquire(blocking=wait):
            raise StoreError("Expected no other writer, found one that has not ended. Write again when it has.")
        try:
            yield
        finally:
            self._right.release()

    @contextmanager
    def writing(self) -> Generator[None, None, None]:
        """Hold the lock for writing; excludes all others."""
        with self._right:
            try:
                with self._changed:
                    self._next = True
                    self._changed.wait_for(lambda: not self._readers)
                yield
            finally:
                with self._changed:
                    self._next = False
                    self._changed.notify_all()


@contextmanager
def hold_lease(lease: threading.Lock, place: str) -> Generator[None, None, None]:
    """Hold the lease among the threads of this process.

    Raises:
        StoreError: Another run holds it.
    """
    if not lease.acquire(blocking=False):
        raise lease_taken(place)
    try:
        yield
    finally:
        lease.release()


def lease_taken(place: str, hint: str = "") -> StoreError:
    """Return the error for a lease that another run holds."""
    return StoreError(f"{place}: another run holds the lease to change its context. Wait for it to finish.{hint}")
