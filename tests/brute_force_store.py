"""The obvious store: lists in memory, searched one by one. What every real store has to agree with."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from word_scores import best, faiss_scores

from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.records import Hit, Record, Row
from cde_rag.stores.base import Completion, Damage
from cde_rag.stores.engine import Found, Result
from cde_rag.stores.filters import matches
from cde_rag.stores.manifests import Generation, StoreManifest
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState
from cde_rag.stores.text_analysis import analyzer_of, updated


@dataclass
class _Entry:
    row: Row
    vector: np.ndarray


class BruteForceStore(Store, StoreState):
    """Generation 1 of a store without an engine, which implements all calls of `Store` itself; it is its own state."""

    def __init__(self) -> None:
        self._manifest: StoreManifest | None = None
        self._context = b""
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.RLock()

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        if self._manifest is not None:
            raise StoreError("expected an empty place, found a store")
        self._manifest = StoreManifest(dim=dim, fingerprint=fingerprint, generation=1, settings=dict(settings))
        self._context = context

    def exists(self) -> bool:
        return self._manifest is not None

    def manifest(self) -> StoreManifest:
        if self._manifest is None:
            raise StoreError("expected a store, found none")
        return self._manifest

    def context(self, generation: int | None = None) -> bytes:
        return self._context

    def add(self, rows: Sequence[Row], vectors: np.ndarray, *, fingerprint: str) -> None:
        self._same_space(fingerprint)
        with self._lock:
            for row, vector in zip(rows, vectors, strict=True):
                self._entries[row.record.id] = _Entry(row, vector)  # a dict keeps the place of a key

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        with self._lock:
            entries = {id_: self._entries[id_] for id_ in metadata}
            for id_, entry in entries.items():
                entry.row = Row(replace(entry.row.record, metadata=dict(metadata[id_])), entry.row.digest)

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        self._manifest = replace(self.manifest(), settings=updated(self.manifest().settings, changes))

    def delete(self, ids: Sequence[str]) -> int:
        with self._lock:
            return sum(self._entries.pop(id_, None) is not None for id_ in ids)

    def get(self, ids: Sequence[str]) -> list[Row]:
        with self._lock:
            return [self._entries[id_].row for id_ in ids if id_ in self._entries]

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        return len(self._matching(where))

    def count_pending(self) -> int:
        return 0

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        return (entry.row for entry in self._matching(where))

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        return [entry.row for entry in self._matching(None)][:count]

    def search(
        self,
        queries: np.ndarray,
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        self._same_space(fingerprint)
        entries = self._matching(where)
        return [self._best(entries, query, k) for query in queries]

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        found, analyzer = [entry.row for entry in self._matching(None)], analyzer_of(self.manifest().settings)
        hits: list[list[Hit]] = []
        for query in queries:
            scores = faiss_scores([row.record for row in found], query, analyzer)
            kept = [
                score if where is None or matches(where, row.record.metadata) else 0.0
                for row, score in zip(found, scores, strict=True)
            ]
            hits.append([found[position].hit(kept[position]) for position in best(kept, k)])
        return hits

    def index_texts(self) -> None:
        pass

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> np.ndarray:
        self._same_space(fingerprint)
        found = [self._entries[id_].vector for id_ in ids]
        return np.array(found, dtype=np.float32).reshape(len(ids), self.manifest().dim)

    def generations(self) -> list[Generation]:
        return [Generation(1, self.manifest().fingerprint, active=True, vectors=len(self._entries))]

    def lease(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        raise NotImplementedError

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        raise NotImplementedError

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: np.ndarray
    ) -> int:
        raise NotImplementedError

    def activate(
        self, generation: int, *, last: Completion | None = None, waiting: AbstractSet[str] = frozenset()
    ) -> int:
        raise NotImplementedError

    def drop(self, generation: int) -> None:
        raise NotImplementedError

    def verify(self) -> list[Damage]:
        return []

    def close(self) -> None:
        pass

    def _matching(self, where: Mapping[str, Any] | None) -> list[_Entry]:
        with self._lock:
            entries = list(self._entries.values())
        return [entry for entry in entries if where is None or matches(where, entry.row.record.metadata)]

    def _best(self, entries: Sequence[_Entry], query: np.ndarray, k: int) -> list[Hit]:
        scored = sorted(((float(entry.vector @ query), entry.row.record) for entry in entries), key=lambda one: -one[0])
        return [Hit(record.id, score, record.title, record.text, record.metadata) for score, record in scored[:k]]

    def _same_space(self, fingerprint: str) -> None:
        if self.manifest().fingerprint != fingerprint:
            raise ContextMismatchError(expected=self.manifest().fingerprint, found=fingerprint)

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
