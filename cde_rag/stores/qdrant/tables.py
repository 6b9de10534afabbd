"""The points of a collection that are ours: reading and writing them in requests of a bearable size."""

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient, models

from cde_rag.stores.qdrant.calls import call, call_if_found
from cde_rag.stores.qdrant.search import (
    given_vectors,
    nearest_request,
    search_params,
    words_request,
)
from cde_rag.stores.qdrant_base.metadata_paths import METADATA, MOST_INDEXED, IndexKind
from cde_rag.stores.qdrant_base.payload import FILTERS, FORMER, ORDER, RECORD, place_of, point_id
from cde_rag.stores.qdrant_base.points import DerivedData, NewPoint, NewVector
from cde_rag.stores.qdrant_base.selection import ALL, Selection, has
from cde_rag.stores.qdrant_base.words import WORDS, Sparse

_AT_ONCE: Final = 512  # points read in one request
_QUERIES: Final = 100  # of one point each, in one request
_REQUEST_BYTES: Final = 2**23  # of 32 MiB that a server takes
_FLOAT_BYTES: Final = 14  # in JSON
_DIGITS: Final = 20  # of 2**64

_ALWAYS: Final = {ORDER: models.PayloadSchemaType.INTEGER, FILTERS: models.PayloadSchemaType.KEYWORD}
MARK: Final = "cde_mark"  # in the payload of a point that is someone else's; whoever writes the point removes it
_AMONG_THEIRS: Final = {"text": "cde_text", "title": "cde_title", "metadata": "cde_json"}
_SWAPPED: Final = _AMONG_THEIRS | {name: key for key, name in _AMONG_THEIRS.items()}  # so that none of either is lost

Item = TypeVar("Item")
_AnyPoint = TypeVar("_AnyPoint", models.Record, models.ScoredPoint)

OURS: Final = models.FieldCondition(key=ORDER, range=models.Range(gte=1))


class ClientPoints:
    """The points of one collection. Implements `cde_rag.stores.qdrant_base.points.Points`.

    Args:
        client: Client of a server, or in local mode.
        collection: Name of the collection, or an alias of it.
        local: True if the client is in local mode, which has no indexes and always searches exactly.
        adopted: True if they are someone else's, who have payload and vectors of their own in them. Then a record whose
            id Qdrant can have is the point of that id, and ours in a payload have names that are not theirs.
        search_beam: Candidates of HNSW for each query; the server's default where None.
        indexed: Keys of payloads that need no further index; those that come to be so are added.
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
        self._settled = set[str]() if indexed is None else indexed
        self.search_beam = search_beam
        self.client = client
        self.collection = collection
        self.local = local
        self.adopted = adopted
        self.last_read: Mapping[str, Any] | None = None  # payload of the last record that was read

    @property
    def place(self) -> str:
        """Name of the collection."""
        return self.collection

    @property
    def always_exact(self) -> bool:
        """True in local mode, which has no HNSW."""
        return self.local

    def point_id(self, id_: str) -> str | None:
        """Return the id of the point for a record: in adopted collections the record's own, if Qdrant allows it."""
        return id_ if self.adopted and is_native(id_) else point_id(id_)

    @property
    def metadata_key(self) -> str:
        """Key of the metadata in a payload."""
        return among_theirs(METADATA) if self.adopted else METADATA

    def indexed(self) -> dict[str, str]:
        """Return the kinds of payload indexes, of which local mode has none."""
        if self.local:
            return {}
        schema = call(lambda: self.client.get_collection(self.collection)).payload_schema
        return {key: found.data_type.value for key, found in schema.items()}

    def create_indexes(self) -> None:
        """Create the payload indexes that order and filters need in any case."""
        for key, schema in _ALWAYS.items():
            self._create_index(key, schema)

    def index(self, kinds: Mapping[str, IndexKind]) -> None:
        """Create payload indexes where there are none."""
        if kinds.keys() <= self._settled:
            return
        there = self.indexed()
        due = [key for key in kinds if key not in there and key not in self._settled]
        for key in due[: max(0, MOST_INDEXED - len(there))]:
            self._create_index(key, models.PayloadSchemaType(kinds[key]))
        self._settled.update(there, kinds)  # those that are too many are not asked for again

    def delete_indexes(self, roots: Sequence[str]) -> None:
        """Remove payload indexes on keys that begin with one of these."""
        for key in self.indexed():
            if key.split(".")[0] in roots:
                call(lambda key=key: self.client.delete_payload_index(self.collection, key, wait=True))

    def _create_index(self, key: str, schema: models.PayloadSchemaType) -> None:
        if not self.local:
            call(lambda: self.client.create_payload_index(self.collection, key, schema, wait=True))

    def retrieve(self, ids: Sequence[str], *, vectors: bool | list[str] = False) -> dict[str, models.Record]:
        """Return the points of those ids that exist, in batches of requests."""
        found: dict[str, models.Record] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = natives(ids[start : start + _AT_ONCE])
            records = call(lambda some=some: self.client.retrieve(self.collection, some, with_vectors=vectors))
            found |= {str(record.id): self._noticed(record) for record in records}
        return found

    def having(self, vector: str) -> Selection:
        """Return the filter that a vector of that name has its checksum, which is written last."""
        return has(f"{vector}.checksum")

    def count(self, where: Selection = ALL) -> int:
        """Count the store's selected points exactly."""
        return call(lambda: self.client.count(self.collection, _ours(where), exact=True)).count

    def last_order(self) -> int:
        """Return the highest position in the order of insertion."""
        last = models.OrderBy(key=ORDER, direction=models.Direction.DESC)
        found, _ = call(lambda: self.client.scroll(self.collection, limit=1, order_by=last))
        return self._order(self._noticed(found[0])) if found else 0

    def first_after(self, positions: Sequence[int]) -> list[models.ScoredPoint]:
        """Return the first point after each position, in batch requests."""
        requests = [
            models.QueryRequest(
                query=models.OrderByQuery(order_by=models.OrderBy(key=ORDER, start_from=position + 1)),
                filter=_ours(ALL),
                limit=1,
                with_payload=True,
            )
            for position in positions
        ]
        found: list[models.ScoredPoint] = []
        for some in (requests[start : start + _QUERIES] for start in range(0, len(requests), _QUERIES)):
            answers = call(lambda some=some: self.client.query_batch_points(self.collection, some))
            found += [self._noticed(point) for answer in answers for point in answer.points]
        return found

    def in_order(
        self,
        where: Selection = ALL,
        *,
        after: tuple[int, str] = (0, ""),
        complete: bool = False,
        at_once: int = _AT_ONCE,
    ) -> Iterator[models.Record]:
        """Yield the store's selected points, in order of insertion, by scroll requests.

        Two processes that add at the same moment can assign the same position; the point's id breaks the tie.
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
                    with_vectors=complete,
                )
            )
            full = len(found) == size
            last = self._order(found[-1]) if full else 0
            whole = [record for record in found if not full or self._order(record) < last]
            behind = (one for one in whole if self._place(one) > after)
            yield from map(self._noticed, sorted(behind, key=self._place))
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
        payload: list[str] | None = None,
    ) -> list[list[models.ScoredPoint]]:
        """Return the nearest points of each query, in one batch request."""
        asked = models.Filter.model_validate(where)
        params = None if self.local else search_params(limit, exact=exact, search_beam=self.search_beam)
        first = None if exact else prefix
        keys = self._keys(payload)
        requests = [
            nearest_request(name, query, limit, where=asked, params=params, prefix=first, payload=keys)
            for query in queries
        ]
        found = call(lambda: self.client.query_batch_points(self.collection, requests))
        read = self._noticed if payload is None else self._translated
        return [[*map(read, one.points)] for one in found]

    def matching(
        self, words: Sparse, limit: int, *, where: Selection, payload: list[str] | None = None
    ) -> list[models.ScoredPoint]:
        """Return points with some of these terms, best first, by sparse vectors."""
        keys = self._keys(payload)
        request = words_request(words, limit, where=models.Filter.model_validate(where), payload=keys)
        (found,) = call(lambda: self.client.query_batch_points(self.collection, [request]))
        return [*map(self._noticed if payload is None else self._translated, found.points)]

    def upsert(self, points: Sequence[NewPoint]) -> None:
        """Write complete points in few requests; adopted ones only if their application did not write them since."""
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
        """Replace keys in the payloads of points, in batch requests."""
        operations = [
            models.SetPayloadOperation(
                set_payload=models.SetPayload(payload=self.translated(payload), points=natives([id_]))
            )
            for id_, payload in payloads.items()
        ]
        for some in in_requests(operations, [json_bytes(payload) for payload in payloads.values()]):
            call(lambda some=some: self.client.batch_update_points(self.collection, some, wait=True))

    def set_vectors(self, vectors: Sequence[NewVector]) -> None:
        """Write vectors with their digests and checksums to points that are unchanged since they were read.

        The old checksum is removed first, then the vector is written, then the new checksum, so that a vector with a
        checksum is complete. Each operation applies only to unchanged points, so that a late request, after another run
        has filled or activated the generation, has no effect.
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

    def set_derived(self, derived: Sequence[DerivedData]) -> None:
        """Write derived data to points whose records are unchanged since they were read."""
        operations = [
            models.SetPayloadOperation(
                set_payload=models.SetPayload(payload=self.translated(new.metadata), filter=_same_metadata(new))
            )
            for new in derived
            if new.metadata
        ]
        sizes = [json_bytes(new.metadata) for new in derived if new.metadata]
        for some in in_requests(operations, sizes):
            call(lambda some=some: self.client.batch_update_points(self.collection, some, wait=True))
        if none := [new for new in derived if new.words is None]:
            call(lambda: self.client.delete_vectors(self.collection, [WORDS], _same_records(none), wait=True))
        given = [(new, {WORDS: new.words}) for new in derived if new.words is not None]
        for some in in_requests(given, [json_bytes({}, vectors) for _, vectors in given]):
            made = [models.PointVectors(id=native(new.point), vector=given_vectors(words)) for new, words in some]
            same = _same_records([new for new, _ in some])
            call_if_found(  # a point that is gone since it was read needs no words
                lambda made=made, same=same: self.client.update_vectors(
                    self.collection, made, wait=True, update_filter=same
                )
            )

    def remove_key(self, key: str) -> None:
        """Remove a key from all payloads."""
        there = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key=key))])
        which = models.FilterSelector(filter=there)
        call(lambda: self.client.delete_payload(self.collection, [key], which, wait=True))

    def remove_former(self) -> None:
        """Remove payload and indexes by which older versions filtered."""
        for key in FORMER:
            self.remove_key(key)
        self.delete_indexes(FORMER)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete points."""
        if ids:
            which = models.PointIdsList(points=natives(ids))
            call(lambda: self.client.delete(self.collection, which, wait=True))

    def translated(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Rename the keys of a payload between ours and those in an adopted collection, in either direction."""
        return {among_theirs(key): value for key, value in payload.items()} if self.adopted else dict(payload)

    def _keys(self, payload: list[str] | None) -> list[str] | None:
        return [among_theirs(key) for key in payload] if self.adopted and payload is not None else payload

    def _noticed(self, point: _AnyPoint) -> _AnyPoint:
        payload = point.payload or {}
        self.last_read = payload if ORDER in payload else self.last_read
        return self._translated(point)

    def _translated(self, point: _AnyPoint) -> _AnyPoint:
        return point.model_copy(update={"payload": self.translated(point.payload or {})}) if self.adopted else point

    def _order(self, record: models.Record) -> int:
        return self._place(record)[0]

    def _place(self, record: models.Record) -> tuple[int, str]:
        return place_of(record, self.collection)


def among_theirs(key: str) -> str:
    """Return the name of our payload key in another application's payload, or the reverse."""
    return _SWAPPED.get(key, key)


def _ours(where: Selection) -> models.Filter:
    return models.Filter(must=[OURS, models.Filter.model_validate(where)])


def _same_records(derived: Sequence[DerivedData]) -> models.Filter:
    """Return the filter of points whose title and text are unchanged; a checksum includes the record's id."""
    there = models.HasIdCondition(has_id=natives([new.point for new in derived]))
    same = models.FieldCondition(key=RECORD, match=models.MatchAny(any=[new.record for new in derived]))
    return models.Filter(must=[there, same])


def _same_metadata(new: DerivedData) -> models.Filter:
    """Return the filter of a point whose metadata is unchanged; before format 5 the checksum had no key of its own."""
    there, same = models.HasIdCondition(has_id=natives([new.point])), models.MatchValue(value=new.noted)
    noted = [models.FieldCondition(key=key, match=same) for key in ("cde_metadata", "cde_metadata.checksum")]
    return models.Filter(must=[there, models.Filter(should=[*noted])])


def _unchanged(vectors: Sequence[NewVector]) -> models.Filter:
    """Return the filter of points that are unchanged since they were read, in the active generation and in this one.

    A checksum includes the record's id, so that it cannot be another record's. Either all points have a vector in the
    active generation, or none has.
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


def is_native(id_: str) -> bool:
    """Return True if Qdrant accepts the string unchanged as a point's id: a whole number of 64 bits, or a UUID."""
    if id_.isascii() and id_.isdecimal():
        return len(id_) <= _DIGITS and id_ == str(int(id_)) and int(id_) < 2**64
    try:
        return id_ == str(uuid.UUID(id_))
    except ValueError:
        return False


def native(id_: str) -> int | str:
    """Convert a point's id to Qdrant's types."""
    return int(id_) if id_.isdecimal() else id_


def natives(ids: Iterable[str]) -> list[models.ExtendedPointId]:
    """Convert points' ids to Qdrant's types."""
    return [native(id_) for id_ in ids]


def in_requests(items: Sequence[Item], sizes: Sequence[int]) -> Iterator[list[Item]]:
    """Split items into batches of limited size, of at least one item each.

    Args:
        items: Items to send.
        sizes: Size of each, from `json_bytes`.
    """
    some: list[Item] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if some and total + size > _REQUEST_BYTES:
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some


def json_bytes(payload: object, vectors: object = None) -> int:
    """Estimate the length in JSON."""
    named = cast(dict[str, object], vectors) if isinstance(vectors, dict) else {}
    floats = sum(len(cast(list[object], vector)) for vector in named.values() if isinstance(vector, list))
    floats += sum(2 * len(vector.indices) for vector in named.values() if isinstance(vector, Sparse))
    return len(json.dumps(payload)) + _FLOAT_BYTES * floats
