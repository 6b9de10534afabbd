"""Collections of Chroma, of its persistent client or its server, read and moved to another model.

The new vectors are made in a second collection, `NAME-cde-new`. Chroma has no atomic exchange, so that a switch is two
renames, `NAME` to `NAME-cde-old` and `NAME-cde-new` to `NAME`, some milliseconds in which there is no `NAME`.
Collections are known by their ids, which names do not change: a program that holds one goes on with it.
"""

import importlib
import json
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.adoption.application_lines import ANY, CHROMA, LLAMA_INDEX, model_line, plain_name
from cde_rag.adoption.chroma_function import CDEFunction, config_of, name_of
from cde_rag.adoption.llamaindex_nodes import NODE, embedded_text
from cde_rag.adoption.movable import SourceFacts, SourceRow
from cde_rag.adoption.positions import drawn, stored
from cde_rag.adoption.table_columns import without_bookkeeping
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import StoredVector
from cde_rag.indexing.stamp_reader import KEY
from cde_rag.indexing.stamping import fingerprint_in, stamp_of
from cde_rag.records import Record
from cde_rag.stamps import stamp, stamped

NEW, OLD = "-cde-new", "-cde-old"  # ends of the names of collections of ours
PAGE: Final = 1024  # rows at once: each write merges the index of words; 256 take a third more of the processor's time
IDS: Final = 8 * PAGE  # ids read at once: Chroma reads all rows before an offset, too
_TUNED: Final = ("ef_construction", "ef_search", "max_neighbors", "resize_factor", "sync_threshold", "space")
_CONTENT: Final = ["documents", "metadatas", "uris"]

TextOf: TypeAlias = Callable[[Any, Any], str | None]  # text as it was embedded, of document and metadata


class ChromaCollection:
    """A collection of Chroma.

    Args:
        target: Name given by the user.
        client: Client of Chroma.
        name: Name of the collection.
        home: Folder of a move's journal.
        random: Draws samples.
        texts: Reads the text of a record; LlamaIndex adds metadata to it.
        given: True if the application gives all vectors itself, so that a configured function makes none.
    """

    written_by_old_handles = True  # handles name a collection by its id

    def __init__(
        self,
        target: str,
        client: Any,
        name: str,
        home: Path,
        random: Random,
        *,
        texts: TextOf = embedded_text,
        given: bool = False,
    ) -> None:
        self.target, self._client, self._name, self.home, self._random = target, client, name, home, random
        self._texts, self._given = texts, given

    def check_there(self) -> None:
        """Check that there is the collection, or one of a move that was cut between its renames.

        Raises:
            StoreError: There is none.
        """
        if all(self._named(self._name + end) is None for end in ("", OLD, NEW)):
            self._live()

    def count(self) -> int:
        """Return the number of records."""
        return int(self._live().count())

    def stamp(self) -> str | None:
        """Return the stamp in the collection's metadata, or None."""
        return stamped(self._live().metadata) or fingerprint_in(self.stamp_text())

    def stamp_text(self) -> str | None:
        """Return the stamp for other programs in the collection's metadata, or None."""
        metadata: dict[str, Any] = self._live().metadata or {}
        found = metadata.get(KEY)
        return None if found is None else str(found)

    def put_stamp(self, text: str) -> None:
        """Store a stamp in the metadata, next to the application's keys.

        Raises:
            StoreError: Chroma would drop one of these keys, which LangChain's relevance scores read.
        """
        live = self._live()
        if "hnsw:space" in (live.metadata or {}):
            raise StoreError(
                f"{self.target}: expected metadata that can be changed, found 'hnsw:space' there, which Chroma would "
                "drop, and LangChain's scores read. No stamp is written; a move by cde-rag reembed writes one."
            )
        live.modify(metadata={**(live.metadata or {}), KEY: text})

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random records that have a document."""
        return sample_of(self._live(), self._random, count, self._texts)

    def found(self) -> SourceFacts:
        """Return length and distance of the vectors, and the configured embedding function."""
        live = self._live()
        one = live.get(limit=1, include=["embeddings"])["embeddings"]
        function = _function(live)
        named = None if function is None else f"{function['name']} {json.dumps(function.get('config', {}))}"
        metadata: dict[str, Any] = live.metadata or {}
        space = metadata.get("hnsw:space") or _index(live)["space"]  # of Chroma before 1.0, which wins
        return SourceFacts(len(one[0]) if len(one) else 0, space, named)

    def check(self, embedder: Embedder) -> None:
        """Refuse indexes that cannot be made again.

        Raises:
            StoreError: See above.
        """
        del embedder
        live = self._live()
        with _without_functions():
            schema = live.schema
        keys: dict[str, Any] = {} if schema is None else schema.keys
        sparse = [name for name, kinds in keys.items() if _is_sparse(kinds)]
        if sparse:
            raise StoreError(
                f"{self.target}: expected dense vectors alone, found a sparse index of {sparse[0]!r:.60}, which is "
                "not copied. Make a new collection with that schema, and add the records with their new vectors."
            )

    def version(self) -> str:
        """Return an empty text: Chroma counts no writes."""
        return ""

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the records of the old or the new collection."""
        for page in _pages(self._known(notes, old=old), _CONTENT):
            yield _rows(page, self._texts)

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the records that have a document, with their vectors."""
        for page in _pages(self._live(), [*_CONTENT, "embeddings"]):
            rows = zip(_rows(page, self._texts), page["embeddings"], strict=True)
            found: list[tuple[Record, Float32[np.ndarray, " dim"]]] = []
            for row, vector in rows:
                if row.text is not None:
                    metadata: dict[str, Any] = row.payload["metadata"] or {}
                    text = row.payload["document"] if own else row.text
                    record = Record(row.id, text, metadata=without_bookkeeping(metadata))
                    found.append((record, np.asarray(vector, np.float32)))
            yield found

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make the new collection, empty, with the index settings and metadata of the old one and a stamp.

        Raises:
            StoreError: There is a collection of that name which no move has begun.
        """
        del folder
        live = self._live()
        function = _function(live)
        if function is not None and not self._is_given(live):
            function = _function_of(embedder)
        return self.made(stamps_of(embedder), function)

    def made(self, stamps: Mapping[str, str], function: Mapping[str, Any] | None) -> dict[str, str]:
        """Make the new collection, as in `begin`.

        Args:
            stamps: Added to the metadata.
            function: Embedding function of its configuration.

        Raises:
            StoreError: As in `begin`.
        """
        live = self._live()
        metadata = dict(live.metadata or {})
        index = {key: value for key, value in _index(live).items() if key in _TUNED}
        name = self._name + NEW
        new = self._named(name)
        if new is not None:
            if stamped(new.metadata) is None or new.count():
                raise StoreError(
                    f"{self.target}: expected no collection {name!r}, found one of a move whose journal is elsewhere. "
                    "Name that journal, or delete the collection."
                )
            self._client.delete_collection(name)  # of a call that was interrupted, perhaps with another Context
        new = _created(self._client, name, {**metadata, **stamps}, index, function)
        return {"old": str(live.id), "new": str(new.id)}

    def lacking(self, notes: Mapping[str, str], rows: Sequence[SourceRow], *, old: bool) -> list[SourceRow]:
        """Return the rows whose ids the collection does not have."""
        there = set(self._known(notes, old=old).get(ids=[row.id for row in rows], include=[])["ids"])
        return [row for row in rows if row.id not in there]

    def get(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> list[SourceRow]:
        """Return records by id."""
        return _rows(self._known(notes, old=old).get(ids=list(ids), include=_CONTENT), self._texts)

    def put(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        vectors: Float32[np.ndarray, "rows dim"],
        *,
        old: bool,
    ) -> None:
        """Write records, each at once for readers; one that loses its document goes first, since Chroma keeps that."""
        collection = self._known(notes, old=old)
        there = {row.id: row.payload for row in self.get(notes, [row.id for row in rows], old=old)}
        losing = [row.id for row in rows if row.id in there and _loses(there[row.id], row.payload)]
        if losing:
            collection.delete(ids=losing)
            there = {id_: payload for id_, payload in there.items() if id_ not in losing}
        size = int(self._client.get_max_batch_size())
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            with _without_functions():
                collection.upsert(
                    ids=[row.id for row in part],
                    embeddings=vectors[start : start + size],
                    documents=[row.payload["document"] for row in part],
                    metadatas=[_replacing(there.get(row.id), row.payload) for row in part],
                    uris=[row.payload["uri"] for row in part],
                )

    def remove(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> None:
        """Delete records."""
        collection = self._known(notes, old=old)
        if there := collection.get(ids=list(ids), include=[])["ids"]:
            collection.delete(ids=there)

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Return the notes: every write of Chroma is complete."""
        del parked
        return dict(notes)

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "ChromaRecords":
        """Return the new collection, or the old one."""
        return ChromaRecords(self.target, self._known(notes, old=old), self._random, self._texts)

    def switch(self, notes: Mapping[str, str]) -> float:
        """Rename the old collection, then the new one; a repeated call does the rest."""
        return self._exchange(notes["old"], self._name + OLD, notes["new"], self._name + NEW)

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Rename the new collection, then the old one; a repeated call does the rest."""
        return self._exchange(notes["new"], self._name + NEW, notes["old"], self._name + OLD)

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the new collection has the name."""
        del embedder
        live = self._named(self._name)
        return live is not None and str(live.id) == notes["new"]

    def release(self, notes: Mapping[str, str], *, switched: bool) -> None:
        """Delete the collection that is not in use."""
        id_, name = (notes["old"], self._name + OLD) if switched else (notes["new"], self._name + NEW)
        found = self._named(name)
        if found is not None and str(found.id) == id_:
            self._client.delete_collection(name)

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line of a program with LlamaIndex, LangChain's Chroma, or Chroma's client and a function."""
        old = self._named(self._name + OLD) if self._named(self._name) is None else None  # a switch was cut
        live = self._live() if old is None else old
        if _is_of_nodes(live):
            return model_line(embedder, context, LLAMA_INDEX)
        if _function(live) is None:
            return model_line(embedder, context, ANY)
        if plain_name(embedder) is None:
            return model_line(embedder, context, CHROMA)
        return (
            "No line, unless the program passes embedding_function=…: the new collection names its function "
            f"{json.dumps(_function_of(embedder))}, and client.get_collection(name) takes it."
        )

    def _exchange(self, out: str, out_name: str, into: str, into_name: str) -> float:
        """Give the name from the collection `out` to `into`.

        Raises:
            StoreError: A third collection has the name, which a program may have made in the gap of a call that was
                interrupted.
        """
        started, live = time.perf_counter(), self._named(self._name)
        if live is not None and str(live.id) == into:
            return 0.0
        coming = self._named(into_name)
        if coming is None or str(coming.id) != into:
            raise StoreError(f"{self.target}: expected the collection {into_name!r} of this move, found none.")
        if live is not None and str(live.id) == out:
            live.modify(name=out_name)
        elif live is not None and live.count() == 0:  # of get_or_create_collection in the gap
            self._client.delete_collection(self._name)
        elif live is not None:
            raise StoreError(
                f"{self.target}: expected one of two collections under this name, found a third with {live.count()} "
                f"records, which a program made meanwhile. Rename it, and add its records to {into_name!r}."
            )
        coming.modify(name=self._name)
        return time.perf_counter() - started

    def _is_given(self, live: Any) -> bool:
        """Return True if the configured function makes no vector; LlamaIndex gives all, also where there is one."""
        return self._given or _is_of_nodes(live)

    def _live(self) -> Any:
        found = self._named(self._name)
        if found is None:
            raise StoreError(
                f"{self.target}: expected a collection, found none of the name {self._name!r}. "
                "Name one that is there, or end its move by cde-rag release."
            )
        return found

    def _known(self, notes: Mapping[str, str], *, old: bool) -> Any:
        """Return the old or the new collection, under whichever name it has; without notes the one in use."""
        if not notes:
            return self._live()
        id_, end = (notes["old"], OLD) if old else (notes["new"], NEW)
        for name in (self._name, self._name + end):
            found = self._named(name)
            if found is not None and str(found.id) == id_:
                return found
        raise StoreError(
            f"{self.target}: expected the collection {id_} of this move, found none under its names. Run the "
            "command again; if that does not help, end the move by cde-rag release."
        )

    def _named(self, name: str) -> Any | None:
        from chromadb.errors import NotFoundError

        try:
            return self._client.get_collection(name, embedding_function=None)
        except NotFoundError:
            return None


def stamps_of(embedder: Embedder) -> dict[str, str]:
    """Return the metadata of a new collection that name its model, for us and for other programs."""
    return stamp(embedder.fingerprint) | {KEY: stamp_of(embedder)}


class ChromaRecords:
    """Records of one collection, for an audit.

    Args:
        target: Name in reports.
        collection: Collection of Chroma's client.
        random: Draws samples.
        texts: Reads the text of a record.
    """

    def __init__(self, target: str, collection: Any, random: Random, texts: TextOf) -> None:
        self.target, self._collection, self._random, self._texts = target, collection, random, texts

    def count(self) -> int:
        """Return the number of records."""
        return int(self._collection.count())

    def stamp(self) -> str | None:
        """Return the stamp in the metadata, or None."""
        return stamped(self._collection.metadata)

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random records that have a document."""
        return sample_of(self._collection, self._random, count, self._texts)


def sample_of(collection: Any, random: Random, count: int, texts: TextOf) -> list[StoredVector]:
    """Draw random records of a collection that have a document."""

    def read(places: list[int]) -> list[StoredVector]:
        pages = [collection.get(limit=1, offset=place, include=[*_CONTENT, "embeddings"]) for place in places]
        found: list[StoredVector] = []
        for page in pages:
            for row, vector in zip(_rows(page, texts), page["embeddings"], strict=True):
                if row.text is not None:
                    found.append(stored(row.id, row.text, vector))
        return found

    return drawn(random, int(collection.count()), count, read)


def _pages(collection: Any, include: Sequence[str]) -> Iterator[Any]:
    """Yield the records of a collection, page by page, with the parts that are named."""
    offset = 0
    while ids := collection.get(limit=IDS, offset=offset, include=[])["ids"]:
        for start in range(0, len(ids), PAGE):
            if (page := collection.get(ids=ids[start : start + PAGE], include=include))["ids"]:
                yield page
        offset += len(ids)


def _rows(page: Mapping[str, Any], texts: TextOf) -> list[SourceRow]:
    found: list[SourceRow] = []
    for id_, document, metadata, uri in zip(
        page["ids"], page["documents"], page["metadatas"], page["uris"], strict=True
    ):
        payload = {"document": document, "metadata": metadata, "uri": uri}
        found.append(SourceRow(id_, texts(document, metadata), payload))
    return found


def _loses(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return any(before[part] is not None and after[part] is None for part in ("document", "uri"))


def _replacing(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return metadata for a write that Chroma merges: keys that go are None."""
    gone = {} if before is None else dict.fromkeys(before["metadata"] or ())
    return gone | (after["metadata"] or {}) or None


def _index(collection: Any) -> dict[str, Any]:
    found = collection.configuration_json.get("hnsw")
    if found is None:
        raise StoreError(
            f"{collection.name}: expected an HNSW index, found another kind. Such collections are not moved."
        )
    return cast(dict[str, Any], found)


def _is_sparse(kinds: Any) -> bool:
    """Return True if a key of a schema has a sparse index."""
    sparse = getattr(kinds, "sparse_vector", None)
    return sparse is not None and bool(sparse.sparse_vector_index.enabled)


@contextmanager
def _without_functions() -> Generator[None, None, None]:
    """Ignore Chroma's warnings of embedding functions that it cannot make here: none is called."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Could not reconstruct embedding function", UserWarning)
        yield


def _is_of_nodes(collection: Any) -> bool:
    """Return True if the records are LlamaIndex' nodes."""
    metadatas: list[Any] = collection.get(limit=1, include=["metadatas"])["metadatas"]
    return any(NODE in (metadata or {}) for metadata in metadatas)


def _function(collection: Any) -> dict[str, Any] | None:
    """Return the embedding function that a collection's configuration names."""
    found = collection.configuration_json.get("embedding_function")
    return found if found is not None and found.get("type") == "known" else None


def _function_of(embedder: Embedder) -> dict[str, Any]:
    """Return the configuration of an embedding function that makes an embedder's vectors: Chroma's own, or ours."""
    name = plain_name(embedder)
    if name is None:
        return {"name": name_of(embedder.fingerprint), "config": config_of(embedder)}
    config: dict[str, Any] = {"model_name": name, "device": "cpu", "normalize_embeddings": True, "kwargs": {}}
    return {"name": "sentence_transformer", "config": config}


def _created(
    client: Any, name: str, metadata: Mapping[str, Any], index: Mapping[str, Any], function: Mapping[str, Any] | None
) -> Any:
    """Create a collection whose configuration names a function, which is not made: that would load a model."""
    configuration: dict[str, Any] = {"hnsw": dict(index)}
    if function is None:
        return client.create_collection(name, embedding_function=None, metadata=metadata, configuration=configuration)
    functions: Any = importlib.import_module("chromadb.utils.embedding_functions")
    registered: dict[str, Any] = functions.known_embedding_functions
    before = registered.get(function["name"])

    def get_config(_: object) -> dict[str, Any]:
        return dict(function["config"])

    own: dict[str, Any] = {
        "__init__": lambda _: None,  # pyright: ignore[reportUnknownLambdaType]
        "name": staticmethod(lambda: function["name"]),
        "get_config": get_config,
    }
    named: Any = type("Named", (before or CDEFunction,), own)
    try:
        with _without_functions():
            return client.create_collection(
                name, embedding_function=named(), metadata=metadata, configuration=configuration
            )
    finally:  # create_collection registers the class
        registered.pop(function["name"], None)
        if before is not None:
            registered[function["name"]] = before
