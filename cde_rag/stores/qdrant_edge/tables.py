"""The points of a shard: each call that writes is one entry of the shard's log, so it is done wholly or not at all."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import qdrant_edge as edge
from jaxtyping import Float32

from cde_rag.stores.qdrant_base.index import Hnsw
from cde_rag.stores.qdrant_base.metadata_paths import METADATA, IndexKind
from cde_rag.stores.qdrant_base.payload import FORMER, ORDER, note, place_of, point_id
from cde_rag.stores.qdrant_base.points import DerivedData, NewPoint, NewVector
from cde_rag.stores.qdrant_base.selection import ALL, Selection
from cde_rag.stores.qdrant_base.words import WORDS, Sparse
from cde_rag.stores.qdrant_edge.search import edge_filter, flags, given_vectors, nearest_requests, words_request
from cde_rag.stores.qdrant_edge.shard import EdgeShard

_AT_ONCE: Final = 512  # points read at once


class _ReadPoint(NamedTuple):
    """Point, converted once, since the engine's own objects convert at every access."""

    id: str
    payload: dict[str, Any]
    vector: dict[str, Any]
    score: float = 0.0


class ShardPoints:
    """The points of one shard, all of them ours. Implements `cde_rag.stores.qdrant_base.points.Points`.

    Args:
        engine: Has it open.
        place: For messages.
        search_beam: Candidates of HNSW for each query, at least.
    """

    def __init__(self, engine: EdgeShard, place: str, *, search_beam: int = Hnsw().ef) -> None:
        self._search_beam = search_beam
        self._engine = engine
        self._handle = place

    @property
    def place(self) -> str:
        """Path of the folder."""
        return self._handle

    @property
    def always_exact(self) -> bool:
        """False: searches may use HNSW."""
        return False

    def point_id(self, id_: str) -> str | None:
        """Return the id of the point for the record of an id."""
        return point_id(id_)

    def retrieve(self, ids: Sequence[str], *, vectors: bool | list[str] = False) -> dict[str, _ReadPoint]:
        """Return the points of those ids that exist."""
        wanted: list[Any] = [*ids]
        found = self._engine.call(lambda shard: shard.retrieve(wanted, with_payload=True, with_vector=vectors))
        return {str(record.id): _read(record) for record in found}

    def having(self, vector: str) -> Selection:
        """Return the filter for points with a vector of that name."""
        return {"must": [{"has_vector": vector}]}

    def count(self, where: Selection = ALL) -> int:
        """Count the selected points."""
        request = edge.CountRequest(filter=edge_filter(where))
        return self._engine.call(lambda shard: shard.count(request))

    def last_order(self) -> int:
        """Return the highest position in the order of insertion."""
        request = edge.ScrollRequest(limit=1, order_by=edge.OrderBy(ORDER, edge.Direction.Desc), with_payload=[ORDER])
        found, _ = self._engine.call(lambda shard: shard.scroll(request))
        return self._order(_read(found[0])) if found else 0

    def first_after(self, positions: Sequence[int]) -> list[_ReadPoint]:
        """Return the first point after each position."""
        each = (self.in_order(after=(position, ""), at_once=1) for position in positions)
        return [point for found in each for point in itertools.islice(found, 1)]

    def in_order(
        self,
        where: Selection = ALL,
        *,
        after: tuple[int, str] = (0, ""),
        complete: bool = False,
        at_once: int = _AT_ONCE,
    ) -> Iterator[_ReadPoint]:
        """Yield the selected points, in order of insertion; positions are unique, since one process writes."""
        size, last = min(at_once, _AT_ONCE), after[0]
        while True:
            request = edge.ScrollRequest(
                limit=size,
                filter=edge_filter(where),
                order_by=edge.OrderBy(ORDER, start_from=last + 1),
                with_payload=True,
                with_vector=complete,
            )
            records, _ = self._engine.call(lambda shard, request=request: shard.scroll(request))
            found = [_read(record) for record in records]
            yield from found
            if len(found) < size:
                return
            last = self._order(found[-1])

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
    ) -> list[list[_ReadPoint]]:
        """Return the nearest points of each query."""
        requests = nearest_requests(
            name,
            queries,
            limit,
            where=where,
            exact=exact,
            search_beam=self._search_beam,
            prefix=prefix,
            payload=payload,
        )
        found = self._engine.call(lambda shard: shard.query_batch(edge.QueryBatchRequest(requests)))
        return [[_read(point, point.score) for point in points] for points in found]

    @property
    def metadata_key(self) -> str:
        """Key of the metadata in a payload."""
        return METADATA

    def indexed(self) -> dict[str, str]:
        """Return the kinds of payload indexes."""
        return self._engine.indexed()

    def index(self, kinds: Mapping[str, IndexKind]) -> None:
        """Create payload indexes where there are none."""
        self._engine.index(kinds)

    def matching(
        self, words: Sparse, limit: int, *, where: Selection, payload: list[str] | None = None
    ) -> list[_ReadPoint]:
        """Return points with some of these terms, best first, by sparse vectors."""
        request = words_request(words, limit, where=where, payload=payload)
        (found,) = self._engine.call(lambda shard: shard.query_batch(edge.QueryBatchRequest([request])))
        return [_read(point, point.score) for point in found]

    def upsert(self, points: Sequence[NewPoint]) -> None:
        """Write complete points in one operation."""
        if points:
            made = [edge.Point(new.id, given_vectors(new.vectors), new.payload | flags(new.payload)) for new in points]
            self._engine.write(edge.UpdateOperation.upsert_points(made))

    def set_payloads(self, payloads: Mapping[str, dict[str, Any]]) -> None:
        """Replace keys in the payloads of points, by writing the points again."""
        found = self._whole(list(payloads))
        self.upsert([NewPoint(id_, found[id_].payload | new, found[id_].vector) for id_, new in payloads.items()])

    def set_vectors(self, vectors: Sequence[NewVector]) -> None:
        """Write vectors to points that are unchanged since they were read, by writing the points again."""
        found = self._whole([new.point for new in vectors])
        made: list[NewPoint] = []
        for new in vectors:
            old = found[new.point]
            if (note(old.payload, new.active) or ("", None))[1] == new.checksum:
                made.append(NewPoint(new.point, old.payload | new.noted, old.vector | new.vectors))
        self.upsert(made)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete points."""
        if ids:
            self._engine.write(edge.UpdateOperation.delete_points([*ids]))

    def set_derived(self, derived: Sequence[DerivedData]) -> None:
        """Write derived data; nobody else writes to the points of a folder meanwhile."""
        self.set_payloads({new.point: new.metadata for new in derived if new.metadata})
        none = [new.point for new in derived if new.words is None]
        given = [
            edge.PointVectors(new.point, given_vectors({WORDS: new.words})) for new in derived if new.words is not None
        ]
        if none:
            self._engine.write(edge.UpdateOperation.delete_vectors([*none], [WORDS]))
        if given:
            self._engine.write(edge.UpdateOperation.update_vectors(given))

    def remove_former(self) -> None:
        """Remove payload and indexes by which older versions filtered."""
        former = [key for key in self.indexed() if key.split(".")[0] in FORMER]
        self._engine.write(
            edge.UpdateOperation.delete_payload_by_filter(edge.Filter(), [*FORMER]),
            *map(edge.UpdateOperation.delete_field_index, former),
        )

    def create_words(self) -> None:
        """Begin sparse vectors of words, which no point has."""
        self._engine.write(edge.UpdateOperation.create_sparse_vector(WORDS, edge.Modifier.Idf))

    def create_vectors(self, name: str, dim: int) -> None:
        """Add named vectors that no point has; existing ones of that name are removed."""
        self._engine.write(
            edge.UpdateOperation.delete_vector_name(name),
            edge.UpdateOperation.create_dense_vector(name, dim, edge.Distance.Dot),
        )

    def delete_vectors(self, name: str) -> None:
        """Remove named vectors, with their digests and checksums."""
        noted = edge.Filter(must_not=[edge.IsEmptyCondition(name)])
        self._engine.write(
            edge.UpdateOperation.delete_vector_name(name),
            edge.UpdateOperation.delete_payload_by_filter(noted, [name]),
        )

    def _whole(self, ids: Sequence[str]) -> dict[str, _ReadPoint]:
        """Return complete points, to be written again."""
        wanted: list[Any] = [*ids]
        found = self._engine.call(lambda shard: shard.retrieve(wanted, with_payload=True, with_vector=True))
        return {str(record.id): _read(record) for record in found}

    def _order(self, record: _ReadPoint) -> int:
        return place_of(record, self._handle)[0]


def _read(point: edge.Record | edge.ScoredPoint, score: float = 0.0) -> _ReadPoint:
    return _ReadPoint(str(point.id), point.payload or {}, cast(dict[str, Any], point.vector or {}), score)
