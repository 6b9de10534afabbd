"""Vectors of one call, made before they are written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import digest
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.indexing.upsert_plan import Stale, groups_of
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.records import Record, Row, embedded_text
from cde_rag.stores.store_calls import StoreCalls

LARGEST_WRITE: Final = 2048  # rows in one call of a store


@dataclass(frozen=True, slots=True)
class ReadyVectors:
    """Vectors that were made before an upsert.

    Attributes:
        fingerprint: Fingerprint of their vector space.
        vectors: Each vector with True if its text was truncated, by the digest of its row.
    """

    fingerprint: str
    vectors: Mapping[str, tuple[Float32[np.ndarray, " dim"], bool]]


class CallVectors:
    """Vectors that were made for one call, by digest, in the space of one embedder.

    Attributes:
        truncated: Ids of rows that exceed the model's token limit.
        written: Number of the call's rows that are stored with their vectors, or deleted; re-embedded siblings do not
            count.

    Args:
        ready: Vectors that were made before.
        kept: Place of the store's plain vectors; of whichever generation they are.
    """

    def __init__(self, ready: ReadyVectors | None, kept: PlainVectors | None = None) -> None:
        self.truncated: set[str] = set()
        self.written = 0
        self._ready = ready
        self._kept = kept
        self._embedder: Embedder | None = None
        self._made: dict[str, Float32[np.ndarray, " dim"]] = {}

    def lacking(self, stale: Iterable[Stale]) -> list[Stale]:
        """Return the rows that have no vector yet, and do not wait for theirs."""
        return [each for each in stale if not each.waits and each.row.digest not in self._made]

    def bind(self, embedder: Embedder) -> "CallVectors":
        """Return this cache for an embedder, emptied if its vectors are of another space."""
        if self._embedder is None or self._embedder.fingerprint != embedder.fingerprint:
            self._made.clear()
        self._embedder = embedder
        return self

    @property
    def embedder(self) -> Embedder:
        """Embedder of the space."""
        assert self._embedder is not None, "bind(embedder) comes first"
        return self._embedder

    def vectors(self, rows: Sequence[Row]) -> Float32[np.ndarray, "rows dim"]:
        """Return the vectors of rows, by their digests."""
        return np.stack([self._made[row.digest] for row in rows])

    def embed(self, stale: Sequence[Stale]) -> None:
        """Embed rows; those of one digest have one vector."""
        once = list({each.row.digest: each for each in stale}.values())
        cut: set[str] = set()
        if self._ready is not None and self._ready.fingerprint == self.embedder.fingerprint:
            found = {each.row.digest: self._ready.vectors.get(each.row.digest) for each in once}
            self._made.update((digest, vector[0]) for digest, vector in found.items() if vector is not None)
            cut = {digest for digest, vector in found.items() if vector is not None and vector[1]}
            once = [each for each in once if each.row.digest not in self._made]
        if once:
            texts, siblings = [embedded_text(each.row.record) for each in once], [each.siblings for each in once]
            embedded = self.embedder.embed_passages(texts, siblings)
            self._made.update(zip((each.row.digest for each in once), embedded.vectors, strict=True))
            cut |= {each.row.digest for each, truncated in zip(once, embedded.truncated, strict=True) if truncated}
        self.truncated.update(each.row.record.id for each in stale if each.row.digest in cut)

    def write(self, state: StoreCalls, stale: Sequence[Stale], *, gone: Sequence[Record] = ()) -> list[Stale]:
        """Write stale rows with their new vectors, up to the first that has none here; returns the rows left.

        Args:
            state: State of the store.
            stale: Rows.
            gone: Records as they are replaced, whose plain vectors are deleted.
        """
        groups = groups_of(stale, {record.id for record in gone})
        ready = list(takewhile(lambda group: not self.lacking(group), groups))
        if ready:
            self.forget(lambda: gone)
        parts: list[list[Stale]] = []  # from the last one on, which has the records that arrive
        for group in reversed(ready):
            if not parts or len(parts[-1]) + len(group) > LARGEST_WRITE:
                parts.append([])
            parts[-1][:0] = group
        for part in reversed(parts):
            waiting, rows = [each.row for each in part if each.waits], [each.row for each in part if not each.waits]
            if waiting:
                state.add(waiting, None, fingerprint=self.embedder.fingerprint)
            if rows:
                state.add(rows, self.vectors(rows), fingerprint=self.embedder.fingerprint)
        return [each for group in groups[len(ready) :] for each in group]

    def forget(self, records: Callable[[], Sequence[Record]]) -> None:
        """Delete the plain vectors of records that go, before these do, so that a crash leaves no trace of them."""
        from cde_rag.embedders.contextual import contextual

        own = contextual(unwrapped(self.embedder))
        places = [self._kept, None if own is None else own.plain_vectors]
        files = {place.path: place for place in places if place is not None and place.path.exists()}
        if files:
            digests = [digest(embedded_text(record)) for record in records()]
            for place in files.values():
                place.forget(digests)
