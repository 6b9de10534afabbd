"""What every store keeps and answers: records, vectors in generations, one context per generation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.manifests import Generation, StoreManifest

SAMPLE_BLOCKS = 4  # places of a store that a sample is read from


@dataclass(frozen=True, slots=True)
class Record:
    """What goes into a collection.

    Attributes:
        id: Any non-empty string, unique in the collection.
        text: What is embedded and returned.
        title: Embedded in front of the text (`title + " " + text`) and returned beside it.
        metadata: JSON object; what filters look at.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Row:
    """A record as a store keeps it.

    Attributes:
        record: The record.
        digest: sha256 hex over what was embedded (text, title, siblings); opaque to the store.
    """

    record: Record
    digest: str

    def hit(self, score: float) -> "Hit":
        """The record as a search with this score returns it."""
        return Hit(self.record.id, score, self.record.title, self.record.text, self.record.metadata)


@dataclass(frozen=True, slots=True)
class Hit:
    """What comes out of a search.

    Attributes:
        id: The record's id.
        score: Higher is better. Of a search by vectors the dot product of unit vectors, in [-1, 1]; of one by words
            BM25, above 0; of a hybrid one the fused score, by default in [0, 1]; of a reranked one what the reranker
            gave.
        title: The record's title.
        text: The record's text.
        metadata: The record's metadata.
    """

    id: str
    score: float
    title: str
    text: str
    metadata: Mapping[str, Any]


# Digests and vectors for the rows that it is given; see `Store.activate`.
Completion: TypeAlias = Callable[[list[Row]], tuple[list[str], Float32[np.ndarray, "rows dim"]]]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that `verify` found wrong.

    Attributes:
        where: File, table or record id.
        found: What was expected and what was found, in one sentence.
    """

    where: str
    found: str


@runtime_checkable
class Store(Protocol):
    """Vectors at rest. Every call is atomic: after a kill at any instant it happened wholly or not at all.

    All vectors are float32, `(rows, dim)`, unit norm. Every call that reads or writes vectors of the active generation
    names the fingerprint of the space it means and raises `ContextMismatchError` where that generation has another.
    Safe to use from threads.
    """

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make an empty store with generation 1 active.

        Raises:
            StoreError: There is a store already, or the place is not writable.
        """
        ...

    def exists(self) -> bool:
        """Whether there is a store at this place."""
        ...

    def manifest(self) -> StoreManifest:
        """What the store knows of itself.

        Raises:
            StoreError: There is no store at this place.
            StoreFormatError: Damaged, or of a newer format.
        """
        ...

    def context(self, generation: int | None = None) -> bytes:
        """The bytes of a generation's Context, as given; of the active one by default.

        Raises:
            StoreError: There is no such generation.
        """
        ...

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Insert rows, or replace rows of the same id (which keep their place in the order).

        In other generations a record keeps its vector where that was made from the same digest, and loses it otherwise.

        Raises:
            CorpusError: A record cannot be stored: an id empty or twice, a lone surrogate, metadata that is not JSON.
            ValueError: `vectors` are not float32 of norm 1, one for each row.
        """
        ...

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of the given ids; vectors and digests stay. An unknown id raises `KeyError`."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows from every generation; returns how many there were. Unknown ids are passed over."""
        ...

    def get(self, ids: Sequence[str]) -> list[Row]:
        """The rows of those ids that exist, in the order asked."""
        ...

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """How many rows match the filter (all without one)."""
        ...

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """All rows that match, in order of insertion; `page` of them are read at a time, when the first is asked for.

        The store may be written to meanwhile, by the caller too: a row that is there all the time comes once. One that
        is deleted and added again may come twice or not at all, and what is added behind the last of the beginning
        does not come.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            ValueError: `page` is below 1.
        """
        ...

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Rows spread over the order of insertion, `count` of them or all that there are.

        No more than `count` rows are read; where many were deleted, there may be fewer than `count`.

        Args:
            count: Rows at most.
            seed: Each row is from a place of its own, drawn by this; by default they are from a few blocks, which is
                faster.

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
        """For each query min(k, matching rows) hits, best first; equal scores in order of insertion.

        Args:
            queries: Unit vectors.
            k: How many are wanted.
            fingerprint: Of the generation's space.
            where: A filter over the metadata.
            generation: The active one by default; in another, the rows that have a vector in it.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            ValueError: `k` is below 1, or `queries` are not float32 of norm 1.
        """
        ...

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """For each query up to k records that match and share a word with it, best first by BM25.

        Words are those of `cde_rag.stores.text_analysis`, of title and text. One that comes twice in a query counts
        twice; each store documents its BM25. Equal scores come in order of insertion. A filter changes no score.
        Generations have no part in it.

        Raises:
            FilterError: `where` is outside the grammar of `cde_rag.stores.filters`.
            StoreError: The store was made without words; `index_texts` adds them.
            ValueError: `k` is below 1.
        """
        ...

    def index_texts(self) -> None:
        """Make what `search_text` looks at anew, of all records; others wait, or see it when it is whole.

        Raises:
            StoreError: This store cannot have it here.
        """
        ...

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """The vectors of the given ids; unknown ids raise `KeyError`."""
        ...

    def generations(self) -> list[Generation]:
        """All generations, oldest first."""
        ...

    def lease(self) -> AbstractContextManager[None]:
        """Hold the only right to work on generations, until the block ends or the process does.

        The calls below do not ask for it; a run that makes several of them holds it, so that a second one is told.

        Raises:
            StoreError: Another run holds it, or the place is not writable.
        """
        ...

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Begin another, empty, inactive generation; returns its number."""
        ...

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Up to `limit` rows that have no vector in an inactive generation, in order of insertion.

        Args:
            generation: Its number.
            limit: Most rows that are returned.
            after: The last row of the call before: rows inserted up to that one are not read again. Where it was
                deleted meanwhile, the call begins with the first row.

        Raises:
            StoreError: The generation is active, or not there.
            ValueError: `limit` is below 1.
        """
        ...

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Give rows their vectors in an inactive generation.

        Args:
            generation: Its number.
            rows: As they were read; those that are gone since, or have another digest, are passed over.
            digests: Over what was embedded for this generation.
            vectors: One for each row.

        Returns:
            How many rows were not passed over.

        Raises:
            CorpusError: An id comes twice.
            StoreError: The generation is active, or not there.
        """
        ...

    def activate(self, generation: int, *, last: Completion | None = None) -> None:
        """Make a generation the active one.

        Args:
            generation: Its number.
            last: Gives the rows that still lack a vector theirs, while nobody else writes and all others read; without
                it there may be none. (On a server of Qdrant other processes write all the same.)

        Raises:
            StoreError: It lacks a vector for some row, is active, or is not there.
        """
        ...

    def drop(self, generation: int) -> None:
        """Remove a generation and its vectors.

        Raises:
            StoreError: It is active, or not there.
        """
        ...

    def verify(self) -> list[Damage]:
        """Read everything and compare it with its checksums; an empty list means all is well."""
        ...

    def close(self) -> None:
        """Release files, locks and connections; whatever is asked of the store afterwards takes them again."""
        ...
