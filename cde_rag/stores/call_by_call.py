"""Stores that have no engine yet."""

from collections.abc import Callable, Sequence
from typing import Any

from cde_rag.records import Hit, Record
from cde_rag.stores.engine import Found, Result
from cde_rag.stores.manifests import LeasedGenerations
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState


class CallByCall(Store, StoreState):
    """A store that has no engine yet, and implements all calls of `Store` itself; a state of it is itself."""

    def __init__(self) -> None:
        self._leased = LeasedGenerations()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    __str__ = __repr__

    def read(self, work: Callable[[Any], Result]) -> Result:
        """Call a function with the store."""
        return work(self)

    def write(self, work: Callable[[Any], Result]) -> Result:
        """Call a function with the store."""
        return work(self)

    def nearest(self, queries: Any, k: int, *, fingerprint: str, where: Any = None) -> list[list[Found]]:
        """Search by vectors."""
        return [_found(hits) for hits in self.search(queries, k, fingerprint=fingerprint, where=where)]

    def matching(self, queries: Sequence[str], k: int, *, where: Any = None) -> list[list[Found]]:
        """Search by words."""
        return [_found(hits) for hits in self.search_text(queries, k, where=where)]

    def hits(self, found: Sequence[Found]) -> list[Hit]:
        """Return the hits of a search."""
        return [
            Hit(record.id, score, record.title, record.text, record.metadata)
            for _, score, record in found
            if record is not None
        ]


def _found(hits: Sequence[Hit]) -> list[Found]:
    return [Found(hit.id, hit.score, Record(hit.id, hit.text, hit.title, hit.metadata)) for hit in hits]
