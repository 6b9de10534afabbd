"""Engine of a folder: SQLite, files of vectors, and snapshots for FAISS; its files are in the package's docstring."""

import dataclasses
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.base import Damage
from cde_rag.stores.engine import Result, Session
from cde_rag.stores.faiss.connections import FileIdentity
from cde_rag.stores.faiss.database import FORMAT, Database, set_format
from cde_rag.stores.faiss.folder import DATABASE, delete_unreferenced
from cde_rag.stores.faiss.folder_session import FolderSession
from cde_rag.stores.faiss.indexing import IndexConfig
from cde_rag.stores.faiss.manifest import FaissManifest
from cde_rag.stores.faiss.search import Reader
from cde_rag.stores.faiss.snapshots import build, due, put
from cde_rag.stores.faiss.tables import Records
from cde_rag.stores.faiss.verify import find_damage
from cde_rag.stores.faiss.writer import Transaction, new_generation
from cde_rag.stores.files import locked

_TRIES: Final = 8  # attempts of a read whose files are replaced meanwhile
_DEAD: Final = 1024  # vectors of no record that a file may always have; beyond that, not more of them than of others


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

    def write(self, work: Callable[[Session], Result]) -> Result:
        """Call a function in the write transaction; extend the index afterwards, if due."""
        return self._write(work)

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
        file = build(self.folder, dataclasses.replace(state, index=None), vectors, new)

        def change(session: FolderSession) -> None:
            writer = session.writer
            writer.manifest = put(writer.manifest.reindexed(new), self.folder, state, file)

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
                    session = FolderSession(records, self.folder, self._reader_of, connection.place)
                    self._indexing(session.manifest)
                    return work(session)
                except FileNotFoundError as error:
                    if error.filename == missing and self.database.is_at(connection.place):
                        raise StoreFormatError(f"{missing}: expected this file, found none. Restore a copy.") from error
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
        if due(manifest.serving, manifest.indexing or self._new, self.folder):
            self._extend_index()
        return result

    def _commit(self, work: Callable[[FolderSession], Result]) -> tuple[FaissManifest, Result]:
        check = self.database.check_place
        with self.database.writing() as connection:
            records = Records(connection, self.database.path)
            writer = Transaction(records, self.folder, check)
            self._indexing(writer.manifest)
            if writer.manifest.marker is None:
                writer.manifest = dataclasses.replace(writer.manifest, marker=self.database.marker())
            elif writer.manifest.marker != self.database.marker():
                raise StoreError(
                    f"{self.folder}: expected the files of one store, found those of two, one copied over the other. "
                    "Restore a copy into an empty folder."
                )
            before = writer.manifest.files()
            result = work(FolderSession(records, self.folder, self._reader_of, connection.place, writer))
            for state in writer.manifest.generations:
                if state.dead > max(_DEAD, state.rows - state.dead):
                    writer.rewrite(state)
            records.put_manifest(writer.manifest)
            set_format(connection, FORMAT)
        if before - writer.manifest.files():
            with self.database.writing() as connection:  # so that no other writer is about to refer to what goes
                delete_unreferenced(self.folder, Records(connection, self.database.path).manifest().files(), check)
        return writer.manifest, result

    def _extend_index(self) -> None:
        """Update the index if due, in a new file, without blocking other writers."""
        state, view = self._read(lambda session: (session.manifest.serving, session.view()))
        if due(state, view.reader.indexing, self.folder):
            file = build(self.folder, state, view.vectors, view.reader.indexing)

            def change(session: FolderSession) -> None:
                session.writer.manifest = put(session.manifest, self.folder, state, file)

            self._commit(change)

    def _reader_of(self, manifest: FaissManifest, name: str, place: FileIdentity | None) -> Reader:
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
