"""Engine of a folder: SQLite, files of vectors, and snapshots for FAISS; its files are in the package's docstring."""

import dataclasses
import hashlib
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._files import read_file
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.base import Damage
from cde_rag.stores.engine import Found, Place, Placed, Result, Session, Version, sampled
from cde_rag.stores.faiss.connections import Connection, FileIdentity
from cde_rag.stores.faiss.database import FORMAT, WITH_PENDING, Database, set_format
from cde_rag.stores.faiss.folder import DATABASE, delete_unreferenced, lost
from cde_rag.stores.faiss.index import IndexConfig, build, is_due
from cde_rag.stores.faiss.manifest import FaissManifest
from cde_rag.stores.faiss.search import Reader, View
from cde_rag.stores.faiss.tables import Records, Transaction, new_generation
from cde_rag.stores.faiss.verify import find_damage
from cde_rag.stores.files import locked
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.manifests import PENDING
from cde_rag.stores.text_analysis import with_newest

_TRIES: Final = 8  # attempts of a read whose files are replaced meanwhile
_DEAD: Final = 1024  # vectors of no record that a file may always have; beyond that, not more of them than of others


class FolderSession:
    """Implements `cde_rag.stores.engine.Session`.

    Args:
        engine: Engine of the folder.
        records: The tables.
        place: Identity of the files at the store's path.
        writer: The write transaction; None in a read.
    """

    run: Hashable = None

    def __init__(
        self,
        engine: "FolderEngine",
        records: Records,
        place: FileIdentity | None,
        writer: Transaction | None = None,
    ) -> None:
        self.records = records
        self._engine = engine
        self._place = place
        self._writer = writer
        self._manifest = records.manifest() if writer is None else None
        self._views: dict[int, View] = {}

    @property
    def writer(self) -> Transaction:
        """The write transaction."""
        assert self._writer is not None, "a session of `write`"
        return self._writer

    @property
    def manifest(self) -> FaissManifest:
        """The manifest, as the transaction left it."""
        return self.writer.manifest if self._manifest is None else self._manifest

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the collection, as a copy that callers may change, since sessions share manifests."""
        return deepcopy(dict(self.manifest.settings))

    def view(self, generation: int | None = None) -> View:
        """Return a generation with its vectors (default: the active one)."""
        manifest = self.manifest
        state = manifest.serving if generation is None else manifest.generation(generation)
        view = self._views.get(state.number)
        if view is None or view.state != state:
            reader = self._engine.reader_of(manifest, state.vectors, self._place)
            view = self._views[state.number] = reader.view(self.records, manifest, state)
        return view

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context.

        Raises:
            StoreFormatError: They do not have their checksum.
            FileNotFoundError: The file is not there.
        """
        state = self.manifest.generation(generation)
        path = self._engine.folder / state.context
        data = read_file(path)
        found = hashlib.sha256(data).hexdigest()
        if found != state.context_sha256:
            wanted = state.context_sha256
            raise StoreFormatError(f"{path}: expected sha256 {wanted[:16]}…, found {found[:16]}…. Restore a copy.")
        return data

    def get(self, ids: Sequence[str]) -> dict[str, Row]:
        """Return rows, verified by their checksums."""
        return {stored.row.record.id: stored.row for stored in self.view().stored(ids)}

    def scan(self, where: Filter | None, *, after: Place, limit: int) -> list[Placed]:
        """Return matching rows after a place."""
        positions = self.records.positions(where, after=after[0], limit=limit)
        return [Placed((stored.position, ""), stored.row) for stored in self.view().at(positions)]

    def last_place(self) -> int:
        """Return the position of the last record."""
        return self.records.last_position()

    def count(self, where: Filter | None) -> int:
        """Count the matching records."""
        return self.records.count(where)

    def sample(self, count: int, seed: int | None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        return sampled(self, count, seed)

    def versions(self, ids: Sequence[str]) -> dict[str, Version]:
        """Return positions and digests by id."""
        return self.records.versions(self.manifest.active, ids)

    def vectors(self, generation: int, ids: Sequence[str]) -> dict[str, Float32[np.ndarray, " dim"]]:
        """Return vectors by id, verified by their checksums."""
        view = self.view(generation)
        found = [stored for stored in view.stored(ids) if stored.vector_row is not None]
        matrix = view.vectors.take(np.array([stored.vector_row for stored in found], np.int64))
        return {stored.row.record.id: vector for stored, vector in zip(found, matrix, strict=True)}

    def count_vectors(self, generation: int) -> int:
        """Count the vectors of a generation."""
        state = self.manifest.generation(generation)
        return state.rows - state.dead

    def lacking(self, generation: int, *, after: str | None, limit: int) -> list[Row]:
        """Return rows without a vector in a generation."""
        position = 0 if after is None else self.records.known_positions([after]).get(after, 0)
        return [stored.row for stored in self.view().at(self.records.lacking(generation, limit=limit, after=position))]

    def nearest(
        self,
        generation: int,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        where: Filter | None,
        *,
        complete: bool,  # noqa: ARG002  # records are read by their positions
    ) -> list[list[Found]]:
        """Return the nearest records of each query, with scores in float64."""
        found = self.view(generation).search(queries, k, where)
        return [[Found((generation, position), score) for position, score in near] for near in found]

    def matching(
        self,
        queries: Sequence[str],
        k: int,
        where: Filter | None,
        *,
        complete: bool,  # noqa: ARG002  # likewise
    ) -> list[list[Found]]:
        """Return the best records of each query by BM25, from the FTS5 table."""
        active = self.manifest.active
        found = [self.records.matching(query, k, where) for query in queries]
        return [[Found((active, position), score) for position, score in best] for best in found]

    def found(self, keys: Sequence[Any]) -> list[Record]:
        """Return records of a generation by their positions, verified by their checksums."""
        rows: dict[tuple[int, int], Row] = {}
        for generation in {generation for generation, _ in keys}:
            positions = [position for number, position in keys if number == generation]
            stored = self.view(generation).at(positions)
            rows |= {(generation, one.position): one.row for one in stored}
        return [rows[key].record for key in keys]

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Upsert records and their vectors."""
        positions, active = self.records.put(records), self.manifest.active
        for state in self.manifest.generations:
            if state.number != active:
                self.writer.mark_deleted(state.number, list(zip(positions, digests, strict=True)))
        if vectors is None:
            self.writer.mark_deleted(active, [(position, None) for position in positions])
        else:
            self.writer.put_vectors(active, positions, digests, vectors)

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of records."""
        positions = self.records.positions_of(list(metadata))
        stored = self.records.stored(self.manifest.active, positions, may_wait=PENDING in self.manifest.settings)
        self.records.put([(one.row.record, metadata[one.row.record.id]) for one in stored])

    def delete(self, ids: Sequence[str]) -> int:
        """Remove records, and mark their vectors as deleted."""
        positions = list(self.records.known_positions(ids).values())
        for state in self.manifest.generations:
            self.writer.mark_deleted(state.number, [(position, None) for position in positions])
        self.records.remove(positions)
        return len(positions)

    def put_vectors(
        self,
        generation: int,
        versions: Sequence[Version],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Append vectors of a generation."""
        self.writer.put_vectors(generation, [version.key for version in versions], digests, vectors)
        return len(versions)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        self.writer.manifest = dataclasses.replace(self.manifest, settings=settings)

    def index_texts(self) -> None:
        """Rebuild the FTS5 table of all records with the newest analyzer."""
        self.put_settings(with_newest(self.settings))
        self.records.put_manifest(self.manifest)
        self.records.index_words()

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add a generation, whose Context is on the disk first."""
        number = self.manifest.last + 1
        new = new_generation(self._engine.folder, number, fingerprint, context)
        self.writer.manifest = dataclasses.replace(self.manifest.put(new), last=number)
        return number

    def activate(self, generation: int) -> None:
        """Activate a generation."""
        self.writer.manifest = dataclasses.replace(self.manifest, active=generation)

    def drop(self, generation: int) -> None:
        """Remove a generation; its files go after the commit."""
        self.records.forget(generation)
        self.writer.manifest = self.manifest.without(generation)


class FolderEngine:
    """Implements `cde_rag.stores.engine.Engine` in a folder.

    Args:
        folder: The folder, made by `create`.
        index: Type of the index, as of `FaissStore`; None for the stored one, or `auto` for a new store.
        quantization: Likewise.

    Raises:
        ValueError: `index` or `quantization` is none of these.
    """

    def __init__(self, folder: Path, index: str | None, quantization: str | None) -> None:
        self.folder = folder
        self.database = Database(folder / DATABASE)
        self._new = IndexConfig("auto" if index is None else index, quantization)  # what `create` gives a store
        self._expected = index, quantization
        self._reader: Reader | None = None

    def __str__(self) -> str:
        return str(self.folder)

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Create the folder with an empty store."""
        self._new.check(dim)
        self.database.create()
        with self.database.writing(new=True) as connection:
            first, marker = new_generation(self.folder, 1, fingerprint, context), self.database.marker()
            manifest = FaissManifest(dim, 1, 1, (first,), settings, indexing=self._new, marker=marker)
            Records(connection, self.database.path).put_manifest(manifest)
        self.database.close()  # moves the tables from SQLite's log into its file

    def exists(self) -> bool:
        """Return True if the folder holds a store."""
        return self.database.exists()

    def read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:  # noqa: ARG002
        """Call a function in a read transaction; repeat it if a writer replaced its files meanwhile."""
        return self._read(work)

    def write(self, work: Callable[[Session], Result], *, wait: bool = True) -> Result:
        """Call a function in the write transaction; extend the index afterwards, if due."""
        return self._write(work) if wait else self._commit(work, wait=False)[1]

    @contextmanager
    def lease(self) -> Generator[None, None, None]:
        """Hold the folder's lease, a lock file."""
        taken = f"{self.folder}: another run holds the lease to change its context. Wait for it to finish"
        with locked(self.folder / f"{DATABASE}-lease", taken):
            yield

    def verify(self) -> list[Damage]:
        """Compare all data with its checksums, and check SQLite's own structure."""
        return find_damage(self.database, self.folder)

    def close(self) -> None:
        """Close the vector files and SQLite's connections."""
        self._reader = None
        self.database.close()

    def reindex(self, new: IndexConfig) -> None:
        """Rebuild the index; raises as `FaissStore.reindex`."""
        state, vectors = self._read(lambda session: (session.manifest.serving, session.view().vectors))
        new.check(vectors.dim)
        file = build(self.folder, state.number, vectors, new)

        def change(session: FolderSession) -> None:
            writer = session.writer
            writer.manifest = writer.manifest.reindexed(new).snapshotted(self.folder, state, file)

        self._write(change)

    def compact(self) -> None:
        """Remove the vectors of deleted and replaced records."""

        def rewrite(session: FolderSession) -> None:
            for state in session.manifest.generations:
                if state.dead:
                    session.writer.rewrite(state)
            session.records.fts_index.optimize()

        self._write(rewrite)

    def _read(self, work: Callable[[FolderSession], Result]) -> Result:
        missing = ""
        for _ in range(_TRIES):
            with self.database.reading() as connection:
                try:
                    records = Records(connection, self.database.path)
                    session = FolderSession(self, records, connection.place)
                    self._indexing(session.manifest)
                    return work(session)
                except FileNotFoundError as error:
                    if error.filename == missing and self.database.is_at(connection.place):
                        raise lost(missing) from error
                    missing = error.filename
                except StoreFormatError:
                    if self.database.is_at(connection.place):
                        raise  # else a file of the store that was put in place of this one
        raise StoreError(
            f"{self.folder}: expected files that stay for one read, found them replaced at each of {_TRIES} tries. "
            "Try again when fewer processes write."
        )

    def _write(self, work: Callable[[FolderSession], Result]) -> Result:
        manifest, result = self._commit(work)
        state = manifest.serving
        if is_due(state.index, state.rows, manifest.indexing or self._new, self.folder):
            self._extend_index()
        return result

    def _commit(self, work: Callable[[FolderSession], Result], *, wait: bool = True) -> tuple[FaissManifest, Result]:
        check = self.database.check_place
        with self.database.writing(wait=wait) as connection:
            try:
                before, manifest, result = self._transact(connection, work)
            except FileNotFoundError as error:
                check()  # if another store was put in place of this one, nothing is lost
                if Path(error.filename or "").parent != self.folder:
                    raise  # of the function, such as a model's
                raise lost(error.filename) from error
        if before - manifest.files():
            with self.database.writing() as connection:  # so that no other writer is about to refer to what goes
                delete_unreferenced(self.folder, Records(connection, self.database.path).manifest().files(), check)
        return manifest, result

    def _transact(
        self, connection: Connection, work: Callable[[FolderSession], Result]
    ) -> tuple[set[str], FaissManifest, Result]:
        """Call the function, and write the manifest; also return the names of the files before."""
        records = Records(connection, self.database.path)
        writer = Transaction(records, self.folder, self.database.check_place)
        self._indexing(writer.manifest)
        if writer.manifest.marker is None:
            writer.manifest = dataclasses.replace(writer.manifest, marker=self.database.marker())
        elif writer.manifest.marker != self.database.marker():
            raise StoreError(
                f"{self.folder}: expected the files of one store, found those of two, one copied over the other. "
                "Restore a copy into an empty folder."
            )
        before = writer.manifest.files()
        result = work(FolderSession(self, records, connection.place, writer))
        for state in writer.manifest.generations:
            if state.dead > max(_DEAD, state.rows - state.dead):
                writer.rewrite(state)
        records.put_manifest(writer.manifest)
        set_format(connection, WITH_PENDING if PENDING in writer.manifest.settings else FORMAT)
        return before, writer.manifest, result

    def _extend_index(self) -> None:
        """Update the index if due, in a new file, without blocking other writers."""
        state, view = self._read(lambda session: (session.manifest.serving, session.view()))
        indexing = view.reader.indexing
        if is_due(state.index, state.rows, indexing, self.folder):
            file = build(self.folder, state.number, view.vectors, indexing, old=state.index)

            def change(session: FolderSession) -> None:
                session.writer.manifest = session.manifest.snapshotted(self.folder, state, file)

            self._commit(change)

    def reader_of(self, manifest: FaissManifest, name: str, place: FileIdentity | None) -> Reader:
        """Return the reader of a vector file; that of the active generation is kept."""
        indexing, reader = self._indexing(manifest), self._reader
        if reader is not None and (reader.name, reader.indexing, reader.place) == (name, indexing, place):
            return reader
        reader = Reader(self.folder, manifest.dim, name, indexing, place)
        if name == manifest.serving.vectors:
            self._reader = reader
        return reader

    def _indexing(self, manifest: FaissManifest) -> IndexConfig:
        """Return the store's index configuration; checked against the expected one on the first call."""
        found = manifest.indexing or self._new
        found.expect(*self._expected)
        self._expected = None, None
        return found
