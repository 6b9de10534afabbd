"""The port of stores: an engine keeps one collection, and gives sessions to `cde_rag.stores.store.Store`.

An engine keeps four things: a manifest with settings; records in order of insertion; for each generation a vector with
a digest for some of the records; and a Context, opaque bytes, for each generation. It checks no arguments and has no
rules of generations: `Store` does both, once for all engines. It does keep its bytes: what it returns matches the
checksum that it wrote, or it raises `StoreFormatError`.

An engine without an index of its own inherits most of this from `cde_rag.stores.exact`. `Store(engine)` is the store.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.records import Record, Row
from cde_rag.stores.base import SAMPLE_BLOCKS, Damage
from cde_rag.stores.checks import sample_places
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.manifests import StoredManifest

Result = TypeVar("Result")
Place: TypeAlias = tuple[int, str]
"""Place of a record in the order of insertion: a number above 0, and a text of the engine's own, or ""."""

START: Place = (0, "")


class Placed(NamedTuple):
    """A row and its place."""

    place: Place
    row: Row


class Version(NamedTuple):
    """Digest of a record's vector in the active generation.

    Attributes:
        key: Names the record to the engine; opaque.
        digest: Digest of the embedded text; "" of a record without a vector.
    """

    key: Any
    digest: str


class Found(NamedTuple):
    """A record that a search found.

    Attributes:
        key: Equal for one record in all searches of a session; opaque.
        score: As of `Hit`.
        record: The record, if the search read it.
    """

    key: Hashable
    score: float
    record: Record | None = None


@runtime_checkable
class Session(Protocol):
    """One state of a store, for one call of `Engine.read` or `Engine.write`; the second half writes.

    Ids that an engine cannot store, such as lone surrogates, are unknown ids. `where` is a filter, or None for all
    records. Vectors are float32, of norm 1.
    """

    @property
    def manifest(self) -> StoredManifest[Any]:
        """Manifest, as the calls of this session left it; each generation has a `number` and a `fingerprint`."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the collection, likewise."""
        ...

    @property
    def run(self) -> Hashable:
        """Token of the run that took the lease last; None in an engine whose lease cannot be lost."""
        ...

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context."""
        ...

    def get(self, ids: Sequence[str]) -> dict[str, Row]:
        """Return the rows of those ids that exist, by id, with their digests in the active generation."""
        ...

    def scan(self, where: Filter | None, *, after: Place, limit: int) -> list[Placed]:
        """Return the first `limit` matching rows after a place, in order of insertion; `START` is before all."""
        ...

    def last_place(self) -> int:
        """Return a number that no record's place exceeds, and that later records' places do; 0 of an empty store."""
        ...

    def count(self, where: Filter | None) -> int:
        """Count the matching records."""
        ...

    def sample(self, count: int, seed: int | None) -> list[Row]:
        """Return rows as `Store.sample`; `sampled` does it by `scan`."""
        ...

    def versions(self, ids: Sequence[str]) -> dict[str, Version]:
        """Return the versions of those ids that exist, by id."""
        ...

    def vectors(self, generation: int, ids: Sequence[str]) -> dict[str, Float32[np.ndarray, " dim"]]:
        """Return the vectors of those ids that have one in a generation, by id."""
        ...

    def count_vectors(self, generation: int) -> int:
        """Count the vectors of a generation, which are all of stored records."""
        ...

    def lacking(self, generation: int, *, after: str | None, limit: int) -> list[Row]:
        """Return the first `limit` rows without a vector in a generation, in order of insertion.

        They come after the record of the id `after`; from the first one on if that is None or unknown.
        """
        ...

    def nearest(
        self,
        generation: int,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        where: Filter | None,
        *,
        complete: bool,
    ) -> list[list[Found]]:
        """Return the k best records for each query by the dot product; equal scores in order of insertion.

        With `complete` the caller needs every record that is found; otherwise only the best of several searches.
        """
        ...

    def matching(self, queries: Sequence[str], k: int, where: Filter | None, *, complete: bool) -> list[list[Found]]:
        """Return the k best records for each query by BM25, as `nearest`.

        Raises:
            TextIndexError: There is no text index.
        """
        ...

    def found(self, keys: Sequence[Any]) -> list[Record]:
        """Return the records of keys that a search of this session found, in their order."""
        ...

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Insert or replace records, given with their metadata as JSON, and their vectors in the active generation.

        A replaced record keeps its place. In each other generation it keeps its vector if that has the same digest,
        and loses it otherwise. Without vectors, None, it has none in the active generation, and there no digest.
        """
        ...

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata, given as JSON, of records by id. An unknown id raises `KeyError`."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Remove those records of the ids that exist, with all their vectors; return their number."""
        ...

    def put_vectors(
        self,
        generation: int,
        versions: Sequence[Version],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Insert or replace vectors of a generation; return their number. In the active one the records have none.

        An engine that cannot exclude other writers skips records that changed since `versions` read them.
        """
        ...

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        ...

    def index_texts(self) -> None:
        """Rebuild the text index with the newest analyzer, and note that in the settings (`with_newest`).

        Raises:
            StoreError: This store cannot have a text index here.
        """
        ...

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add an empty, inactive generation; return its number, one above the last that there ever was.

        No other generation has the fingerprint; a dropped one may have had it.
        """
        ...

    def activate(self, generation: int) -> None:
        """Activate a generation that has a vector of every record."""
        ...

    def drop(self, generation: int) -> None:
        """Remove an inactive generation, its vectors and its Context."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Keeper of one collection; `str()` of it is the collection's name in messages. Safe to use from threads."""

    def exists(self) -> bool:
        """Return True if there is a store; False after a `create` that did not complete."""
        ...

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make an empty store with generation 1 active.

        Raises:
            StoreError: There is a store already, or its place is not writable.
        """
        ...

    def read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:
        """Call a function with one state of the store; return its result.

        Args:
            work: Reads alone; it may be called again with a later state.
            once: `work` asks one question. An engine may answer it with the manifest that it read for an earlier one,
                if it makes sure that this is still the manifest.

        Raises:
            StoreError: There is no store, or it cannot be read.
            StoreFormatError: It is damaged, or of a newer format.
        """
        ...

    def write(self, work: Callable[[Session], Result], *, wait: bool = True) -> Result:
        """Call a function, and commit its writes, or undo them if it raises. Other writers wait, readers do not.

        Committed writes survive a loss of power. Errors of `work` are raised unchanged.

        Args:
            work: Reads and writes; it may be called again after its writes were undone. (A server without
                transactions undoes nothing; there each call of the session is atomic.)
            wait: False: where another writer is at work, raise in place of waiting for it, and build no index. An
                engine that cannot know waits.

        Raises:
            StoreError: There is no store, or it cannot be written; another writer is at work.
            StoreFormatError: It is damaged, or of a newer format.
        """
        ...

    def lease(self) -> AbstractContextManager[Hashable]:
        """Hold the lease of the generations until the block or the process ends; gives `Session.run` of this run.

        It does not wait. It excludes every other `lease` of the store, also of this engine, but neither reads nor
        writes.

        Raises:
            StoreError: Another run holds it (the message contains "another"), or the store is not writable.
        """
        ...

    def verify(self) -> list[Damage]:
        """Read everything and compare it with its checksums."""
        ...

    def close(self) -> None:
        """Release files, locks and connections; later calls take them again."""
        ...


def sampled(session: Session, count: int, seed: int | None) -> list[Row]:
    """Return up to `count` rows, in blocks spread over the places; with a seed each from a place of its own."""
    last, found = session.last_place(), list[Placed]()

    def take(number: int, limit: int) -> None:
        after = (number, "~")  # which no text of an engine's sorts after
        found.extend(session.scan(None, after=max(after, found[-1].place) if found else after, limit=limit))

    if seed is not None:
        for number in sample_places(last, count, seed):
            take(number, 1)
    else:
        for block in range(SAMPLE_BLOCKS):
            if limit := (count - len(found)) // (SAMPLE_BLOCKS - block):
                take(block * last // SAMPLE_BLOCKS, limit)
    return [row for _, row in found]
