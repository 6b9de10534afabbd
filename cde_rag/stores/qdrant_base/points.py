"""What has to be done with points. Whatever is called `name` is the name of a vector."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.qdrant_base.selection import ALL, Selection
from cde_rag.stores.qdrant_base.sparse_text import Sparse

MOST_INDEXED: Final = 64  # keys, since metadata can have any number of paths, and each index costs memory


@runtime_checkable
class Point(Protocol):
    """A point as it was read."""

    @property
    def id(self) -> object:
        """UUID of a point of ours; a number where it is adopted."""
        ...

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """JSON object; None where it was not asked for."""
        ...

    @property
    def vector(self) -> object:
        """By name, those that were asked for; something else where a point has but an unnamed one."""
        ...


@runtime_checkable
class Found(Point, Protocol):
    """A point that a search found."""

    @property
    def score(self) -> float:
        """Dot product with the query, in float32."""
        ...


class NewPoint(NamedTuple):
    """A point to be written as a whole.

    Attributes:
        id: As `Points.point_id` gives it.
        payload: JSON object.
        vectors: By name.
    """

    id: str
    payload: dict[str, Any]
    vectors: dict[str, Any]


class NewVector(NamedTuple):
    """A vector for a point that is there.

    Attributes:
        point: Its id.
        vectors: The vector, and its prefix where the store has such, by name.
        noted: Goes into the payload with it.
        active: Name of the active generation's vectors.
        checksum: What is noted of the point's vector there as long as the new one fits its record; None where it has
            none there.
        record: Checksum of the record.
        replaced: What is noted of the vector that this one replaces; None where there is none.
    """

    point: str
    vectors: dict[str, list[float]]
    noted: dict[str, Any]
    active: str
    checksum: str | None
    record: str
    replaced: str | None


@runtime_checkable
class Points(Protocol):
    """The points of one store, and perhaps of others beside them."""

    @property
    def place(self) -> str:
        """Where they are, for messages."""
        ...

    @property
    def always_exact(self) -> bool:
        """Whether every search by whole vectors is exact."""
        ...

    def point_id(self, id_: str) -> str | None:
        """Id of the point that holds the record of an id, or will; None where no record can have the id."""
        ...

    def retrieve(self, ids: Sequence[str], *, vectors: bool | list[str] = False) -> Mapping[str, Point]:
        """The points of those ids that exist; with all vectors, those of some names, or none."""
        ...

    def count(self, where: Selection = ALL) -> int:
        """How many points of ours are selected."""
        ...

    def last_order(self) -> int:
        """Highest place in the order of insertion; 0 where there are no points of ours."""
        ...

    def in_order(
        self,
        where: Selection = ALL,
        *,
        after: tuple[int, str] = (0, ""),
        complete: bool = False,
        at_once: int = 512,
    ) -> Iterator[Point]:
        """Points of ours that are selected, in order of insertion, those behind a place and point id.

        `complete` brings vectors and what filters look at, too. `at_once` is how many are likely to be wanted.
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
    ) -> Sequence[Sequence[Found]]:
        """For each query up to `limit` points with their vector of that name, best first.

        Where they are found by their first `prefix` dimensions or by codes, they are scored by the vector all the same.
        """
        ...

    def index_numbers(self, keys: AbstractSet[str]) -> None:
        """See that ranges over these keys of payloads are found by an index, up to `MOST_INDEXED` keys in all."""
        ...

    def matching(self, words: Sparse, limit: int, *, where: Selection) -> Sequence[Found]:
        """Up to `limit` points with some of these words, best first by BM25."""
        ...

    def upsert(self, points: Sequence[NewPoint]) -> None:
        """Write whole points."""
        ...

    def set_payloads(self, payloads: Mapping[str, dict[str, Any]]) -> None:
        """Replace keys in the payloads of points, given by their ids."""
        ...

    def set_vectors(self, vectors: Sequence[NewVector]) -> None:
        """Give points their vectors and what is noted of them, where they are as they were read."""
        ...

    def set_words(self, words: Mapping[str, Sparse | None]) -> None:
        """Give points, by their ids, their words; None takes them away."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Remove points."""
        ...
