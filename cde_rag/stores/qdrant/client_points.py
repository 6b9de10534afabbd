"""The points of a collection that are ours: reading and writing them in requests of a bearable size."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient, models

from cde_rag.stores.qdrant.calls import call, call_if_found
from cde_rag.stores.qdrant.ids import is_native, native, natives
from cde_rag.stores.qdrant.indexes import PayloadIndexes
from cde_rag.stores.qdrant.queries import (
    ROW,
    given_vectors,
    nearest_request,
    search_params,
    selection_filter,
    words_request,
)
from cde_rag.stores.qdrant.requests import in_requests, json_bytes
from cde_rag.stores.qdrant_base.payload import ORDER, RECORD, place_of, point_id
from cde_rag.stores.qdrant_base.points import NewPoint, NewVector
from cde_rag.stores.qdrant_base.selection import ALL, Selection
from cde_rag.stores.qdrant_base.sparse_text import WORDS, Sparse

_AT_ONCE: Final = 512  # points read in one request

MARK: Final = "cde_mark"  # in the payload of a point that is someone else's; whoever writes the point removes it
_AMONG_THEIRS: Final = {"text": "cde_text", "title": "cde_title", "metadata": "cde_json"}
_SWAPPED: Final = _AMONG_THEIRS | {name: key for key, name in _AMONG_THEIRS.items()}  # so that none of either is lost

_AnyPoint = TypeVar("_AnyPoint", models.Record, models.ScoredPoint)

OURS: Final = models.FieldCondition(key=ORDER, range=models.Range(gte=1))


class ClientPoints:
    """The points of one collection. Implements `cde_rag.stores.qdrant_base.points.Points`.

    Args:
        client: Of a server, or in local mode.
        collection: Name of the collection, or an alias of it.
        local: True if the client is in local mode, which has no indexes and always searches exactly.
        adopted: True if they are someone else's, who have payload and vectors of their own in them. Then a record whose
            id Qdrant can have is the point of that id, and ours in a payload have names that are not theirs.
        search_beam: Candidates of HNSW for each query; the server's default where None.
        indexed: See PayloadIndexes.
    """

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        *,
        local: bool,
        adopted: bool = False,
        search_beam: int | None = None,
        indexed: set[str] | None = None,
    ) -> None:
        self.indexes = PayloadIndexes(client, collection, set[str]() if indexed is None else indexed, local=local)
        self.search_beam = search_beam
        self.client = client
        self.collection = collection
        self.local = local
        self.adopted = adopted

    @property
    def place(self) -> str:
        """See `Points.place`."""
        return self.collection

    @property
    def always_exact(self) -> bool:
        """See `Points.always_exact`."""
        return self.local

    def point_id(self, id_: str) -> str | None:
        """See `Points.point_id`."""
        return id_ if self.adopted and is_native(id_) else point_id(id_)

    def index_numbers(self, keys: AbstractSet[str]) -> None:
        """See `Points.index_numbers`."""
        self.indexes.add_numbers(keys)

    def retrieve(self, ids: Sequence[str], *, vectors: bool | list[str] = False) -> dict[str, models.Record]:
        """See `Points.retrieve`."""
        found: dict[str, models.Record] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = natives(ids[start : start + _AT_ONCE])
            records = call(
                lambda some=some: self.client.retrieve(self.collection, some, with_payload=ROW, with_vectors=vectors)
            )
            found |= {str(record.id): self._translated(record) for record in records}
        return found

    def count(self, where: Selection = ALL) -> int:
        """See `Points.count`."""
        return call(lambda: self.client.count(self.collection, _ours(where), exact=True)).count

    def last_order(self) -> int:
        """See `Points.last_order`."""
        last = models.OrderBy(key=ORDER, direction=models.Direction.DESC)
        found, _ = call(lambda: self.client.scroll(self.collection, limit=1, order_by=last, with_payload=[ORDER]))
        return self._order(found[0]) if found else 0

    def in_order(
        self,
        where: Selection = ALL,
        *,
        after: tuple[int, str] = (0, ""),
        complete: bool = False,
        at_once: int = _AT_ONCE,
    ) -> Iterator[models.Record]:
        """See `Points.in_order`.

        Two processes that add at the same moment can give the same place twice; the point's id decides then.
        """
        size, first = min(at_once, _AT_ONCE), max(1, after[0])
        selected = _ours(where)
        while True:
            order_by = models.OrderBy(key=ORDER, start_from=first)
            found, _ = call(
                lambda size=size, order_by=order_by: self.client.scroll(
                    self.collection,
                    selected,
                    limit=size,
                    order_by=order_by,
                    with_payload=complete or ROW,
                    with_vectors=complete,
                )
            )
            full = len(found) == size
            last = self._order(found[-1]) if full else 0
            whole = [record for record in found if not full or self._order(record) < last]
            behind = (one for one in whole if self._place(one) > after)
            yield from map(self._translated, sorted(behind, key=self._place))
            if not full:
                return
            size = size if whole else 2 * size  # more of one place than fit
            first = last

    def nearest(
        self,
        name: str,
        queries: Float32[np.ndarray, "queries dim"],
        limit: int,
        *,
        where: Selection,
        exact: bool,
        prefix: int | None,
    ) -> list[list[models.ScoredPoint]]:
        """See `Points.nearest`."""
        asked = None if where == ALL else selection_filter(where)
        params = None if self.local else search_params(limit, exact=exact, search_beam=self.search_beam)
        first = None if exact else prefix
        requests = [nearest_request(name, query, limit, where=asked, params=params, prefix=first) for query in queries]
        found = call(lambda: self.client.query_batch_points(self.collection, requests))
        return [[*map(self._translated, one.points)] for one in found]

    def matching(self, words: Sparse, limit: int, *, where: Selection) -> list[models.ScoredPoint]:
        """See `Points.matching`."""
        request = words_request(words, limit, where=None if where == ALL else selection_filter(where))
        (found,) = call(lambda: self.client.query_batch_points(self.collection, [request]))
        return [*map(self._translated, found.points)]

    def upsert(self, points: Sequence[NewPoint]) -> None:
        """See `Points.upsert`. In few requests; an adopted one only where its application did not write it since."""
        for some in in_requests(points, [json_bytes(new.payload, new.vectors) for new in points]):
            self._upsert([new for new in some if MARK not in new.payload], None)
            self._upsert([new for new in some if MARK in new.payload], models.UpdateMode.UPDATE_ONLY)

    def _upsert(self, points: Sequence[NewPoint], mode: models.UpdateMode | None) -> None:
        structs = [
            models.PointStruct(
                id=native(new.id), payload=self.translated(new.payload), vector=given_vectors(new.vectors)
            )
            for new in points
        ]
        marks = models.MatchAny(any=[new.payload[MARK] for new in points if MARK in new.payload])
        same = None if mode is None else models.Filter(must=[models.FieldCondition(key=MARK, match=marks)])
        if structs:
            call(lambda: self.client.upsert(self.collection, structs, wait=True, update_filter=same, update_mode=mode))

    def set_payloads(self, payloads: Mapping[str, dict[str, Any]]) -> None:
        """See `Points.set_payloads`."""
        operations = [
            models.SetPayloadOperation(
                set_payload=models.SetPayload(payload=self.translated(payload), points=natives([id_]))
            )
            for id_, payload in payloads.items()
        ]
        for some in in_requests(operations, [json_bytes(payload) for payload in payloads.values()]):
            call(lambda some=some: self.client.batch_update_points(self.collection, some, wait=True))

    def set_vectors(self, vectors: Sequence[NewVector]) -> None:
        """See `Points.set_vectors`.

        First the old note goes, then the vector comes, then the new note, so that whatever has a note is whole. Each
        applies where a point is as it was read, so that a request that comes late, when another run has filled the
        generation or activated it, changes nothing.
        """
        whole = [new for new in vectors if new.checksum is not None]
        bare = [new for new in vectors if new.checksum is None]
        requests = [in_requests(some, [json_bytes(new.noted, new.vectors) for new in some]) for some in (whole, bare)]
        for some in itertools.chain(*requests):
            keys = sorted({key for new in some for key in new.noted})
            unchanged = _unchanged(some)
            operations: list[models.UpdateOperation] = [
                models.DeletePayloadOperation(delete_payload=models.DeletePayload(keys=keys, filter=unchanged)),
                models.UpdateVectorsOperation(
                    update_vectors=models.UpdateVectors(
                        points=[models.PointVectors(id=native(new.point), vector={**new.vectors}) for new in some],
                        update_filter=unchanged,
                    )
                ),
                *(
                    models.SetPayloadOperation(
                        set_payload=models.SetPayload(payload=new.noted, filter=_unchanged([new]))
                    )
                    for new in some
                ),
            ]
            call_if_found(  # a point that is gone since it was read needs no vector
                lambda operations=operations: self.client.batch_update_points(self.collection, operations, wait=True)
            )

    def set_words(self, words: Mapping[str, Sparse | None]) -> None:
        """See `Points.set_words`."""
        none = natives([id_ for id_, one in words.items() if one is None])
        if none:
            which = models.PointIdsList(points=none)
            call_if_found(lambda: self.client.delete_vectors(self.collection, [WORDS], which, wait=True))
        given = [(native(id_), {WORDS: one}) for id_, one in words.items() if one is not None]
        for some in in_requests(given, [json_bytes({}, vectors) for _, vectors in given]):
            made = [models.PointVectors(id=id_, vector=given_vectors(vectors)) for id_, vectors in some]
            call_if_found(lambda made=made: self.client.update_vectors(self.collection, made, wait=True))

    def remove_key(self, key: str) -> None:
        """Remove a key from all payloads."""
        there = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key=key))])
        which = models.FilterSelector(filter=there)
        call(lambda: self.client.delete_payload(self.collection, [key], which, wait=True))

    def delete(self, ids: Sequence[str]) -> None:
        """See `Points.delete`."""
        if ids:
            which = models.PointIdsList(points=natives(ids))
            call(lambda: self.client.delete(self.collection, which, wait=True))

    def translated(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A payload with the names that stand in Qdrant for those in it, or the other way round."""
        return {among_theirs(key): value for key, value in payload.items()} if self.adopted else dict(payload)

    def _translated(self, point: _AnyPoint) -> _AnyPoint:
        return point.model_copy(update={"payload": self.translated(point.payload or {})}) if self.adopted else point

    def _order(self, record: models.Record) -> int:
        return self._place(record)[0]

    def _place(self, record: models.Record) -> tuple[int, str]:
        return place_of(record, self.collection)


def among_theirs(key: str) -> str:
    """What a key of ours is called in a payload of someone else's, and the other way round."""
    return _SWAPPED.get(key, key)


def _ours(where: Selection) -> models.Filter:
    return models.Filter(must=[OURS] if where == ALL else [OURS, selection_filter(where)])


def _unchanged(vectors: Sequence[NewVector]) -> models.Filter:
    """Points that are as they were read, in the active generation and in this one.

    A checksum is over the record's id, too, so that one is not another record's. All have a vector in the active
    generation, or none has one.
    """
    there = models.HasIdCondition(has_id=natives([new.point for new in vectors]))
    records = models.FieldCondition(key=RECORD, match=models.MatchAny(any=[new.record for new in vectors]))
    noted, active = [new.checksum for new in vectors if new.checksum is not None], vectors[0].active
    as_active = models.FieldCondition(key=f"{active}.checksum", match=models.MatchAny(any=noted))
    no_active = models.IsEmptyCondition(is_empty=models.PayloadField(key=active))
    (key,) = vectors[0].noted
    replaced = models.MatchAny(any=[new.replaced for new in vectors if new.replaced is not None])
    none = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
    as_read = models.Filter(should=[none, models.FieldCondition(key=f"{key}.checksum", match=replaced)])
    return models.Filter(must=[there, records, as_active if noted else no_active, as_read])
