"""The one store: the calls of `cde_rag.stores.store_calls`, over an engine that keeps the bytes."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cde_rag.stores.base import Damage
from cde_rag.stores.checks import plain_settings
from cde_rag.stores.engine import Engine, Result, Session
from cde_rag.stores.manifests import LeasedGenerations
from cde_rag.stores.store_calls import StoreCalls, StoreState


class Store(StoreCalls):
    """Vectors at rest: a collection in an engine. Safe to use from threads.

    Every call is atomic: after a kill at any instant it is complete or had no effect. Subclasses add calls of their
    engine, and change none of these.

    Args:
        engine: Keeper of the collection.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._leased = LeasedGenerations()

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create an empty store with generation 1 active.

        Raises:
            CorpusError: `settings` is no JSON object.
            StoreError: There is a store already, or its location is not writable.
        """
        settings = plain_settings(settings)
        self._engine.create(dim=dim, fingerprint=fingerprint, context=context, settings=settings)

    def exists(self) -> bool:
        """Return True if the store exists."""
        return self._engine.exists()

    def read(self, work: Callable[[StoreState], Result]) -> Result:
        """Call a function with one state of the store; return its result.

        Args:
            work: Reads alone; it may be called again with a later state.
        """
        return self._read(lambda session: self._with_state(session, work))

    def write(self, work: Callable[[StoreState], Result], *, wait: bool = True) -> Result:
        """Call a function with one state of the store, and commit its writes in one transaction.

        Other writers wait, readers do not. (In Qdrant, which has no transactions, each call of the state is atomic.)

        Args:
            work: Reads and writes; it may be called again after its writes were undone.
            wait: False: raise `StoreError` where another writer is at work, if the engine can tell.
        """
        return self._engine.write(lambda session: self._with_state(session, work), wait=wait)

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the lease of the generations until the block or the process ends.

        Calls on generations do not take the lease; a run that makes several of them holds it to exclude other runs.

        Raises:
            StoreError: Another run holds it, or the store is not writable.
        """
        with self._engine.lease() as run, self._leased.held(run):
            yield

    def verify(self) -> list[Damage]:
        """Read everything and compare it with its checksums; an empty list means that nothing is damaged."""
        return self._engine.verify()

    def close(self) -> None:
        """Release files, locks and connections; later calls reopen them."""
        self._engine.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._engine)!r})"

    def __str__(self) -> str:
        return str(self._engine)  # in errors

    def _with_state(self, session: Session, work: Callable[[StoreState], Result]) -> Result:
        state = StoreState(session, self._leased)
        try:
            return work(state)
        finally:
            state.end()

    def _read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:
        return self._engine.read(work, once=once)

    def _write(self, work: Callable[[Session], Result]) -> Result:
        return self._engine.write(work)


@runtime_checkable
class Loaded(Protocol):
    """A store that is filled faster inside a block of many writes."""

    def loading(self) -> AbstractContextManager[None]:
        """Defer index builds to the end of the block; reads inside it are exact."""
        ...


@runtime_checkable
class Removable(Protocol):
    """A store on a server that can be deleted."""

    def remove(self) -> None:
        """Delete the collection with its contents.

        Raises:
            StoreError: There is none, or it may not be deleted.
        """
        ...


@runtime_checkable
class Folder(Protocol):
    """A store that is a folder, which also contains the stores of tenants."""

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        ...

    def at(self, folder: Path) -> Store:
        """Return a store of the same kind in another folder."""
        ...
