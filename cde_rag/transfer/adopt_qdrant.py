"""Adopting a collection of Qdrant that another application made, with vectors of any model.

Each of its points gets one more vector, `cde_<fingerprint>`, and becomes a record of a Collection; its own vectors and
payload stay, so that the application reads and writes as before. `docs/decisions/0014-adoption.md` says what each
side sees of the other.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import settings_of
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, StoreError
from cde_rag.indexing.upsert import Progress
from cde_rag.model import CDEModel
from cde_rag.records import embedded_text, parent_of, usable
from cde_rag.stores.base import Record
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant.adoption import AdoptingStore, Foreign, only_here, release
from cde_rag.stores.qdrant.payload_schemas import Reading, Texts, reading

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

__all__ = ["Adoption", "adopt", "catch_up", "foreign_records", "only_here", "release"]

_PAGE: Final = 512  # points read at once
_PASSES: Final = 8  # over what was written meanwhile; what comes after waits for the next call


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a run did.

    Attributes:
        adopted: Records more than before.
        skipped: Points that were left alone, since they have no text, or metadata that no record can have.
        documents: Records in the collection now.
        elapsed_s: Seconds.
    """

    adopted: int
    skipped: int
    documents: int
    elapsed_s: float


def adopt(
    client: "QdrantClient",
    collection: str,
    *,
    texts: Texts,
    model: str | Path | CDEModel | None = None,
    embedder: Embedder | None = None,
    context_size: int | None = None,
    seed: int = 0,
    parent_key: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collection:
    """Make a Collection of someone else's points, beside what they are to their old readers.

    Killed at any instant, the old readers have all that they had, and the same call goes on, in the Context that it
    began with. `Collection.open(QdrantStore(client, collection))` opens what it made; `release` takes it out again.

    Args:
        client: Of a server from Qdrant 1.18 on, or in local mode.
        collection: Its name, or an alias of it.
        texts: Where a payload has its text: `"langchain"`, `"llamaindex"`, the key of another payload (whose other keys
            are metadata), or a function that makes a Record of a payload, or None of one without a text. The point
            gives it its id.
        model: As in ContextualEmbedder.from_corpus; the Context is sampled from the texts. By default "cde-mini", and
            the model that it was begun with.
        context_size: Documents of it; as many as the model expects, or 512, by default.
        seed: Of its sample.
        embedder: In place of a sampled Context: any, such as a PlainEmbedder, which `recontextualize` can leave.
        parent_key: As in Collection.create; `"ref_doc_id"` with LlamaIndex, often `"source"` with LangChain.
        on_progress: Called after each write.

    Raises:
        ContextMismatchError: It was begun with another model or embedder.
        CorpusError: There is no text in any payload.
        StoreError: There is no such collection, it is a store of its own, it was begun with other `texts`, another run
            is at work, or the server is older.

    Warns:
        TruncationWarning: Texts were longer than the model reads.
    """
    store, read = AdoptingStore(client, collection), reading(texts)
    if store.exists():
        opened = Collection.open(store, model=model) if embedder is None else Collection(store, embedder)
        begun = _begun_with(opened)
        if begun != (texts if isinstance(texts, str) else None):
            raise StoreError(f"{collection}: expected texts={begun!r}, with which it was begun; found {texts!r}.")
    else:
        if embedder is None:
            found = (embedded_text(record) for record in foreign_records(client, collection, texts=texts))
            try:
                new = model or "cde-mini"
                embedder = ContextualEmbedder.from_corpus(found, model=new, context_size=context_size, seed=seed)
            except CorpusError as error:
                keys = sorted({key for point in next(store.foreign()) for key in point.payload})
                there = ", ".join(keys) or "nothing"
                raise CorpusError(f"{collection}: {error} texts={texts!r} was given; payloads have {there}.") from error
        store.begin(
            dim=embedder.dim,
            fingerprint=embedder.fingerprint,
            context=embedder.context.to_bytes(),
            settings={**settings_of(embedder, parent_key), "texts": texts if isinstance(texts, str) else None},
        )
        opened = Collection(store, embedder)
    adopted = Collection(QdrantStore(client, collection), opened.embedder)
    _take_in(adopted, read, on_progress)
    return adopted


def catch_up(
    collection: Collection,
    *,
    texts: Texts | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Adoption:
    """Embed the points that the application wrote since; until then searches of the Collection do not find them.

    Args:
        collection: What `adopt` made, opened in any way.
        texts: As given to `adopt`, where that was a function.
        on_progress: Called after each write.

    Raises:
        StoreError: It was not adopted, it takes `texts`, or another run is at work.
    """
    if (texts := texts or _begun_with(collection)) is None:
        raise StoreError("Expected the function that reads payloads, found none: catch_up(collection, texts=…).")
    return _take_in(collection, reading(texts), on_progress)


def foreign_records(client: "QdrantClient", collection: str, *, texts: Texts) -> Iterator[Record]:
    """The texts of a collection as records, those that an adopted one has already left out; changes nothing.

    For a collection that cannot be adopted: `Collection.create(…).add_records(foreign_records(…))` copies them.

    Args:
        client: Of any server, or in local mode.
        collection: Its name, or an alias of it.
        texts: As in `adopt`.

    Raises:
        StoreError: There is no such collection.
    """
    read = reading(texts)
    for page in AdoptingStore(client, collection).foreign():
        for point in page:
            record = _record(point, read, None)
            if record is not None:
                yield record


def _begun_with(collection: Collection) -> str | None:
    """The `texts` of an adopted collection; None where they were a function."""
    settings = collection.store.manifest().settings
    if "texts" not in settings:
        raise StoreError("Expected a collection that was adopted, found one that was not, and holds its own records.")
    return settings["texts"]


def _take_in(collection: Collection, read: Reading, on_progress: Callable[[Progress], None] | None) -> Adoption:
    """Give all points a record that have none; again, a few times, for those that were written meanwhile."""
    kept = collection.store
    if not isinstance(kept, QdrantStore):
        raise StoreError(f"Expected a collection in Qdrant, found one in {type(kept).__name__}.")
    started, before, skipped = time.monotonic(), kept.count(), set[str]()
    store = AdoptingStore(kept.client, kept.collection)
    adopting, parent_key = Collection(store, collection.embedder), collection.parent_key

    def tell(_: Progress) -> None:
        if on_progress is not None:
            done = store.count() - before
            total = done + store.count_foreign() - len(skipped)
            on_progress(Progress(done, total, time.monotonic() - started))

    with store.lease():
        left = None
        for _ in range(_PASSES):
            now = store.count_foreign() - len(skipped)
            if now == left:
                break
            left = now
            adopting.add_records(_records(store, read, parent_key, skipped), on_progress=tell)
    documents = kept.count()
    return Adoption(documents - before, len(skipped), documents, time.monotonic() - started)


def _records(store: AdoptingStore, read: Reading, parent_key: str | None, skipped: set[str]) -> Iterator[Record]:
    """The points that are no records, as such; the passages of one parent together. Notes those that cannot be."""
    for ids in _pages(store, read, parent_key):
        for point in store.marked([id_ for id_ in ids if id_ not in skipped]):
            record = _record(point, read, parent_key)
            if record is None:
                skipped.add(point.id)
            else:
                yield record


def _pages(store: AdoptingStore, read: Reading, parent_key: str | None) -> Iterator[list[str]]:
    if parent_key is None:
        yield from ([point.id for point in page] for page in store.foreign())
        return
    found: list[tuple[str, str]] = []
    for page in store.foreign():
        for point in page:
            record = _record(point, read, parent_key)
            parent = None if record is None else parent_of(record, parent_key)
            found.append(("" if parent is None else f"parent {parent}", point.id))
    found.sort(key=lambda one: one[0])
    for start in range(0, len(found), _PAGE):
        yield [id_ for _, id_ in found[start : start + _PAGE]]


def _record(point: Foreign, read: Reading, parent_key: str | None) -> Record | None:
    record = read(point.payload)
    if record is None:
        return None
    try:
        return usable(replace(record, id=point.id), parent_key)
    except CorpusError:
        return None
