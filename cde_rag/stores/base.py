"""Store interface: records, vectors in generations, one context per generation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.records import Hit as Hit
from cde_rag.records import Record as Record
from cde_rag.records import Row as Row
from cde_rag.stores.manifests import Generation, StoreManifest

SAMPLE_BLOCKS = 4  # places of a store that a sample is read from


class ProcessBound:
    """Base class of objects with open files, connections and locks, which can neither be pickled nor copied."""

    def __reduce__(self) -> Any:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled or copied: its files, connections and locks are of one "
            "process. Open the collection where it is needed, by its path or address: Collection.open(place)."
        )


# Digests and vectors for the rows that it is given; see `Store.activate`.
Completion: TypeAlias = Callable[[list[Row]], tuple[list[str], Float32[np.ndarray, "rows dim"]]]


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage found by `verify`.

    Attributes:
        where: File, table or record id.
        found: The expected and the found, in one sentence.
    """

    where: str
    found: str


@runtime_checkable
class Store(Protocol):
    """Vectors at rest. Every call is atomic: after a kill at any instant it is complete or had no effect.

    All vectors are float32, `(rows, dim)`, unit norm. Every call that reads or writes vectors of the active generation
    names the fingerprint of the space it means and raises `ContextMismatchError` where that generation has another.
    Safe to use from threads.
    """

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create an empty store with generation 1 active.

        Raises:
            StoreError: There is a store already, or its location is not writable.
        """
        ...

    def exists(self) -> bool:
        """Return True if the store exists."""
        ...

    def manifest(self) -> StoreManifest:
        """Return the store's manifest.

        Raises:
            StoreError: The store does not exist.
            StoreFormatError: Damaged, or of a newer format.
        """
        ...

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context, as given (default: the active generation's).

        Raises:
            StoreError: There is no such generation.
        """
        ...

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Insert rows, or replace rows of the same id (which keep their place in the order).

        In other generations a record keeps its vector if that was made from the same digest, and loses it otherwise.

        Raises:
            CorpusError: A record cannot be stored: an id empty or twice, a lone surrogate, metadata that is not JSON.
            ValueError: `vectors` are not float32 of norm 1, one for each row.
        """
        ...

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of the given ids; vectors and digests stay. An unknown id raises `KeyError`."""
        ...

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection; the others stay.

        Raises:
            CorpusError: `changes` is no JSON object.
            ValueError: It names the analyzer, which only `index_texts` changes.
        """
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Delete rows from every generation; return their number. Unknown ids are skipped."""
        ...

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, in the order of the ids."""
        ...

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Count the rows that match the filter; without one, all rows."""
        ...

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Yield all matching rows, in order of insertion; they are read lazily, `page` at a time.

        The store may be written to during the scan, by the caller too: a row that exists all the time is returned once.
        Rows deleted and added again during the scan may be returned twice or not at all. Rows appended after the scan
        started are not returned.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            ValueError: `page` is below 1.
        """
        ...

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return `count` rows spread over the order of insertion, or all rows if there are fewer.

        No more than `count` rows are read; if many were deleted, fewer may be returned.

        Args:
            count: Maximum number of rows.
            seed: Random seed to draw the position of each row; by default rows are from a few blocks, which is faster.

        Raises:
            ValueError: `count` is below 1.
        """
        ...

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        """Return min(k, matching rows) hits for each query, best first; equal scores in order of insertion.

        Args:
            queries: Unit vectors.
            k: Maximum number of hits.
            fingerprint: Fingerprint of the generation's space.
            where: A filter over the metadata.
            generation: Number of the generation (default: the active one); rows without a vector in it are not found.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            ValueError: `k` is below 1, or `queries` are not float32 of norm 1.
        """
        ...

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Return up to k matching records per query that share a term with it, best first by BM25.

        The analyzer that the settings name makes the terms of title and text; see `cde_rag.stores.text_analysis`. A
        term that is repeated in a query counts repeatedly; each store documents its BM25. Equal scores are in order of
        insertion. A filter changes no score. Text search is independent of generations.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            TextIndexError: The store was made without a text index; `index_texts` adds it.
            ValueError: `k` is below 1.
        """
        ...

    def index_texts(self) -> None:
        """Rebuild the text index of all records with the newest analyzer, which the settings name from then on.

        Raises:
            StoreError: This store cannot have a text index here.
        """
        ...

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of the given ids; unknown ids raise `KeyError`."""
        ...

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first."""
        ...

    def lease(self) -> AbstractContextManager[None]:
        """Hold the lease of the generations until the block or the process ends.

        The methods below do not check the lease; a run that calls several of them holds it to exclude other runs.

        Raises:
            StoreError: Another run holds it, or the store is not writable.
        """
        ...

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Create another, empty, inactive generation; return its number."""
        ...

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return up to `limit` rows that have no vector in an inactive generation, in order of insertion.

        Args:
            generation: Its number.
            limit: Maximum number of rows.
            after: The last row of the previous call: rows inserted up to that one are not read again. If it was deleted
                meanwhile, the call starts with the first row.

        Raises:
            StoreError: The generation is active, or does not exist.
            ValueError: `limit` is below 1.
        """
        ...

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation.

        Args:
            generation: Its number.
            rows: Rows as they were read; those deleted since, or with another digest, are skipped.
            digests: Digests of the texts embedded for this generation.
            vectors: One per row.

        Returns:
            Number of rows that were not skipped.

        Raises:
            CorpusError: An id is repeated.
            StoreError: The generation is active, or does not exist.
        """
        ...

    def activate(self, generation: int, *, last: Completion | None = None) -> None:
        """Activate a generation.

        Args:
            generation: Its number.
            last: Called with the write lock held to embed any rows still missing a vector; readers are not blocked.
                Without it there must be none. (On a Qdrant server other processes are not locked out.)

        Raises:
            StoreError: A vector of some row is missing, or the generation is active or does not exist.
        """
        ...

    def drop(self, generation: int) -> None:
        """Remove a generation and its vectors.

        Raises:
            StoreError: It is active, or does not exist.
        """
        ...

    def verify(self) -> list[Damage]:
        """Read everything and compare it with its checksums; an empty list means that nothing is damaged."""
        ...

    def close(self) -> None:
        """Release files, locks and connections; later calls reopen them."""
        ...


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
