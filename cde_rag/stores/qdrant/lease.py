"""Locks of a Qdrant collection: a readers–writer lock per client object, and the lease of one run."""

import contextlib
import threading
import time
import uuid
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from qdrant_client import QdrantClient, models

from cde_rag.errors import StoreError
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import contexts_collection
from cde_rag.stores.qdrant_base.locks import ReadWriteLock, lease_taken

_LEASE_S: Final = 30.0  # after a kill the next run waits so long
_LEASE_ID: Final = "0d5c3b1a-95cf-4d52-a1b9-1f4d9f0c2e77"


_all: weakref.WeakKeyDictionary[QdrantClient, dict[str, ReadWriteLock]] = weakref.WeakKeyDictionary()
_all_lock = threading.Lock()


def lock_of(client: QdrantClient, collection: str) -> ReadWriteLock:
    """Return the readers–writer lock shared by all users of this client object and collection."""
    with _all_lock:
        return _all.setdefault(client, {}).setdefault(collection, ReadWriteLock())


@contextmanager
def leased(client: QdrantClient, collection: str) -> Generator[None, None, None]:
    """Hold the lease among all processes that use a server: a point that a thread renews.

    It ends by itself half a minute after a process was killed; clocks are expected to agree within some seconds.

    Raises:
        StoreError: Another run holds it, or the server refused it.
    """
    name, me = contexts_collection(client, collection), str(uuid.uuid4())
    mine = models.Filter(must=[models.FieldCondition(key="lease", match=models.MatchValue(value=me))])
    over = models.Filter(must=[models.FieldCondition(key="until", range=models.Range(lt=time.time()))])
    point = models.PointStruct(id=_LEASE_ID, vector={}, payload={"lease": me, "until": time.time() + _LEASE_S})
    call(lambda: client.upsert(name, [point], wait=True, update_filter=over))
    found = call(lambda: client.retrieve(name, [_LEASE_ID]))
    holder = (found[0].payload if found else None) or {}
    if holder.get("lease") != me:
        rest = max(0, round(float(holder.get("until", 0)) - time.time()))
        raise lease_taken(collection, f" If it was killed: in {rest} seconds.")
    done = threading.Event()

    def renew() -> None:
        while not done.wait(_LEASE_S / 3):
            with contextlib.suppress(StoreError):  # the next time is early enough
                call(lambda: client.set_payload(name, {"until": time.time() + _LEASE_S}, mine, wait=True))

    thread = threading.Thread(target=renew, name="cde-rag lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        call(lambda: client.delete(name, models.FilterSelector(filter=mine), wait=True))
