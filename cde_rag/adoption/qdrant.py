"""Adoption of an existing Qdrant collection that another application made, with vectors of any model.

Each of its points gets one more vector, `cde_<fingerprint>`, and becomes a record of a Collection; its own vectors and
payload stay, so that the application reads and writes as before. `docs/decisions/adoption.md` describes the effect of
each side's changes on the other.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from cde_rag.adoption.outcome import Adoption
from cde_rag.adoption.payload_schemas import Reading, Texts, reading
from cde_rag.adoption.qdrant_points import AdoptingStore, Foreign, release_points
from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import settings_of
from cde_rag.embedders.contextual import ContextualEmbedder, as_model, contextual
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, StoreError, counted
from cde_rag.indexing.upsert import Progress
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.models.model import CHECKED
from cde_rag.records import Record, embedded_text, parent_of, usable, why_none
from cde_rag.stores.qdrant import QdrantStore

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from cde_rag.embedders.contextual import AnyModel

_PAGE: Final = 512  # points read at once
_PASSES: Final = 8  # over what was written meanwhile; what comes after waits for the next call


def adopt_points(
    client: "QdrantClient",
    collection: str,
    *,
    texts: Texts,
    model: "AnyModel | None" = None,
    embedder: Embedder | None = None,
    own_vectors: str | None = None,
    plain_vectors: PlainVectors | None = None,
    context_size: int | None = None,
    seed: int = 0,
    parent_key: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collection:
    """Turn the points of an existing Qdrant collection into a Collection, without affecting its other readers.

    After a crash at any instant the old vectors and payloads are intact, and the same call resumes, in the Context of
    its first run. Open the result with `Collection.open(QdrantStore(client, collection))`; `release_points` removes it
    again.

    Args:
        client: Client of a server from Qdrant 1.18 on, or in local mode.
        collection: Its name, or an alias of it.
        texts: Payload schema of the text: `"langchain"`, `"llamaindex"`, the key of another payload (whose other keys
            are metadata), or a function that makes a Record of a payload, or None of one without a text. The record's
            id is that of the point.
        model: As in ContextualEmbedder.from_corpus; the Context is sampled from the texts. By default "cde-mini", or
            the model of the first run.
        own_vectors: Name of the points' own vectors, "" for the unnamed ones, where `model` is the plain embedder that
            made them of the same texts: the new vectors are made of them by arithmetic, and no model embeds the texts,
            but for a few of each page that are compared.
        plain_vectors: Where the vectors of a plain embedder are kept; required by `own_vectors`.
        context_size: Number of context documents; as many as the model expects, or 512, by default.
        seed: Random seed of the sample.
        embedder: An embedder to use instead of a sampled Context, such as a PlainEmbedder, which `recontextualize` can
            replace later.
        parent_key: As in Collection.create; `"ref_doc_id"` with LlamaIndex, often `"source"` with LangChain.
        on_progress: Called after each write.

    Raises:
        ContextMismatchError: The first run had another model or embedder; or `own_vectors` are not those of `model`.
        CorpusError: There is no usable record in any payload; nothing is changed.
        StoreError: There is no such collection, it is a QdrantStore of its own, the first run had other `texts`,
            another run is in progress, or the server is older.
        TypeError: `own_vectors` without a plain embedder as `model`, or without `plain_vectors`.

    Warns:
        TruncationWarning: Texts exceeded the model's token limit and were truncated.
    """
    store, read = AdoptingStore(client, collection), reading(texts)
    is_begun = store.check_there()
    if own_vectors is not None:
        _keep_own(store, read, own_vectors, model, plain_vectors)
    if is_begun:
        opened = Collection.open(store, model=model) if embedder is None else Collection(store, embedder)
        begun = _begun_with(opened)
        if begun != (texts if isinstance(texts, str) else None):
            raise StoreError(f"{collection}: expected texts={begun!r}, with which it was begun; found {texts!r}.")
    else:
        if embedder is None:
            found = (embedded_text(record) for record in _foreign_records(store, read))
            try:
                embedder = _sampled(found, model, plain_vectors, context_size, seed)
            except CorpusError as error:
                there = _keys(store)
                raise CorpusError(f"{collection}: {error} texts={texts!r} was given; payloads have {there}.") from error
        settings = settings_of(embedder, parent_key)
        points, why = why_none(_as_records(store, read), parent_key)
        if points:  # a store that is begun keeps its texts and parent key
            given = f"texts={texts!r} and parent_key={parent_key!r} were given; payloads have {_keys(store)}"
            raise CorpusError(f"{collection}: none of {counted(points, 'point')} can be a record: {why} {given}.")
        store.begin(
            dim=embedder.dim,
            fingerprint=embedder.fingerprint,
            context=embedder.context.to_bytes(),
            settings={**settings, "texts": texts if isinstance(texts, str) else None},
        )
        opened = Collection(store, embedder)
    made = opened.embedder
    if plain_vectors is not None and (own := contextual(made)) is not None:
        made = own.with_plain_vectors(plain_vectors)
    adopted = Collection(QdrantStore(client, collection), made)
    _take_in(adopted, read, on_progress)
    return adopted


def catch_up_points(
    collection: Collection,
    *,
    texts: Texts | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Adoption:
    """Embed the points that the application wrote since; until then searches of the Collection do not return them.

    After an error or a kill the parts that were written stay, and the next call does the rest.

    Args:
        collection: Result of `adopt_points`, opened in any way.
        texts: As given to `adopt_points`, if that was a function.
        on_progress: Called after each write.

    Raises:
        StoreError: It was not adopted, it needs `texts`, or another run is in progress.
    """
    if (texts := _begun_with(collection) if texts is None else texts) is None:
        raise StoreError("Expected the function that reads payloads, found none: catch_up(collection, source).")
    return _take_in(collection, reading(texts), on_progress)


def release_collection(collection: Collection) -> None:
    """Release an adopted collection and close it; raises as `release_points`."""
    store = collection.store
    if not isinstance(store, QdrantStore):
        raise StoreError(f"Expected a collection in Qdrant, found one in {type(store).__name__}.")
    release_points(store.client, store.collection)
    collection.close()


def foreign_records(client: "QdrantClient", collection: str, *, texts: Texts) -> Iterator[Record]:
    """Yield the texts of a Qdrant collection as records, without those adopted already; changes nothing.

    For a collection that cannot be adopted: `Collection.create(…).add_records(foreign_records(…))` copies them.

    Args:
        client: Client of any server, or in local mode.
        collection: Its name, or an alias of it.
        texts: As in `adopt_points`.

    Raises:
        StoreError: There is no such collection.
    """
    store = AdoptingStore(client, collection)
    store.check_there()
    yield from _foreign_records(store, reading(texts))


def _foreign_records(store: AdoptingStore, read: Reading) -> Iterator[Record]:
    for page in store.foreign():
        for point in page:
            record = _record(point, read, None)
            if record is not None:
                yield record


def _as_records(store: AdoptingStore, read: Reading) -> Iterator[Record]:
    """Yield all points that are no records yet as records, which need not be valid."""
    for page in store.foreign():
        for point in page:
            yield replace(read(point.payload) or Record("", ""), id=point.id)


def _keys(store: AdoptingStore) -> str:
    """Return the keys of some payloads, for messages."""
    return ", ".join(sorted({key for point in next(store.foreign()) for key in point.payload})) or "nothing"


def _sampled(
    texts: Iterator[str],
    model: "AnyModel | None",
    plain_vectors: PlainVectors | None,
    context_size: int | None,
    seed: int,
) -> Embedder:
    """Return an embedder with a Context of the texts."""
    found: AnyModel = "cde-mini" if model is None else model
    if plain_vectors is not None:
        made = found if isinstance(found, ContextualEmbedder) else as_model(found)
        found = made.with_plain_vectors(plain_vectors)
    return ContextualEmbedder.from_corpus(texts, model=found, context_size=context_size, seed=seed)


def _keep_own(
    store: AdoptingStore, read: Reading, name: str, model: object, plain_vectors: PlainVectors | None
) -> None:
    """Keep the own vectors of all points that are no records yet as the plain vectors of their texts."""
    plain = model.with_plain_vectors(plain_vectors) if isinstance(model, ContextualEmbedder) else None
    if plain is None or plain_vectors is None or not plain.context.identity.is_plain:
        raise TypeError(
            "own_vectors needs the plain embedder that made them, and a place for them: model=PlainEmbedder(…) or "
            'FunctionEmbedder(…), plain_vectors=PlainVectors("papers.sqlite").'
        )
    found = False
    for page in store.foreign_vectors(name):
        records = [(_record(point, read, None), vector) for point, vector in page]
        texts = [(embedded_text(record), vector) for record, vector in records if record is not None]
        if texts:
            vectors = np.array([vector for _, vector in texts], dtype=np.float32)
            plain.keep([text for text, _ in texts], vectors, checked=1 if found else CHECKED)
            found = True
    if not found and store.count_foreign():
        raise StoreError(f"{store.collection}: expected texts with vectors named {name!r}, found none. Name another.")


def _begun_with(collection: Collection) -> str | None:
    """Return the `texts` of an adopted collection; None if they were a function."""
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
    return Adoption(documents - before, 0, 0, 0, len(skipped), documents, time.monotonic() - started)


def _records(store: AdoptingStore, read: Reading, parent_key: str | None, skipped: set[str]) -> Iterator[Record]:
    """Yield the points that are not records yet, passages of one parent together.

    Ids of unusable points are added to `skipped`.
    """
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
