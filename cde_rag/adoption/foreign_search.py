"""Search of another application's index, to which nothing is written: by a copy in the user's cache.

    $XDG_CACHE_HOME/cde-rag/foreign/<digest>.faiss      by default in ~/.cache; may be deleted at any time
                                    <digest>.lock       held by the process that brings the copy up to date

The copy has the rows' own texts, the metadata that filters can read, the index' own vectors, and a BM25 index. It is a
Collection, so all searches work as on any other. Nothing is embedded but the sample of the audit, and some queries that
calibrate the scores of a copy that has grown.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.adoption.movable import Movable
from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import create_in, settings_of
from cde_rag.context.cache import cache_folder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, StoreError
from cde_rag.indexing.audit import audit
from cde_rag.models.plain.function_model import FUNCTION
from cde_rag.records import Record, Row, usable
from cde_rag.search.calibration import calibrate_or_warn, calibrated_at
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.files import locked

_WAIT_S: Final = 600.0  # for another process that brings the copy up to date
_VERSION: Final = "foreign_version"  # key of the settings: the index, when the copy was made
_FORMAT: Final = 3  # of the copy's rows: those of another one are made anew
_TITLES: Final = ("file_name", "title")  # keys of metadata that name a row's document, the best first


def foreign_collection(
    source: Movable, embedder: Embedder, target: str, *, text: str | None = None, vector: str | None = None
) -> Collection:
    """Audit an index, bring its copy up to date, and return the Collection of the copy, which is only to be searched.

    Rows without a text, or whose vector has another length, are not in it. An index that is as it was when its copy was
    made is not audited again, unless an API serves the model, which may have become another.

    Args:
        source: The index.
        embedder: Embedder that made its vectors.
        target: Target of the index as it was given. `source.target` hides a server's address, which may have a
            password, so that the indexes of two servers could have one copy.
        text: Location of the text, as `source_of` was given it: each has a copy of its own.
        vector: Name of the vector or column, likewise.

    Raises:
        CorpusError: The index has no text.
        StoreError: The embedder did not make all vectors of a sample, a stamp names another one, or another process has
            been bringing the copy up to date for ten minutes.
    """
    kind, place = target.partition(":")[0], str(source.home) if source.home.is_absolute() else target
    chosen = "" if text is None and vector is None else f"\n{text!r}\n{vector!r}"
    name = hashlib.sha256(f"{kind} {place}\n{embedder.fingerprint}{chosen}".encode()).hexdigest()[:32]
    folder = cache_folder() / "foreign" / f"{name}.faiss"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # it has the texts
    store = FaissStore(folder)
    served = embedder.context.identity.pooling == FUNCTION
    if served or not store.exists() or not _is_as_marked(store, _mark(source)):
        found = audit(source, embedder)
        if found.others or found.disputes:
            raise StoreError(f"{found.advice} Nothing is searched with a model that did not make the vectors.")
    taken = f"{folder}: another process brings this copy of {source.target} up to date. Wait until it has ended"
    with locked(folder.with_suffix(".lock"), taken, wait_s=_WAIT_S):  # else it could mark what it did not write
        if not store.exists():
            create_in(store, embedder, settings_of(embedder, None))
        _bring(source, store, embedder)
        collection = Collection(store, embedder)
        if store.count() >= calibrated_at(store.manifest().settings, embedder.fingerprint):
            calibrate_or_warn(collection.calibrate)
    return collection


def _mark(source: Movable) -> str:
    """Return the version of an index, with that of the copy's rows; an empty text where it counts no writes."""
    version = source.version()
    return version and f"{_FORMAT} {version}"


def _is_as_marked(store: FaissStore, mark: str) -> bool:
    return bool(mark) and store.manifest().settings.get(_VERSION) == mark


def _bring(source: Movable, store: FaissStore, embedder: Embedder) -> None:
    """Bring all differences to the copy."""
    mark, seen = _mark(source), set[str]()
    if _is_as_marked(store, mark):
        return
    for page in source.passages(own=True):
        made = {row.record.id: (row, vector) for row, vector in _rows(page, embedder.dim)}
        seen |= made.keys()
        known = {row.record.id: row.digest for row in store.get(list(made))}
        changed = [each for id_, each in made.items() if known.get(id_) != each[0].digest]
        if changed:
            vectors = np.stack([vector for _, vector in changed])
            store.add([row for row, _ in changed], vectors, fingerprint=embedder.fingerprint)
    store.delete([row.record.id for row in store.scroll() if row.record.id not in seen])
    store.update_settings({_VERSION: mark})


def _rows(
    page: list[tuple[Record, Float32[np.ndarray, " dim"]]], dim: int
) -> Iterator[tuple[Row, Float32[np.ndarray, " dim"]]]:
    """Yield the rows that a collection can have, with unit vectors."""
    for found, vector in page:
        length = float(np.linalg.norm(vector.astype(np.float64)))
        if len(vector) != dim or not 0 < length < np.inf:
            continue
        titles = [title for key in _TITLES if isinstance(title := found.metadata.get(key), str)]
        titled = replace(found, title=next((title for title in titles if title.strip()), ""))
        record = _usable(titled)
        if record is None:  # better found without a value, such as NaN, than not
            kept = {key: one for key, one in found.metadata.items() if _usable(replace(found, metadata={key: one}))}
            record = _usable(replace(titled, metadata=kept)) or _usable(replace(found, metadata=kept))
        if record is None:
            continue
        written = repr((record.title, record.text, record.metadata)).encode() + vector.tobytes()
        yield Row(record, hashlib.sha256(written).hexdigest()), (vector / length).astype(np.float32)


def _usable(record: Record) -> Record | None:
    try:
        return usable(record, None)
    except CorpusError:
        return None
