"""Interface of operations on points. An argument `name` is the name of a vector."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.qdrant_base.metadata_paths import IndexKind
from cde_rag.stores.qdrant_base.selection import ALL, Selection
from cde_rag.stores.qdrant_base.words import Sparse


@runtime_checkable
class Point(Protocol):
    """A point as it was read."""

    @property
    def id(self) -> object:
        """UUID of a point of ours; a number where it is adopted."""
        ...

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """JSON object; None if it was not requested."""
        ...

    @property
    def vector(self) -> object:
        """Requested vectors by name; of another type if the point has only an unnamed vector."""
        ...


@runtime_checkable
class FoundPoint(Point, Protocol):
    """A point that a search found."""

    @property
    def score(self) -> float:
        """Dot product with the query, in float32."""
        ...


class NewPoint(NamedTuple):
    """Point to be written completely.

    Attributes:
        id: Id from `Points.point_id`.
        payload: JSON object.
        vectors: Vectors by name.
    """

    id: str
    payload: dict[str, Any]
    vectors: dict[str, Any]


class NewVector(NamedTuple):
    """Vector for an existing point.

    Attributes:
        point: Its id.
        vectors: The vector, and its prefix if the store has prefixes, by name.
        noted: Payload of the vector: digest and checksum.
        active: Name of the active generation's vectors.
        checksum: Checksum of the point's active vector when its record was read, to detect changes; None if it had no
            active vector.
        record: Checksum of the record.
        replaced: Checksum of the vector that this one replaces; None if there is none.
    """

    point: str
    vectors: dict[str, list[float]]
    noted: dict[str, Any]
    active: str
    checksum: str | None
    record: str
    replaced: str | None


class DerivedData(NamedTuple):
    """Data derived from a record, for the point that it was read from.

    Attributes:
        point: Id of the point.
        record: Checksum of the record when it was read, to detect changes.
        noted: Checksum of its metadata, likewise.
        metadata: Payload of the metadata; empty if the point has it.
        words: Sparse vector of its terms; None for a record without any.
    """

    point: str
    record: str
    noted: str
    metadata: dict[str, Any]
    words: Sparse | None


@runtime_checkable
class Points(Protocol):
    """Interface of one store's points; the collection may also hold points of other applications."""

    @property
    def place(self) -> str:
        """Name of the location, for messages."""
        ...

    @property
    def always_exact(self) -> bool:
        """True if every search by full vectors is exact."""
        ...

    def point_id(self, id_: str) -> str | None:
        """Return the id of the point for the record of an id; None if no record can have the id."""
        ...

    def retrieve(self, ids: Sequence[str], *, vectors: bool | list[str] = False) -> Mapping[str, Point]:
        """Return the points of those ids that exist; with all vectors, those of some names, or none."""
        ...

    def having(self, vector: str) -> Selection:
        """Return the filter that there is a vector of that name that counts."""
        ...

    def count(self, where: Selection = ALL) -> int:
        """Count the store's selected points."""
        ...

    def last_order(self) -> int:
        """Return the highest position in the order of insertion; 0 if the store has no points."""
        ...

    def first_after(self, positions: Sequence[int]) -> Sequence[Point]:
        """Return the first point after each position, where there is one."""
        ...

    def in_order(
        self,
        where: Selection = ALL,
        *,
        after: tuple[int, str] = (0, ""),
        complete: bool = False,
        at_once: int = 512,
    ) -> Iterator[Point]:
        """Yield the store's selected points, in order of insertion, after a position and point id.

        `complete` includes vectors. `at_once` is the likely number of points to be consumed.
        """
        ...

    def nearest(
        self,
        name: str,
        queries: Float32[np.ndarray, "queries dim"],
        limit: int,
        *,
        where: Selection,
        exact: bool,
        prefix: int | None,
        payload: list[str] | None = None,
    ) -> Sequence[Sequence[FoundPoint]]:
        """Return up to `limit` points for each query by their vector of that name, best first.

        Points found by their first `prefix` dimensions or by codes are rescored by the full vector. They have these
        keys of their payload; all by default.
        """
        ...

    @property
    def metadata_key(self) -> str:
        """Key of the metadata in a payload."""
        ...

    def indexed(self) -> Mapping[str, str]:
        """Return the kinds of payload indexes in the collection, by JSON path."""
        ...

    def index(self, kinds: Mapping[str, IndexKind]) -> None:
        """Create payload indexes where there are none, up to `MOST_INDEXED` in total."""
        ...

    def remove_former(self) -> None:
        """Remove payload and indexes by which older versions filtered."""
        ...

    def matching(
        self, words: Sparse, limit: int, *, where: Selection, payload: list[str] | None = None
    ) -> Sequence[FoundPoint]:
        """Return up to `limit` points with some of these terms, best first by BM25; `payload` as of `nearest`."""
        ...

    def upsert(self, points: Sequence[NewPoint]) -> None:
        """Write complete points."""
        ...

    def set_payloads(self, payloads: Mapping[str, dict[str, Any]]) -> None:
        """Replace keys in the payloads of points, given by their ids."""
        ...

    def set_vectors(self, vectors: Sequence[NewVector]) -> None:
        """Write vectors with their digests and checksums to points that are unchanged since they were read."""
        ...

    def set_derived(self, derived: Sequence[DerivedData]) -> None:
        """Write derived data to points whose records are unchanged since they were read."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Remove points."""
        ...
