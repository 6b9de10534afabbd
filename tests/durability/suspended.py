"""A run on PostgreSQL that is suspended before one of its transactions."""

import threading
from collections.abc import Callable
from typing import Any

from lives import opened

from cde_rag.collection.collection import Collection
from cde_rag.errors import StoreError
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.postgres.engine import PgSession

WAIT_S = 600  # a schedule that does not end by then is stuck


class Suspended(PgVectorStore):
    """A store whose nth transaction that writes waits before it begins."""

    def __init__(self, address: str, name: str, until: int) -> None:
        super().__init__(address, name)
        self._until = until
        self.writes = 0
        self.suspended = False
        self.reached, self.woken = threading.Event(), threading.Event()
        self._unsuspended = self._postgres.write
        self._postgres.write = self._waiting

    def _waiting(self, work: Callable[[PgSession], Any], **named: Any) -> Any:
        self.writes += 1
        if self.writes == self._until:
            self.suspended = True
            self.reached.set()
            assert self.woken.wait(WAIT_S)
        return self._unsuspended(work, **named)


def suspended(store: Suspended, run: Callable[[Collection], object], meanwhile: Callable[[], object]) -> str:
    """Do something while a run is suspended, unless it ends before; returns its error, or nothing."""
    errors = list[str]()

    def work() -> None:
        try:
            run(opened(store))
        except StoreError as error:
            errors.append(str(error))
        finally:
            store.reached.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert store.reached.wait(WAIT_S)
    if store.suspended:
        meanwhile()
    store.woken.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    store.close()
    return "".join(errors)
