"""Export of a collection to one Parquet file, and import into a store of any kind, without a model.

The columns are `id`, `title`, `text`, `metadata` (JSON), `digest` (of the embedded text, siblings included) and
`vector` (float32, fixed length), one row per record, in order of insertion. The footer's key `cde_rag` holds one JSON
object: settings, fingerprint, number of documents, and the Context's bytes in base64. Its `integrity` is the sha256 of
all of that and of the rows, so that a change of the contents is detected; a tool that keeps the key may write the file
anew.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag._files import given_path, replacing
from cde_rag.embedders.active import UNFINISHED_IMPORT, stored_context
from cde_rag.errors import StoreError, require
from cde_rag.indexing.upsert import Progress
from cde_rag.readers.reader import DELIMITERS, JSONL, SPLIT
from cde_rag.records import Row
from cde_rag.stores.files import check_outside
from cde_rag.stores.manifests import PENDING
from cde_rag.stores.store import Folder, Loaded, Store
from cde_rag.stores.tenant_names import check_is_of
from cde_rag.transfer.parquet_columns import EXTRA, ROWS, Batch, Checksum, Export, columns_of, footer, schema_of, table

_OTHER_FORMATS: Final = JSONL | DELIMITERS.keys() | SPLIT | {".gz", ".zip", ".xlsx", ".arrow", ".feather", ".sqlite"}
_TRIES: Final = 32  # to read the vectors of rows that writers change meanwhile


@dataclass(frozen=True, slots=True)
class Transfer:
    """Result of an export or import.

    Attributes:
        documents: Number of records with their vectors.
        fingerprint: Fingerprint of their vector space.
    """

    documents: int
    fingerprint: str


def export_collection(
    store: Store, path: str | Path, *, on_progress: Callable[[Progress], None] | None = None
) -> Transfer:
    """Write the active generation of a collection to a new Parquet file; killed at any instant there is none.

    Others may write meanwhile: each record is as it was at one instant of the export, with the vector of that instant.
    One that is deleted and added again meanwhile may be missing, as it was between the two.

    Args:
        store: Holds a collection.
        path: Path of the file; missing folders are made.
        on_progress: Called after each row group.

    Raises:
        ContextMismatchError: The collection was moved to another context meanwhile.
        MissingExtraError: pyarrow is not installed.
        StoreError: The name has the suffix of another format, there is a file already, its folder is a collection's, it
            cannot be written, or there is no collection in the store, or records wait for their vectors.
    """
    parquet, path, started = require("pyarrow.parquet", EXTRA), given_path(path, "The export"), time.monotonic()
    documents, checksum = 0, Checksum()
    if path.suffix.lower() in _OTHER_FORMATS:
        raise StoreError(
            f"{path}: an export is a Parquet file, found the suffix {path.suffix}. Name it "
            f"{path.with_suffix('.parquet').name}; pandas, DuckDB and others read that, and write other formats."
        )
    if path.exists():
        raise StoreError(f"{path}: expected no file, found one. Give another name, or remove it.")
    check_outside(path, own=store.folder if isinstance(store, Folder) else None)
    manifest, total = store.manifest(), store.count()
    if manifest.may_wait and (waiting := store.count_pending()):
        raise StoreError(
            f"{store}: expected a vector for each record to export, found {waiting:,} that wait for theirs. Make them "
            "with collection.embed_pending(), or run cde-rag index again, and export then."
        )
    kept = {name: value for name, value in manifest.settings.items() if name != PENDING}
    manifest = replace(manifest, settings=kept)
    context = stored_context(store, manifest.generation).to_bytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path) as temporary,
            parquet.ParquetWriter(temporary, schema_of(manifest.dim), write_statistics=False) as writer,
        ):
            for rows, vectors in _pages(store, manifest.fingerprint):
                columns = columns_of(rows)
                checksum.add(columns, vectors)
                writer.write_table(table(columns, vectors), row_group_size=ROWS)
                documents += len(rows)
                if on_progress is not None:
                    on_progress(Progress(documents, total, time.monotonic() - started))
            writer.add_key_value_metadata(footer(manifest, context, documents, checksum))
    except OSError as error:
        raise StoreError(f"{path}: not written ({error}). Choose a writable folder with space.") from error
    return Transfer(documents, manifest.fingerprint)


def import_collection(
    path: str | Path,
    store: Store,
    *,
    tenant: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Transfer:
    """Import an exported collection into an empty store; nothing is embedded.

    The complete file is read and verified before anything is written. The collection becomes valid with the last step;
    after a crash before that it cannot be opened, and the same call resumes.

    Args:
        path: Path of the file.
        store: Store without a collection.
        tenant: Tenant that the export must belong to, if the store is a tenant's.
        on_progress: Called after each row group.

    Raises:
        ContextFormatError: The Context in the file is damaged, or of a newer format.
        MissingExtraError: pyarrow is not installed.
        StoreError: There is a collection in the store already, or it cannot be written.
        StoreFormatError: The file is truncated, changed, of a newer format, or no export.
        TenantError: It is another tenant's collection.
    """
    file = Export.open(given_path(path, "The export"))
    if tenant is not None:
        check_is_of(file.settings, tenant)
    for _ in file.batches():  # all of it is right before the first is written
        pass
    space = hashlib.sha256(UNFINISHED_IMPORT + file.integrity.encode()).hexdigest()  # nobody's, until the last step
    if not store.exists():
        store.create(dim=file.dim, fingerprint=space, context=UNFINISHED_IMPORT, settings=file.settings)
    with store.lease(), store.loading() if isinstance(store, Loaded) else nullcontext():
        generations = {generation.fingerprint: generation for generation in store.generations()}
        if space not in generations:
            raise StoreError(f"Expected a store without a collection, found one in {store}. Import into a new one.")
        if generations[space].active:
            number = _fill(store, file, space, on_progress)
            store.activate(number)
        store.drop(generations[space].number)
    return Transfer(file.documents, file.fingerprint)


def _fill(store: Store, file: Export, space: str, on_progress: Callable[[Progress], None] | None) -> int:
    """Give the store all that it lacks of a file, in an inactive generation; returns its number."""
    started, done = time.monotonic(), 0
    begun = {generation.fingerprint: generation for generation in store.generations()}.get(file.fingerprint)
    if begun is None:
        number, there = store.create_generation(fingerprint=file.fingerprint, context=file.context), 0
    else:
        number, there = begun.number, begun.vectors
    for rows, vectors in file.batches():
        done += len(rows)
        if done > there:
            store.add(rows, vectors, fingerprint=space)
            store.add_to_generation(number, rows, [row.digest for row in rows], vectors)
        if on_progress is not None:
            on_progress(Progress(done, file.documents, time.monotonic() - started))
    if store.count() != file.documents:
        raise StoreError(f"{file.path}: expected {file.documents} ids, found {store.count()} different ones.")
    return number


def _pages(store: Store, fingerprint: str) -> Iterator[Batch]:
    """Yield all rows that exist during the complete scan, each once, with the vector made from it."""
    seen, rows = set[str](), store.scroll(page=ROWS)
    while page := list(itertools.islice(rows, ROWS)):
        new = {row.record.id: row for row in page if row.record.id not in seen}  # deleted and added, one comes again
        seen.update(new)
        if new:
            yield _settled(store, list(new.values()), fingerprint)


def _settled(store: Store, rows: list[Row], fingerprint: str) -> Batch:
    """Return those of the rows that still exist, with vectors.

    A row that changes while its vector is read is read again.
    """
    settled, left = dict[str, tuple[Row, Float32[np.ndarray, " dim"]]](), rows
    for _ in range(_TRIES):
        ids = [row.record.id for row in left]
        try:
            vectors = store.vectors(ids, fingerprint=fingerprint)
        except KeyError:  # one was deleted
            left = store.get(ids)
            continue
        again = {row.record.id: row for row in store.get(ids)}
        read = [(row, vector) for row, vector in zip(left, vectors, strict=True) if again.get(row.record.id) == row]
        settled |= {row.record.id: (row, vector) for row, vector in read}
        left = [row for id_, row in again.items() if id_ not in settled]
        if not left:
            kept = [settled[row.record.id] for row in rows if row.record.id in settled]
            matrix = np.array([vector for _, vector in kept], np.float32).reshape(len(kept), vectors.shape[1])
            return [row for row, _ in kept], matrix
    raise StoreError(
        f"Expected records that stay while they are read, found {len(left)} changed in each of {_TRIES} tries, such as "
        f"{left[0].record.id!r:.80}. Export again when less is written."
    )
