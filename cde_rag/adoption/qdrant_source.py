"""Collections of Qdrant, on a server or in a folder of its client, read and moved to another model.

The new vectors are made in a second collection, with all points, payloads, other vectors and settings. Qdrant renames
no collection, but an alias goes from one to another in one step. So where the target is an alias, a switch is that
step. A collection that is named directly stays as it is, and a new alias names the new one: its application changes the
name together with the model, so that no program ever compares vectors of two models.

    papers-cde            alias, for a collection `papers` that was named directly; later moves have it as their target
    papers-cde-1a2b3c4d   new collection, by the fingerprint of its vectors
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
from jaxtyping import Float32
from pydantic import BaseModel
from qdrant_client import QdrantClient, models

from cde_rag.adoption.application_lines import ANY, LLAMA_INDEX, model_line
from cde_rag.adoption.llamaindex_nodes import NODE, embedded_text
from cde_rag.adoption.movable import PAGE, SourceFacts, SourceRow
from cde_rag.adoption.payload_schemas import reading
from cde_rag.adoption.positions import stored
from cde_rag.adoption.table_columns import USUAL, check_choice, one_of, without_bookkeeping
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import StoredVector
from cde_rag.indexing.stamp_reader import KEY
from cde_rag.indexing.stamping import fingerprint_in, stamp_of
from cde_rag.records import Record
from cde_rag.stores.checks import MOST_ROWS
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import METADATA, concrete, metadata_of
from cde_rag.stores.qdrant.tables import in_requests, json_bytes, native, natives

_OURS: Final = "-cde"  # end of the alias that names the new vectors
_SHOWN: Final = 8  # digits of a fingerprint in a name
_OVERSAMPLED: Final = 8  # points that are drawn for each that is wanted, since some may have no text
_SAME: Final = 1e-5  # of a number that a store normalised again
_WAIT_S: Final = 0.5
_Setting = TypeVar("_Setting", bound=BaseModel)


class QdrantSource:
    """A collection of Qdrant.

    Args:
        target: Name given by the user.
        client: Client of Qdrant.
        name: Name of the collection, or an alias of it.
        text: Key of the text in the payload, or `langchain` or `llamaindex`; by default the first of the usual ones.
        vector: Name of the vector; by default the only one.
        home: Folder of a move's journal.
    """

    written_by_old_handles = True  # programs may name the old collection itself

    def __init__(
        self, target: str, client: QdrantClient, name: str, text: str | None, vector: str | None, home: Path
    ) -> None:
        self.target, self._client, self._name, self._text, self.home = target, client, name, text, home
        if not self._exists(name):
            raise StoreError(f"{target}: expected a collection, found none of the name {name!r}.{self._moved_to(name)}")
        params = self._info(name).config.params
        self._names = [""] if isinstance(params.vectors, models.VectorParams) else sorted(params.vectors or {})
        self._vector = one_of(self._names, vector, f"{target}: vectors")
        self._others = [each for each in (*self._names, *(params.sparse_vectors or {})) if each != self._vector]

    def count(self) -> int:
        """Return the number of points."""
        return call(lambda: self._client.count(self._name)).count

    def stamp(self) -> str | None:
        """Return the fingerprint in the stamp, or None."""
        return fingerprint_in(self.stamp_text())

    def stamp_text(self) -> str | None:
        """Return the stamp in the collection's metadata; None if there is none, or there are several vectors."""
        found = (metadata_of(self._client, self._name) or {}).get(KEY)
        return None if found is None or len(self._names) > 1 else str(found)

    def put_stamp(self, text: str) -> None:
        """Store a stamp in the collection's metadata, next to the application's keys."""
        if len(self._names) > 1:
            raise StoreError(
                f"{self.target}: expected one kind of vectors, found {len(self._names)}, and a stamp would not name "
                "the one it belongs to. Such a store gets none."
            )
        name = concrete(self._client, self._name)
        call(lambda: self._client.update_collection(name, metadata={KEY: text}))
        if self.stamp_text() != text:
            raise StoreError(f"{self.target}: expected a server that keeps metadata, found an older one.")

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random points that have a text and the vector, by Qdrant's own sampling."""
        points = call(
            lambda: self._client.query_points(
                self._name,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                limit=_OVERSAMPLED * min(count, MOST_ROWS // _OVERSAMPLED),  # some may have no text
                with_payload=True,
                with_vectors=[self._vector] if self._vector else True,
                query_filter=models.Filter(must=[models.HasVectorCondition(has_vector=self._vector)]),
            )
        ).points
        texts = [self._embedded(point.payload or {}) for point in points]
        if points and not any(texts):
            keys = ", ".join(sorted({key for point in points for key in point.payload or {}}))
            raise StoreError(f"{self.target}: expected texts, found payloads with {keys}. Give --text KEY.")
        rows = zip(points, texts, strict=True)
        found = [(str(point.id), text, self._own(point.vector)) for point, text in rows if text is not None]
        return [stored(id_, text, vector) for id_, text, vector in found if vector is not None][:count]

    def found(self) -> SourceFacts:
        """Return length and distance of the vectors."""
        params = self._params()
        return SourceFacts(params.size, str(params.distance.value), None)

    def check(self, embedder: Embedder) -> None:
        """Refuse stores of this library, and vectors and shards that are not copied.

        Raises:
            StoreError: See above; or names of this library are taken.
        """
        del embedder
        params, name = self._info(self._name).config.params, concrete(self._client, self._name)
        if METADATA in (metadata_of(self._client, self._name) or {}):
            raise StoreError(
                f"{self.target}: expected a collection of another application alone, found one that cde-rag uses. Its "
                "model changes by cde-rag recontextualize; or end an adoption before (cde_rag.adoption.release)."
            )
        own = self._params()
        if own.multivector_config is not None or own.datatype == models.Datatype.UINT8:
            kind = "several vectors" if own.multivector_config is not None else "whole numbers of 8 bits"
            raise StoreError(f"{self.target}: expected one vector of floats for each point, found {kind}.")
        if params.sharding_method == models.ShardingMethod.CUSTOM:
            raise StoreError(
                f"{self.target}: expected shards that Qdrant chooses, found shard keys of its application, which are "
                "not copied. Make a new collection with these keys, and add the points with their new vectors."
            )
        alias = self._alias()
        if name == self._name and self._exists(alias):
            raise StoreError(
                f"{self.target}: expected the name {alias!r} to be free, found it in use. If it is of an earlier move, "
                "give that name as the target."
            )

    def version(self) -> str:
        """Return an empty text: Qdrant counts no writes."""
        return ""

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the points of the old or the new collection."""
        for page in self._pages(self._side(notes, old=old)):
            yield [self._row(point) for point in page]

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the points that have a text and the vector."""
        for page in self._pages(self._name, vectors=[self._vector] if self._vector else True):
            found = [(self._record(point, own=own), self._own(point.vector)) for point in page]
            yield [
                (record, np.asarray(vector, np.float32))
                for record, vector in found
                if record is not None and vector is not None
            ]

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make the new collection, without points, with the settings and payload indexes of the old one and a stamp.

        Raises:
            StoreError: There is a collection of that name which no move has begun, or it is the one in use.
        """
        del folder
        old, alias = concrete(self._client, self._name), self._alias()
        new = f"{self._name.removesuffix(_OURS)}{_OURS}-{embedder.fingerprint[:_SHOWN]}"
        if new == old:
            raise StoreError(
                f"{self.target}: expected vectors of another model, found {old!r}, which an earlier move "
                f"made with {embedder.context.identity.name}. Compare them by cde-rag audit."
            )
        if self._exists(new):
            if call(lambda: self._client.count(new)).count:
                raise StoreError(
                    f"{self.target}: expected no collection {new!r}, found one of a move whose journal is elsewhere. "
                    "Name that journal, or delete the collection."
                )
            call(lambda: self._client.delete_collection(new))  # of a call that was interrupted
        self._create(new, embedder)
        return {"old": old, "new": new, "alias": alias, "text": self._text or "", "vector": self._vector}

    def lacking(self, notes: Mapping[str, str], rows: Sequence[SourceRow], *, old: bool) -> list[SourceRow]:
        """Return the rows that one side lacks, or whose other vectors are not those of the other side."""
        ids = [row.id for row in rows]
        there = self._points(self._side(notes, old=old), ids, vectors=self._others)
        if not self._others:
            return [row for row in rows if row.id not in there]
        wanted = self._points(self._side(notes, old=not old), ids, vectors=self._others)
        return [
            row
            for row in rows
            if row.id not in there or (row.id in wanted and not _alike(there[row.id].vector, wanted[row.id].vector))
        ]

    def get(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> list[SourceRow]:
        """Return points by id."""
        found = self._points(self._side(notes, old=old), ids, payload=True)
        return [self._row(point) for point in found.values()]

    def put(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        vectors: Float32[np.ndarray, "rows dim"],
        *,
        old: bool,
    ) -> None:
        """Write points, with the other vectors that they have on the other side; those that are gone are left out."""
        there = self._points(self._side(notes, old=not old), [row.id for row in rows], vectors=True)
        points: list[models.PointStruct] = []
        for row, vector in zip(rows, vectors, strict=True):
            if row.id in there:
                made = self._replaced(there[row.id].vector, vector.tolist())
                points.append(models.PointStruct(id=native(row.id), payload=row.payload, vector=made))
        name = self._side(notes, old=old)
        sizes = [json_bytes(point.payload, {"": [0] * vectors.shape[1] * (1 + len(self._others))}) for point in points]
        for some in in_requests(points, sizes):
            call(lambda some=some: self._client.upsert(name, some, wait=True))

    def remove(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> None:
        """Delete points."""
        if ids:
            which = models.PointIdsList(points=natives(ids))
            call(lambda: self._client.delete(self._side(notes, old=old), which, wait=True))

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Wait until the server has indexed the new collection.

        Raises:
            StoreError: The server reports that it cannot.
        """
        del parked
        while (status := self._info(notes["new"]).status) == models.CollectionStatus.YELLOW:
            time.sleep(_WAIT_S)
        if status == models.CollectionStatus.RED:
            raise StoreError(
                f"{self.target}: expected {notes['new']!r} to be indexed, found errors. Read Qdrant's log, mend that, "
                "and run the command again."
            )
        return dict(notes)

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "QdrantSource":
        """Return the new collection, or the old one."""
        name = self._side(notes, old=old)
        return QdrantSource(self.target, self._client, name, self._text, self._vector, self.home)

    def switch(self, notes: Mapping[str, str]) -> float:
        """Give the alias to the new collection, in one step; there is no gap."""
        self._point(notes, notes["new"])
        return 0.0

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Give the alias back to the old collection, in one step; one that the switch made is removed."""
        self._point(notes, None if notes["alias"] != self._name else notes["old"])
        return 0.0

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the alias names the new collection."""
        del embedder
        return concrete(self._client, notes["alias"]) == notes["new"]

    def release(self, notes: Mapping[str, str], *, switched: bool) -> None:
        """Delete the collection that is not in use.

        Raises:
            StoreError: Another alias names it.
        """
        name = notes["old"] if switched else notes["new"]
        if not self._exists(name):
            return
        aliases = [each.alias_name for each in call(lambda: self._client.get_collection_aliases(name)).aliases]
        if aliases:
            raise StoreError(
                f"{self.target}: expected nothing else to use the collection {name!r}, found its alias "
                f"{aliases[0]!r:.80}. Give that to another collection, or delete it; then release."
            )
        call(lambda: self._client.delete_collection(name))

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line of LlamaIndex if points are nodes, else LangChain's; and the new name, if there is one."""
        alias = self._alias()
        rest = "" if alias == self._name else f'and collection_name="{alias}" in place of "{self._name}"'
        found, _ = call(lambda: self._client.scroll(self._name, limit=1, with_payload=True))
        is_node = any(NODE in (point.payload or {}) for point in found)
        return model_line(embedder, context, LLAMA_INDEX if is_node else ANY, rest)

    def _moved_to(self, name: str) -> str:
        """Return a sentence for a collection that a release has deleted, perhaps before its end."""
        if not self._exists(name + _OURS):
            return ""
        return f" A move gave its vectors the name {name + _OURS!r}. If a journal is left, keep its Context alone."

    def _alias(self) -> str:
        """Return the alias of the new vectors: the target, or a new one for a collection that is named directly."""
        return self._name if concrete(self._client, self._name) != self._name else self._name + _OURS

    def _side(self, notes: Mapping[str, str], *, old: bool) -> str:
        """Return the name of the old or the new collection; without notes of the one in use."""
        if not notes:
            return self._name
        check_choice(self.target, notes, self._text, self._vector)
        return notes["old" if old else "new"]

    def _exists(self, name: str) -> bool:
        """Return True for a collection, or an alias of one."""
        return metadata_of(self._client, name) is not None

    def _info(self, name: str) -> models.CollectionInfo:
        return call(lambda: self._client.get_collection(name))

    def _params(self) -> models.VectorParams:
        found = self._info(self._name).config.params.vectors
        return found if isinstance(found, models.VectorParams) else cast(Any, found)[self._vector]

    def _create(self, new: str, embedder: Embedder) -> None:
        """Create a collection with the settings of the one in use, and other vectors."""
        info = self._info(self._name)
        config, params = info.config, info.config.params
        own = self._params().model_copy(update={"size": embedder.dim})
        metadata = {key: value for key, value in (config.metadata or {}).items() if key != KEY}
        if len(self._names) == 1:
            metadata[KEY] = stamp_of(embedder)
        is_unnamed = isinstance(params.vectors, models.VectorParams)
        vectors = own if is_unnamed else {**cast(Any, params.vectors), self._vector: own}
        call(
            lambda: self._client.create_collection(
                new,
                vectors_config=vectors,
                sparse_vectors_config=params.sparse_vectors,
                shard_number=params.shard_number,
                replication_factor=params.replication_factor,
                write_consistency_factor=params.write_consistency_factor,
                on_disk_payload=params.on_disk_payload,
                hnsw_config=_request(models.HnswConfigDiff, config.hnsw_config),
                optimizers_config=_request(models.OptimizersConfigDiff, config.optimizer_config),
                wal_config=_request(models.WalConfigDiff, config.wal_config),
                quantization_config=config.quantization_config,
                strict_mode_config=_request(models.StrictModeConfig, config.strict_mode_config),
                metadata=metadata or None,
                payload=params.payload,
                id_tracker=params.id_tracker,
            )
        )
        for key, found in info.payload_schema.items():
            schema = found.data_type if found.params is None else found.params
            call(lambda key=key, schema=schema: self._client.create_payload_index(new, key, schema, wait=True))

    def _point(self, notes: Mapping[str, str], collection: str | None) -> None:
        """Give the alias to a collection, or to none.

        Raises:
            StoreError: Another collection has it, or it was deleted.
        """
        alias = notes["alias"]
        now = concrete(self._client, alias)
        if now == collection or (now == alias and collection is None):
            return
        is_new = alias != self._name and now == alias
        if not is_new and now not in (notes["old"], notes["new"]):
            raise StoreError(
                f"{self.target}: expected the alias {alias!r} of one of the collections of this move, found "
                f"{'none' if now == alias else repr(now)}. Give it to {notes['old']!r} or {notes['new']!r}."
            )
        delete = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))
        operations: list[models.AliasOperations] = [] if is_new else [delete]
        if collection is not None:
            made = models.CreateAlias(collection_name=collection, alias_name=alias)
            operations.append(models.CreateAliasOperation(create_alias=made))
        call(lambda: self._client.update_collection_aliases(operations))

    def _pages(self, name: str, *, vectors: bool | list[str] = False) -> Iterator[list[models.Record]]:
        offset: models.ExtendedPointId | None = None
        while True:
            read = partial(self._client.scroll, name, limit=PAGE, with_payload=True, with_vectors=vectors)
            found: tuple[list[models.Record], Any] = call(partial(read, offset=offset))
            page, offset = found
            if page:
                yield page
            if offset is None:
                return

    def _points(
        self, name: str, ids: Sequence[str], *, vectors: bool | list[str] = False, payload: bool = False
    ) -> dict[str, models.Record]:
        """Return those points that are there, by id, with these vectors."""
        if not ids:
            return {}
        found = call(
            lambda: self._client.retrieve(name, natives(ids), with_payload=payload, with_vectors=vectors or False)
        )
        return {str(point.id): point for point in found}

    def _row(self, point: models.Record) -> SourceRow:
        payload = point.payload or {}
        return SourceRow(str(point.id), self._embedded(payload), payload)

    def _record(self, point: models.Record, *, own: bool) -> Record | None:
        """Return a point as a record with its own text, or the one that was embedded; None without one."""
        payload = point.payload or {}
        found, text = self._read(payload), self._embedded(payload)
        if found is None or text is None:
            return None
        return Record(str(point.id), found.text if own else text, metadata=without_bookkeeping(found.metadata))

    def _read(self, payload: Mapping[str, Any]) -> Record | None:
        """Return text and metadata in a payload, by default in the first schema or under the first key that has one."""
        for dialect in ("llamaindex", "langchain", *USUAL) if self._text is None else (self._text,):
            if (record := reading(dialect)(payload)) is not None:
                return record
        return None

    def _embedded(self, payload: Mapping[str, Any]) -> str | None:
        """Return the text in a payload as it was embedded: LlamaIndex adds metadata."""
        found = self._read(payload)
        return None if found is None else embedded_text(found.text, payload)

    def _own(self, found: Any) -> list[float] | None:
        """Return the vector of a point that is moved; None if it has none."""
        return cast(dict[str, Any], found).get(self._vector) if isinstance(found, dict) else found or None

    def _replaced(self, found: Any, vector: list[float]) -> Any:
        """Return the vectors of a point with the new one; where there was none, there is none."""
        if isinstance(found, dict):
            named = cast(dict[str, Any], found)
            return {**named, self._vector: vector} if self._vector in named else named
        return vector if found else {}


def _request(kind: type[_Setting], found: BaseModel | None) -> _Setting | None:
    """Return a setting as a request has it; a newer server may report more of it."""
    if found is None:
        return None
    settings = {key: value for key, value in found.model_dump(exclude_none=True).items() if key in kind.model_fields}
    return kind(**settings)


def _alike(one: Any, other: Any) -> bool:
    """Return True for vectors by name that are the same, but for normalisation."""
    first, second = _numbers(one), _numbers(other)
    if first.keys() != second.keys():
        return False
    return all(
        first[name].shape == second[name].shape and np.allclose(first[name], second[name], rtol=_SAME, atol=_SAME)
        for name in first
    )


def _numbers(found: Any) -> dict[str, np.ndarray]:
    named = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    return {
        name: np.asarray([*vector.indices, *vector.values] if isinstance(vector, models.SparseVector) else vector)
        for name, vector in named.items()
    }
