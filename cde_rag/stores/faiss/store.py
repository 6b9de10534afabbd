"""FaissStore; its files are described in the package's docstring."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Float32

from cde_rag._files import user_path
from cde_rag._validation import check_ids, check_list, check_not_empty
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.base import Completion, Damage, Hit, Row
from cde_rag.stores.call_by_call import CallByCall
from cde_rag.stores.checks import check_k, check_once, check_records, check_rows, check_unit, encode
from cde_rag.stores.faiss.connections import FileIdentity
from cde_rag.stores.faiss.copying import copy_store
from cde_rag.stores.faiss.database import FORMAT, Database, set_format
from cde_rag.stores.faiss.folder import DATABASE, delete_unreferenced
from cde_rag.stores.faiss.indexing import IndexConfig
from cde_rag.stores.faiss.manifest import FaissManifest
from cde_rag.stores.faiss.record_tables import Records
from cde_rag.stores.faiss.snapshots import build, due, put
from cde_rag.stores.faiss.verification import find_damage
from cde_rag.stores.faiss.view import Reader, View
from cde_rag.stores.faiss.writer import Transaction, new_generation
from cde_rag.stores.files import locked
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filters import parse
from cde_rag.stores.manifests import Generation, LeasedGenerations, StoreManifest, check_space
from cde_rag.stores.text_analysis import updated, with_newest

_TRIES: Final = 8  # attempts of a read whose files are replaced meanwhile
_DEAD: Final = 1024  # vectors of no record that a file may always have; beyond that, not more of them than of others

Result = TypeVar("Result")


class FaissStore(CallByCall):
    """Records, vectors and contexts in the folder `path`.

    Args:
        path: The folder, made by `create`.
        index: `auto`, `flat`, `hnsw` or `ivf`: see the package's docstring. Stored by `create`; an existing store must
            have this index, and is changed by `reindex`. None for the stored one, or `auto` for a new store.
        quantization: Likewise `int8`, `binary` or `prefix-<dims>`; None for the stored one, or none for a new store.

    Raises:
        ValueError: `index` or `quantization` is none of these.
    """

    def __init__(self, path: str | Path, *, index: str | None = None, quantization: str | None = None) -> None:
        check_not_empty(path, "The folder of a store")
        self._new = IndexConfig("auto" if index is None else index, quantization)  # what `create` gives a store
        self._expected = index, quantization
        self._folder = user_path(path)
        self._database = Database(self._folder / DATABASE)
        self._reader: Reader | None = None
        self._leased = LeasedGenerations()

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create the folder with an empty store and generation 1 active."""
        encode(settings, "The store's settings")
        self._new.check(dim)
        self._database.create()
        with self._database.writing(new=True) as connection:
            first, marker = new_generation(self._folder, 1, fingerprint, context), self._database.marker()
            manifest = FaissManifest(dim, 1, 1, (first,), dict(settings), indexing=self._new, marker=marker)
            Records(connection, self._database.path).put_manifest(manifest)
        self._database.close()  # moves the tables from SQLite's log into its file

    def exists(self) -> bool:
        """Return True if the folder holds a store."""
        return self._database.exists()

    def manifest(self) -> StoreManifest:
        """Return the store's manifest."""
        return self._read(lambda view: view.manifest.public())

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context."""

        def read(view: View) -> bytes:
            if generation is not None:
                self._leased.check(view.manifest.generation(generation))
            return view.context(generation)

        return self._read(read)

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Upsert rows and their vectors in one transaction."""
        records = list(check_records(row.record for row in rows))
        digests = [row.digest for row in rows]
        with self._writing() as writer:
            active = writer.manifest.serving
            check_space(active, fingerprint)
            check_unit(vectors, len(rows), writer.manifest.dim)
            positions = writer.records.put(records)
            for other in writer.manifest.generations:
                if other.number != active.number:
                    writer.mark_deleted(other.number, list(zip(positions, digests, strict=True)))
            writer.put_vectors(active.number, positions, digests, vectors)
        self._extend_index()

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of the given ids in one transaction."""
        check_ids(metadata, call="update_metadata")
        encoded = {id_: encode(new, f"Record {id_!a:.80}: its metadata") for id_, new in metadata.items()}
        with self._writing() as writer:
            positions = writer.records.positions_of(list(encoded))
            active = writer.manifest.active
            records = [stored.row.record for stored in writer.records.stored(active, positions)]
            writer.records.put([(record, encoded[record.id]) for record in records])

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection in one transaction."""
        encode(changes, "The store's settings")
        with self._writing() as writer:
            settings = updated(writer.manifest.settings, changes)
            writer.manifest = dataclasses.replace(writer.manifest, settings=settings)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete rows from every generation in one transaction; return their number."""
        ids = check_ids(ids, call="delete")
        with self._writing() as writer:
            positions = list(writer.records.known_positions(ids).values())
            for state in writer.manifest.generations:
                writer.mark_deleted(state.number, [(position, None) for position in positions])
            writer.records.remove(positions)
        self._extend_index()
        return len(positions)

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, verified by their checksums."""
        ids = check_ids(ids, call="get")
        return self._read(lambda view: [stored.row for stored in view.stored(ids)])

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Count the rows that match the filter."""
        condition = None if where is None else parse(where)
        return self._read(lambda view: view.records.count(condition))

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Yield all matching rows, in order of insertion, one transaction per page."""
        page = check_rows(page, "page")
        return self._scrolled(None if where is None else parse(where), page)

    def _scrolled(self, where: Filter | None, page: int) -> Iterator[Row]:
        after, last = 0, self._read(lambda view: view.records.last_position())
        while True:
            found = self._read(lambda view: view.rows_after(after, where, limit=page))  # noqa: B023  # called at once
            yield from (stored.row for stored in found if stored.position <= last)
            if len(found) < page or found[-1].position >= last:
                return
            after = found[-1].position

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        count = check_rows(count, "count")
        return self._read(lambda view: view.sample(count, seed))

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        """Return the nearest rows of each query, with scores in float64."""
        condition = None if where is None else parse(where)
        k = check_k(k)

        def nearest(serving: View) -> list[list[Hit]]:
            view = serving if generation is None else self._view(serving, generation)
            check_space(view.state, fingerprint)
            check_unit(queries, len(queries), view.manifest.dim)
            return view.search(queries, k, condition)

        return self._read(nearest)

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Return the best records of each query by BM25, from the FTS5 table."""
        check_list(queries, call="search_text", what="queries")
        condition = None if where is None else parse(where)
        k = check_k(k)
        return self._read(lambda view: [view.search_text(query, k, condition) for query in queries])

    def index_texts(self) -> None:
        """Rebuild the FTS5 table of all records with the newest analyzer, in one transaction."""
        with self._database.writing() as connection:
            records = Records(connection, self._database.path)
            manifest = records.manifest()
            records.put_manifest(dataclasses.replace(manifest, settings=with_newest(manifest.settings)))
            records.fts_index.rebuild()
            set_format(connection, FORMAT)

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of the given ids, verified by their checksums."""
        ids = check_ids(ids, call="vectors")

        def vectors(view: View) -> Float32[np.ndarray, "ids dim"]:
            check_space(view.state, fingerprint)
            rows = [stored.vector_row for stored in view.at(view.records.positions_of(ids))]
            return view.vectors.take(np.array(rows, np.int64))

        return self._read(vectors)

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first."""

        def read(view: View) -> list[Generation]:
            self._leased.see(view.manifest.generations)
            return view.manifest.public_generations()

        return self._read(read)

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the folder's lease, a lock file."""
        taken = f"{self._folder}: another run holds the lease to change its context. Wait for it to finish"
        with locked(self._folder / f"{DATABASE}-lease", taken), self._leased.held():
            yield

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Create another, empty, inactive generation; return its number."""
        with self._writing() as writer:
            number = writer.manifest.last + 1
            new = self._leased.check(new_generation(self._folder, number, fingerprint, context))
            writer.manifest = dataclasses.replace(writer.manifest.put(new), last=number)
        return number

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return rows that have no vector in an inactive generation."""

        def read(view: View) -> list[Row]:
            self._leased.check(view.manifest.inactive(generation))
            return view.lacking(generation, limit, after)

        return self._read(read)

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Write vectors of rows in an inactive generation in one transaction."""
        check_once(rows)
        with self._writing() as writer:
            self._leased.check(writer.manifest.inactive(generation))
            check_unit(vectors, len(rows), writer.manifest.dim)
            same = writer.unchanged(rows)
            positions = writer.records.positions_of([rows[place].record.id for place in same])
            writer.put_vectors(generation, positions, [digests[place] for place in same], vectors[same])
        return len(same)

    def activate(self, generation: int, *, last: Completion | None = None) -> None:
        """Activate a generation in one transaction, last vectors included; other writers wait up to a minute."""
        with self._writing() as writer:
            writer.complete(self._leased.check(writer.manifest.inactive(generation)), last)
            writer.check_complete(writer.manifest.inactive(generation))
            writer.manifest = dataclasses.replace(writer.manifest, active=generation)
        self._extend_index()

    def drop(self, generation: int) -> None:
        """Drop an inactive generation."""
        with self._writing() as writer:
            self._leased.check(writer.manifest.inactive(generation))
            writer.records.forget(generation)
            writer.manifest = writer.manifest.without(generation)

    def reindex(self, *, index: str, quantization: str | None = None) -> None:
        """Rebuild the store's index, of this or another type, from the stored vectors.

        Others read and write meanwhile, with the old index. After a crash the store is unchanged.

        Args:
            index: `auto`, `flat`, `hnsw` or `ivf`.
            quantization: `int8`, `binary`, `prefix-<dims>`, or None for full vectors.

        Raises:
            ValueError: Another name, or a prefix that is not shorter than the vectors.
            StoreError: The index cannot be written. The store is unchanged.
        """
        new = IndexConfig(index, quantization)
        state, vectors = self._read(lambda view: (view.state, view.vectors))
        new.check(vectors.dim)
        file = build(self._folder, dataclasses.replace(state, index=None), vectors, new)
        with self._writing() as writer:
            writer.manifest = put(writer.manifest.reindexed(new), self._folder, state, file)
        self._extend_index()

    def compact(self) -> None:
        """Remove the vectors of deleted and replaced records now; otherwise they stay until they are many."""
        with self._writing() as writer:
            for state in writer.manifest.generations:
                if state.dead:
                    writer.rewrite(state)
            writer.records.fts_index.optimize()
        self._extend_index()

    def verify(self) -> list[Damage]:
        """Compare all data with its checksums, and check SQLite's own structure."""
        return find_damage(self._database, self._folder)

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return self._folder

    def at(self, folder: Path) -> "FaissStore":
        """Return a FaissStore in another folder."""
        return FaissStore(folder)

    def copy_to(self, folder: Path) -> "FaissStore":
        """Copy one state of the store to a new folder, while others read and write; raises as `copy_store`."""
        copy_store(self._database, folder)
        return FaissStore(folder)

    def __repr__(self) -> str:
        return f"FaissStore({str(self._folder)!r})"

    def __str__(self) -> str:
        return str(self._folder)  # in errors

    def close(self) -> None:
        """Close the vector files and SQLite's connections; later calls reopen them."""
        self._reader = None
        self._database.close()

    def _read(self, work: Callable[[View], Result]) -> Result:
        """Call a function with one state of the active generation; retry if a writer replaced its files meanwhile."""
        missing = ""
        for _ in range(_TRIES):
            with self._database.reading() as connection:
                records = Records(connection, self._database.path)
                manifest = records.manifest()
                try:
                    return work(self._reader_of(manifest, connection.place).view(records, manifest, manifest.serving))
                except FileNotFoundError as error:
                    if error.filename == missing and self._database.is_at(connection.place):
                        raise StoreFormatError(f"{missing}: expected this file, found none. Restore a copy.") from error
                    missing = error.filename
                except StoreFormatError:
                    if self._database.is_at(connection.place):
                        raise  # else a file of the store that was put in place of this one
        raise StoreError(
            f"{self._folder}: expected files that stay for one read, found them replaced at each of {_TRIES} tries. "
            "Try again when fewer processes write."
        )

    def _reader_of(self, manifest: FaissManifest, place: FileIdentity | None) -> Reader:
        indexing, name, reader = self._indexing(manifest), manifest.serving.vectors, self._reader
        if reader is None or (reader.name, reader.indexing, reader.place) != (name, indexing, place):
            reader = Reader(self._folder, manifest.dim, name, indexing, place)
            self._reader = reader
        return reader

    def _view(self, serving: View, generation: int) -> View:
        state = serving.manifest.generation(generation)
        place = serving.reader.place
        reader = Reader(self._folder, serving.manifest.dim, state.vectors, self._indexing(serving.manifest), place)
        return reader.view(serving.records, serving.manifest, state)

    @contextmanager
    def _writing(self) -> Generator[Transaction, None, None]:
        check = self._database.check_place
        with self._database.writing() as connection:
            writer = Transaction(Records(connection, self._database.path), self._folder, check)
            self._indexing(writer.manifest)
            if writer.manifest.marker is None:
                writer.manifest = dataclasses.replace(writer.manifest, marker=self._database.marker())
            elif writer.manifest.marker != self._database.marker():
                raise StoreError(
                    f"{self._folder}: expected the files of one store, found those of two, one copied over the other. "
                    "Restore a copy into an empty folder."
                )
            before = writer.manifest.files()
            yield writer
            for state in writer.manifest.generations:
                if state.dead > max(_DEAD, state.rows - state.dead):
                    writer.rewrite(state)
            writer.records.put_manifest(writer.manifest)
            set_format(connection, FORMAT)
        if before - writer.manifest.files():
            with self._database.writing() as connection:  # so that no other writer is about to refer to what goes
                delete_unreferenced(self._folder, Records(connection, self._database.path).manifest().files(), check)

    def _indexing(self, manifest: FaissManifest) -> IndexConfig:
        """Return the store's index configuration; checked against the expected one on the first call."""
        found = manifest.indexing or self._new
        found.expect(*self._expected)
        self._expected = None, None
        return found

    def _extend_index(self) -> None:
        """Update the index if due, in a new file, without blocking other writers."""
        state, vectors, indexing = self._read(lambda view: (view.state, view.vectors, view.reader.indexing))
        if due(state, indexing, self._folder):
            file = build(self._folder, state, vectors, indexing)
            with self._writing() as writer:
                writer.manifest = put(writer.manifest, self._folder, state, file)
