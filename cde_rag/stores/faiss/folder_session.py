"""Session of a folder: one transaction, with the vector files as its tables say."""

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag._files import read_file
from cde_rag.errors import StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.engine import Found, Place, Placed, Version, sampled
from cde_rag.stores.faiss.connections import FileIdentity
from cde_rag.stores.faiss.manifest import FaissManifest
from cde_rag.stores.faiss.record_tables import Records
from cde_rag.stores.faiss.view import Reader, View
from cde_rag.stores.faiss.writer import Transaction, new_generation
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.text_analysis import with_newest

Readers: TypeAlias = Callable[[FaissManifest, str, FileIdentity | None], Reader]


class FolderSession:
    """Implements `cde_rag.stores.engine.Session`.

    Args:
        records: The tables.
        folder: Folder of the store.
        readers: Returns the reader of a vector file, given the manifest, the file's name and `place`.
        place: Identity of the files at the store's path.
        writer: The write transaction; None in a read.
    """

    run: Hashable = None

    def __init__(
        self,
        records: Records,
        folder: Path,
        readers: Readers,
        place: FileIdentity | None,
        writer: Transaction | None = None,
    ) -> None:
        self.records = records
        self._folder = folder
        self._readers = readers
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
        """Settings of the collection, as a copy that callers may change."""
        return dict(self.manifest.settings)

    def view(self, generation: int | None = None) -> View:
        """Return a generation with its vectors (default: the active one)."""
        manifest = self.manifest
        state = manifest.serving if generation is None else manifest.generation(generation)
        view = self._views.get(state.number)
        if view is None or view.state != state:
            reader = self._readers(manifest, state.vectors, self._place)
            view = self._views[state.number] = reader.view(self.records, manifest, state)
        return view

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context.

        Raises:
            StoreFormatError: They do not have their checksum.
            FileNotFoundError: The file is not there.
        """
        state = self.manifest.generation(generation)
        path = self._folder / state.context
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
        found = view.stored(ids)
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
        self, records: Sequence[tuple[Record, str]], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> None:
        """Upsert records and their vectors."""
        positions, active = self.records.put(records), self.manifest.active
        for state in self.manifest.generations:
            if state.number != active:
                self.writer.mark_deleted(state.number, list(zip(positions, digests, strict=True)))
        self.writer.put_vectors(active, positions, digests, vectors)

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of records."""
        positions = self.records.positions_of(list(metadata))
        stored = self.records.stored(self.manifest.active, positions)
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
        self.records.fts_index.rebuild()

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add a generation, whose Context is on the disk first."""
        number = self.manifest.last + 1
        new = new_generation(self._folder, number, fingerprint, context)
        self.writer.manifest = dataclasses.replace(self.manifest.put(new), last=number)
        return number

    def activate(self, generation: int) -> None:
        """Activate a generation."""
        self.writer.manifest = dataclasses.replace(self.manifest, active=generation)

    def drop(self, generation: int) -> None:
        """Remove a generation; its files go after the commit."""
        self.records.forget(generation)
        self.writer.manifest = self.manifest.without(generation)
