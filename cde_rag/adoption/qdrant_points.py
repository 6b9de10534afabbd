"""Adoption of another application's points as records, without affecting its own use of them.

An adopted point keeps its id, its vectors and its payload; keys that begin with `cde_` are added to the payload. It is
read, embedded and written while its application may write it, too, and an application writes complete points. So a
point is marked before it is read, and the result is written only if the mark is still there: a point written meanwhile
has lost it, and is found again among those without our vector.
"""

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient, models

from cde_rag.errors import StoreError
from cde_rag.records import Record
from cde_rag.stores.checks import plain_settings
from cde_rag.stores.qdrant import generations, index, tables
from cde_rag.stores.qdrant.calls import call, call_if_found
from cde_rag.stores.qdrant.contexts import CONTEXTS, MANIFEST_ID, METADATA, concrete, delete_context, metadata_of
from cde_rag.stores.qdrant.engine import QdrantEngine, QdrantSession
from cde_rag.stores.qdrant.manifest import is_store, load
from cde_rag.stores.qdrant.search import given_vectors
from cde_rag.stores.qdrant.store import QdrantStore
from cde_rag.stores.qdrant.tables import MARK, in_requests, json_bytes, native, natives
from cde_rag.stores.qdrant_base.manifest import PointsManifest, full_name, vector_name
from cde_rag.stores.qdrant_base.payload import ID, OURS, metadata_payload, record_payload, vector_payload
from cde_rag.stores.qdrant_base.points import NewPoint
from cde_rag.stores.qdrant_base.words import named_weights

_PAGE: Final = 512  # points read at once
_NAMED: Final = 20  # collections in a message
_COPY: Final = "Or copy the texts into a collection of their own; cde_rag.adoption.qdrant.foreign_records reads them."
_THEIRS: Final = models.Filter(must_not=[tables.OURS])  # points that are no records of ours


class Foreign(NamedTuple):
    """A point of someone else's.

    Attributes:
        id: Id of the point.
        payload: As its application wrote it.
    """

    id: str
    payload: dict[str, Any]


class AdoptingEngine(QdrantEngine):
    """Engine of an AdoptingStore.

    Attributes:
        marks: Marks of the points that are being adopted, by id.
    """

    def __init__(self, client: QdrantClient, collection: str) -> None:
        super().__init__(client, collection)
        self.marks = dict[str, str]()

    def adopt(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make a store, without records as yet, of the collection."""
        encoded = json.dumps(settings, ensure_ascii=False)
        with self.lock.writing():
            generations.first(self.points(adopted=True), dim, fingerprint, context, encoded, self._indexing)

    def _session(self, manifest: PointsManifest, *, is_sure: bool = True) -> QdrantSession:
        return AdoptingSession(self, manifest, self.marks, is_sure=is_sure)


class AdoptingSession(QdrantSession):
    """Session of an AdoptingStore.

    Args:
        engine: As for QdrantSession.
        manifest: As for QdrantSession.
        marks: Marks of the points that are being adopted, by id.
        is_sure: As for QdrantSession.
    """

    def __init__(self, engine: QdrantEngine, manifest: PointsManifest, marks: dict[str, str], *, is_sure: bool) -> None:
        super().__init__(engine, manifest, is_sure=is_sure)
        self._marks = marks

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Upsert records like `QdrantSession.put`; those of marked points are skipped if written meanwhile."""
        if vectors is None:  # nothing that is adopted waits for its vector
            super().put(records, digests, vectors)
            return
        places = [place for place, (record, _) in enumerate(records) if record.id in self._marks]
        others = [place for place, (record, _) in enumerate(records) if record.id not in self._marks]
        if others:
            super().put([records[place] for place in others], [digests[place] for place in others], vectors[others])
        if places:
            self._take([records[place] for place in places], [digests[place] for place in places], vectors[places])

    def _take(
        self, records: Sequence[tuple[Record, str]], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> None:
        manifest, points = self.manifest, self.points
        with self._writing():
            manifest.check_native(points.place)
            name, order = manifest.serving.vector, itertools.count(points.last_order() + 1)
            made, analyzer = list[NewPoint](), manifest.analyzer
            for (record, metadata), digest, vector in zip(records, digests, vectors, strict=True):
                payload = record_payload(record, next(order)) | metadata_payload(record.id, metadata)
                payload |= vector_payload(record.id, name, digest, vector)
                vectors_of: dict[str, Any] = {**manifest.named(manifest.serving, vector)}
                vectors_of |= named_weights(record, analyzer) if manifest.words else {}
                made.append(NewPoint(record.id, points.translated(payload), vectors_of))
            made = self._unchanged(made)
            for some in in_requests(made, [json_bytes(new.payload, new.vectors) for new in made]):
                operations = self._operations(some)
                call_if_found(  # a point that is gone since it was read needs no vector
                    lambda operations=operations: points.client.batch_update_points(
                        points.collection, operations, wait=True
                    )
                )
            self._check_written([record.id for record, _ in records])
        for record, _ in records:
            del self._marks[record.id]

    def _unchanged(self, made: Sequence[NewPoint]) -> list[NewPoint]:
        """Return the points that nobody wrote since they were read; checked late, since embedding takes time."""
        points, sent = self.points, natives(new.id for new in made)
        found = call(lambda: points.client.retrieve(points.collection, sent, with_payload=[MARK]))
        marks = {str(point.id): (point.payload or {}).get(MARK) for point in found}
        return [new for new in made if marks.get(new.id) == self._marks[new.id]]

    def _operations(self, some: Sequence[NewPoint]) -> list[models.UpdateOperation]:
        """Return operations that write vectors first, then payloads, so that every record is complete."""
        vectors = [models.PointVectors(id=native(new.id), vector=given_vectors(new.vectors)) for new in some]
        return [
            models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=vectors)),
            *(
                models.SetPayloadOperation(
                    set_payload=models.SetPayload(payload=new.payload, filter=_marked(new.id, self._marks[new.id]))
                )
                for new in some
            ),
        ]


class AdoptingStore(QdrantStore):
    """A QdrantStore while it takes in points that are there. One object for each run.

    Rows of points from `marked` that are added are skipped if their application wrote the points meanwhile.

    Args:
        client: As for QdrantStore.
        collection: Someone else's.
    """

    def __init__(self, client: QdrantClient, collection: str) -> None:
        super().__init__(client, collection)
        self._engine = AdoptingEngine(client, collection)

    def check_there(self) -> bool:
        """Check that there is a collection of this name, or alias; returns True if it is a store already.

        Raises:
            StoreError: There is none, with the names of those that there are.
        """
        metadata = metadata_of(self.client, self.collection)
        if metadata is not None:
            return is_store(metadata)
        found = call(lambda: self.client.get_collections().collections)
        names = sorted(each.name for each in found if not each.name.endswith(CONTEXTS))
        there = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        raise StoreError(
            f"{self.collection}: expected a collection with points, found none of this name. "
            f"{f'There are: {there}.' if names else 'There is no collection at all.'}"
        )

    def begin(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make a store, without records as yet, of a collection that is there.

        Raises:
            StoreError: There is no collection, or it is a store already; or the server adds no vectors to one.
        """
        self.check_there()
        try:
            self._engine.adopt(dim=dim, fingerprint=fingerprint, context=context, settings=plain_settings(settings))
        except StoreError as error:
            raise StoreError(f"{error} {_COPY}") from error

    def foreign(self) -> Iterator[list[Foreign]]:
        """Yield pages of the points that are no records."""
        offset = None
        while True:
            page, offset = call(
                lambda offset=offset: self.client.scroll(self.collection, _THEIRS, limit=_PAGE, offset=offset)
            )
            yield [_foreign(point) for point in page]
            if offset is None:
                return

    def foreign_vectors(self, name: str) -> Iterator[list[tuple[Foreign, list[float]]]]:
        """Yield pages of the points that are no records, with one of their own vectors; points without it are skipped.

        Args:
            name: Name of the vector; "" for the unnamed one.
        """
        offset, wanted = None, [name] if name else True
        while True:
            page, offset = call(
                lambda offset=offset: self.client.scroll(
                    self.collection, _THEIRS, limit=_PAGE, offset=offset, with_vectors=wanted
                )
            )
            found = [(_foreign(point), point.vector) for point in page]
            named = [(point, each.get(name) if isinstance(each, dict) else each) for point, each in found]
            yield [(point, cast("list[float]", each)) for point, each in named if isinstance(each, list)]
            if offset is None:
                return

    def count_foreign(self) -> int:
        """Count the points that are no records."""
        return call(lambda: self.client.count(self.collection, _THEIRS, exact=True)).count

    def marked(self, ids: Sequence[str]) -> list[Foreign]:
        """Mark points, and return those that exist, to be embedded and added."""
        mark, sent = uuid.uuid4().hex, natives(ids)
        if not sent:
            return []
        which = models.PointIdsList(points=sent)
        with self._engine.lock.writing():
            call_if_found(lambda: self.client.set_payload(self.collection, {MARK: mark}, which, wait=True))
            found = call(lambda: self.client.retrieve(self.collection, sent))
        self._engine.marks |= {str(point.id): mark for point in found}
        return [_foreign(point) for point in found]


def only_here(client: QdrantClient, collection: str) -> Iterator[str]:
    """Yield ids of the records in an adopted collection that were added through it, not by the other application."""
    store, offset = QdrantStore(client, collection), None
    store.manifest()
    nobodys = models.Filter(must=[tables.OURS, models.IsEmptyCondition(is_empty=models.PayloadField(key=MARK))])
    while True:
        page, offset = call(
            lambda offset=offset: client.scroll(collection, nobodys, limit=_PAGE, offset=offset, with_payload=[ID])
        )
        yield from (str((point.payload or {})[ID]) for point in page)
        if offset is None:
            return


def release_points(client: QdrantClient, collection: str) -> None:
    """Remove all data of this library from an adopted collection; after a crash, repeat the call.

    Args:
        client: As for QdrantStore.
        collection: An adopted collection. Its points, their vectors and their payload stay.

    Raises:
        StoreError: It was not adopted, there are records that only this library has, or a run is in progress.
    """
    engine = QdrantEngine(client, collection)
    if engine.exists():
        with engine.lease():
            _give_up(client, collection)
    elif METADATA not in (metadata_of(client, collection) or {}):
        raise StoreError(f"{collection}: expected a collection that was adopted, found none of ours. Nothing to do.")
    for name in index.vector_params(client, collection):
        if full_name(name) == name:
            _forget_keys(client, collection, [name])
            delete_context(client, collection, name.removeprefix(vector_name("")))
            index.delete_vectors(client, collection, name)  # last, since the name is what is found again
    index.delete_words(client, collection)
    _forget_keys(client, collection, [*map(tables.among_theirs, OURS), MARK])
    engine.points(adopted=True).delete_indexes([*map(tables.among_theirs, OURS)])
    beside = concrete(client, collection) + CONTEXTS
    if client.collection_exists(beside):
        call(lambda: client.delete(beside, models.PointIdsList(points=[MANIFEST_ID]), wait=True))
    if client.collection_exists(beside) and not call(lambda: client.count(beside, exact=True)).count:
        call(lambda: client.delete_collection(beside))
    call(lambda: client.update_collection(collection, metadata={METADATA: None}))


def _give_up(client: QdrantClient, collection: str) -> None:
    """Remove the manifest: from here on there is no store, only its remains."""
    manifest = load(client, collection)
    if not manifest.adopted:
        hint = "It is a store of its own: drop the collection."
        raise StoreError(f"{collection}: expected a collection that was adopted, found one that was not. {hint}")
    ours = list(only_here(client, collection))
    if ours:
        raise StoreError(
            f"{collection}: expected records that are its application's, too; found {len(ours)} that were added "
            f"through the collection, such as {ours[0]!r:.80}. Delete them; "
            "cde_rag.adoption.qdrant_points.only_here lists them."
        )
    call(lambda: client.update_collection(collection, metadata={METADATA: {"released": True}}))


def _forget_keys(client: QdrantClient, collection: str, keys: list[str]) -> None:
    there = [
        models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key=key))]) for key in (MARK, ID)
    ]
    which = models.FilterSelector(filter=models.Filter(should=[*there]))
    call(lambda: client.delete_payload(collection, keys, which, wait=True))


def _foreign(point: models.Record) -> Foreign:
    return Foreign(str(point.id), {key: value for key, value in (point.payload or {}).items() if key != MARK})


def _marked(id_: str, mark: str) -> models.Filter:
    same = models.FieldCondition(key=MARK, match=models.MatchValue(value=mark))
    return models.Filter(must=[models.HasIdCondition(has_id=natives([id_])), same])
