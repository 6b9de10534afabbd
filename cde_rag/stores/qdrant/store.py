"""QdrantStore; the package's docstring says what is in its collections."""

import dataclasses
import itertools
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from qdrant_client import QdrantClient, models

from cde_rag.errors import CDEWarning, CorpusError, StoreError
from cde_rag.stores.base import Damage, Generation, Hit, Row, StoreManifest
from cde_rag.stores.checks import check_limit, check_records, check_unit, encode
from cde_rag.stores.conditions import And, Filter, holds
from cde_rag.stores.filters import parse
from cde_rag.stores.qdrant import generations, writing
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import metadata_of, read_context, vector_name
from cde_rag.stores.qdrant.manifest import GenerationState, Manifest
from cde_rag.stores.qdrant.points import Points
from cde_rag.stores.qdrant.rows import Stored, checked_vector, point_id, read
from cde_rag.stores.qdrant.search import search
from cde_rag.stores.qdrant.translation import translate
from cde_rag.stores.qdrant.turns import held, leased, turns_of
from cde_rag.stores.qdrant.verification import find_damage
from cde_rag.texts import reject_str

LOCAL_POINTS: Final = 2000  # beyond that local mode with a folder, which commits point by point, is no fun


class QdrantStore:
    """Records, vectors and contexts in a collection of Qdrant. Implements `cde_rag.stores.base.Store`.

    Args:
        client: Of a server (HTTP or gRPC), or in local mode (`QdrantClient(":memory:")`); the caller closes it.
        collection: Name of the collection, or an alias of it; `create` makes it where it is not there.
        exact: Search exactly, not by HNSW. Local mode always does.
    """

    def __init__(self, client: QdrantClient, collection: str, *, exact: bool = False) -> None:
        self._client = client
        self._collection = collection
        self._turns = turns_of(client, collection)
        self._folder = client.init_options.get("path") is not None
        local = self._folder or client.init_options.get("location") == ":memory:"
        self._exact = exact
        self._points = Points(client, collection, local=local)

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """See `Store.create`. A collection that is there keeps its points and vectors and gets ours beside them."""
        encoded = encode(settings, "The store's settings")
        with self._turns.writing():
            generations.first(self._points, dim, fingerprint, context, encoded)

    def exists(self) -> bool:
        """See `Store.exists`."""
        return generations.is_store(metadata_of(self._client, self._collection))

    def manifest(self) -> StoreManifest:
        """See `Store.manifest`."""
        return generations.load(self._points).public()

    def context(self, generation: int | None = None) -> bytes:
        """See `Store.context`."""
        with self._turns.reading():
            manifest = generations.load(self._points)
            state = manifest.serving if generation is None else manifest.generation(generation)
            return read_context(self._client, self._collection, state.fingerprint)

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """See `Store.add`."""
        records = list(check_records(row.record for row in rows))
        with self._turns.writing():
            manifest = generations.load(self._points)
            manifest.serving.check_space(fingerprint)
            check_unit(vectors, len(rows), manifest.dim)
            writing.put_rows(self._points, manifest, records, [row.digest for row in rows], vectors)
            many = self._folder and call(lambda: self._client.count(self._collection)).count > LOCAL_POINTS
        if many:
            hint = "Use a server, or another store."
            warnings.warn(f"A folder of Qdrant takes about 150 records a second. {hint}", CDEWarning, stacklevel=2)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """See `Store.update_metadata`."""
        encoded = {id_: encode(new, f"Record {id_!a:.80}") for id_, new in metadata.items()}
        with self._turns.writing():
            generations.load(self._points)  # there has to be a store
            writing.put_metadata(self._points, encoded)

    def delete(self, ids: Sequence[str]) -> int:
        """See `Store.delete`."""
        reject_str(ids, call="delete", what="ids")
        with self._turns.writing():
            generations.load(self._points)  # there has to be a store
            found = self._points.retrieve(_point_ids(ids))
            self._points.delete(list(found))
        return len(found)

    def get(self, ids: Sequence[str]) -> list[Row]:
        """See `Store.get`."""
        reject_str(ids, call="get", what="ids")
        with self._turns.reading():
            name = generations.load(self._points).serving.vector
            found = self._points.retrieve(_point_ids(ids))
            points = [found.get(str(point_id(id_))) for id_ in ids]
            return [self._read(point, name).row for point in points if point is not None]

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """See `Store.count`."""
        condition = None if where is None else parse(where)
        with self._turns.reading():
            manifest = generations.load(self._points)
            if condition is None:
                return self._points.count()
            translated = translate(condition)
            if translated.exact:
                return self._points.count(translated.filter)
            return sum(1 for _ in self._matching(manifest, condition))

    def scroll(
        self, *, where: Mapping[str, Any] | None = None, after: str | None = None, limit: int = 1000
    ) -> list[Row]:
        """See `Store.scroll`."""
        condition = None if where is None else parse(where)
        check_limit(limit)
        with self._turns.reading():
            manifest = generations.load(self._points)
            place = (0, "")
            if after is not None:
                (point,) = writing.found_points(self._points, [after])
                last = self._read(point, manifest.serving.vector)
                place = (last.order, last.point)
            found = self._matching(manifest, condition, after=place, at_once=limit + 1)
            return [stored.row for stored in itertools.islice(found, limit)]

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
    ) -> list[list[Hit]]:
        """See `Store.search`."""
        condition = None if where is None else parse(where)
        if k <= 0:
            raise ValueError(f"k: expected a positive number of hits, found {k}.")
        with self._turns.reading(), self._in(fingerprint) as manifest:
            check_unit(queries, len(queries), manifest.dim)
            return search(self._points, vector_name(fingerprint), queries, k, where=condition, exact=self._exact)

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """See `Store.vectors`."""
        reject_str(ids, call="vectors", what="ids")
        with self._turns.reading(), self._in(fingerprint) as manifest:
            name = manifest.serving.vector
            found = writing.found_points(self._points, ids, vectors=[name])
            matrix = np.empty((len(found), manifest.dim), np.float32)
            for number, point in enumerate(found):
                matrix[number] = checked_vector(point, self._read(point, name), name, self._collection)
            return matrix

    def generations(self) -> list[Generation]:
        """See `Store.generations`."""
        with self._turns.reading():
            manifest = generations.load(self._points)
            return [
                Generation(state.number, state.fingerprint, state.number == manifest.active, self._vectors(state))
                for state in manifest.generations
            ]

    def lease(self) -> AbstractContextManager[None]:
        """See `Store.lease`. On a server it outlives a killed process by half a minute."""
        if self._points.local:
            return held(self._turns.lease, self._collection)
        return leased(self._client, self._collection)

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """See `Store.create_generation`.

        Raises:
            StoreError: There is a generation of that fingerprint, or the server is older than 1.18.
        """
        with self._turns.writing():
            return generations.begin(self._points, fingerprint, context)

    def lacking(self, generation: int, *, limit: int = 1000) -> list[Row]:
        """See `Store.lacking`."""
        check_limit(limit)
        with self._turns.reading():
            manifest = generations.load(self._points)
            lacks = _noted(manifest.inactive(generation), there=False)
            found = itertools.islice(self._points.in_order(lacks, at_once=limit + 1), limit)
            return [self._read(point, manifest.serving.vector).row for point in found]

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """See `Store.add_to_generation`."""
        if len({row.record.id for row in rows}) != len(rows):
            raise CorpusError("Expected each id once in one call of add_to_generation, found one twice.")
        with self._turns.writing():
            manifest = generations.load(self._points)
            state = manifest.inactive(generation)
            check_unit(vectors, len(rows), manifest.dim)
            return writing.put_vectors(self._points, manifest, state, rows, digests, vectors)

    def activate(self, generation: int) -> None:
        """See `Store.activate`. One write of the collection's metadata."""
        with self._turns.writing():
            manifest = generations.load(self._points)
            count, vectors = self._points.count(), self._vectors(manifest.inactive(generation))
            if vectors != count:
                hint = "Add the others with add_to_generation."
                raise StoreError(f"Expected a vector for each of {count} records, found {vectors}. {hint}")
            generations.save(self._points, dataclasses.replace(manifest, active=generation))

    def drop(self, generation: int) -> None:
        """See `Store.drop`."""
        with self._turns.writing():
            generations.remove(self._points, generation)

    def verify(self) -> list[Damage]:
        """See `Store.verify`."""
        with self._turns.reading():
            return find_damage(self._points, generations.load(self._points))

    def close(self) -> None:
        """See `Store.close`. The client stays open: it is the caller's."""

    def _read(self, point: models.Record, name: str) -> Stored:
        return read(point, name, self._collection)

    def _matching(
        self, manifest: Manifest, where: Filter | None, *, after: tuple[int, str] = (0, ""), at_once: int = 512
    ) -> Iterator[Stored]:
        """Rows that match, in order of insertion, those behind a place and point id."""
        translated = translate(where or And(()))
        for point in self._points.in_order(translated.filter, after=after, at_once=at_once):
            stored = self._read(point, manifest.serving.vector)
            if where is None or translated.exact or holds(where, stored.row.record.metadata):
                yield stored

    def _vectors(self, state: GenerationState) -> int:
        return self._points.count(_noted(state, there=True))

    @contextmanager
    def _in(self, fingerprint: str) -> Generator[Manifest, None, None]:
        """The manifest, where that space is the active one; also where it was so when the block began."""
        manifest = generations.load(self._points)
        manifest.serving.check_space(fingerprint)
        try:
            yield manifest
        except StoreError:
            generations.load(self._points).serving.check_space(fingerprint)
            raise


def _noted(state: GenerationState, *, there: bool) -> models.Condition:
    """Points that have, or lack, a vector in a generation."""
    empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=f"{state.vector}.checksum"))
    return models.Filter(must_not=[empty]) if there else empty


def _point_ids(ids: Sequence[str]) -> list[str]:
    return sorted({point for id_ in ids if (point := point_id(id_)) is not None})
