"""Reading of one generation: its vectors, without those of deleted records, and the search for the nearest.

Scores are as if every product were computed in float64. Products of float32 vectors computed in float32 are off by less
than a small bound, so the k best rows are among those whose float32 score comes within that of the k-th; only these are
scored again, in float64, each row by itself. Equal vectors get equal scores wherever they lie.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64

from cde_rag.errors import StoreFormatError
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.faiss.connections import FileIdentity
from cde_rag.stores.faiss.index import FLAT_ROWS, Index, IndexConfig, IndexFile
from cde_rag.stores.faiss.manifest import FaissGeneration, FaissManifest
from cde_rag.stores.faiss.tables import Records, StoredRecord
from cde_rag.stores.faiss.vectors import BLOCK_ROWS, VectorBlocks, VectorFile
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.manifests import PENDING

_MOST_K: Final = 10  # for more than one hit in so many vectors the search is exact
_SCANNED_ROWS: Final = 10_000  # up to so many that a filter keeps are searched exactly, though there are codes
_SCORES: Final = 2**24  # scores in memory at once: 64 MiB
_WHOLE: Final = 4  # where more than one row in so many counts, whole blocks are scored: copying rows costs more

_log = logging.getLogger(__name__)


class _Cached(NamedTuple):
    """Vectors of a file, and rows of deleted records.

    Attributes:
        appended: Number of rows, and the token of the last append.
        vectors: The rows.
        deleted: Number of rows of deleted records, and the token of the last deletion.
        dead: These rows, ascending.
    """

    appended: tuple[int, str]
    vectors: VectorBlocks
    deleted: tuple[int, str]
    dead: Int64[np.ndarray, "dead"]


class Reader:
    """Cache of one vector file between calls of a process. Thread-safe.

    Args:
        folder: Folder of the store.
        dim: Length of a vector.
        name: Name of the vector file.
        indexing: Index configuration of the store.
        place: Identity of the files at the store's path.
    """

    def __init__(self, folder: Path, dim: int, name: str, indexing: IndexConfig, place: FileIdentity | None) -> None:
        self.name = name
        self.indexing = indexing
        self.place = place
        self._folder = folder
        self._file = VectorFile(folder / name, dim)
        none = np.empty(0, np.int64)  # what is cached is one tuple, which threads replace at once
        self._cached = _Cached((0, ""), self._file.read(0, none), (0, ""), none)
        self._index: tuple[IndexFile, Index | None] | None = None
        self._loading = threading.Lock()

    def view(self, records: Records, manifest: FaissManifest, state: FaissGeneration) -> "View":
        """Return the generation as a transaction sees it.

        Raises:
            StoreFormatError: The vector file is too short.
            FileNotFoundError: There is no such file.
        """
        appended, vectors, deleted, dead = self._cached
        if state.rows:
            self._file.check_size(state.rows)  # of a shorter one, copied over it, reading the end kills the process
        if appended != (state.rows, state.appended):
            vectors = self._file.read(state.rows, records.checksums(state.number))
        if deleted != (state.dead, state.deleted):
            dead = records.dead_rows(state.number)
        self._cached = _Cached((state.rows, state.appended), vectors, (state.dead, state.deleted), dead)
        return View(self, records, manifest, state, vectors, dead)

    def index(self, wanted: IndexFile | None) -> Index | None:
        """Return the snapshot for approximate search; None if there is none, or it is damaged."""
        if wanted is None:
            return None
        with self._loading:
            if self._index is None or self._index[0] != wanted:
                try:
                    self._index = wanted, Index.mapped(self._folder, wanted)
                except (StoreFormatError, FileNotFoundError) as error:
                    _log.warning("Searching exactly, which is slower, until the index is built again: %s", error)
                    self._index = wanted, None
            return self._index[1]


@dataclass(frozen=True, slots=True)
class View:
    """State of one generation, inside a transaction.

    Attributes:
        records: The tables.
        manifest: The manifest.
        state: The generation in it.
        vectors: The generation's vectors, those of deleted records too.
        dead: Rows of deleted records, ascending.
    """

    reader: Reader
    records: Records
    manifest: FaissManifest
    state: FaissGeneration
    vectors: VectorBlocks
    dead: Int64[np.ndarray, "dead"]

    def stored(self, ids: Sequence[str]) -> list[StoredRecord]:
        """Return the rows of those ids that exist, in the order of the ids, each verified by its checksums."""
        known = self.records.known_positions(ids)
        existing = [id_ for id_ in ids if id_ in known]
        found = self.at([known[id_] for id_ in existing])
        for id_, stored in zip(existing, found, strict=True):
            if stored.row.record.id != id_:
                raise self._damaged(f"record {id_!r:.80}, found {stored.row.record.id!r:.80}")
        return found

    def at(self, positions: Sequence[int]) -> list[StoredRecord]:
        """Return the rows at those positions, in this order, each verified by its checksums, its vector's too, if any.

        Raises:
            StoreFormatError: A row does not match its checksum.
        """
        may_wait = self.state is not self.manifest.serving or PENDING in self.manifest.settings
        found = self.records.stored(self.state.number, positions, may_wait=may_wait)
        having = [stored for stored in found if stored.vector_row is not None]
        matrix = self.vectors.take(np.array([stored.vector_row for stored in having], np.int64))
        for stored, vector in zip(having, matrix, strict=True):
            if checksum_of(stored.position, stored.row.digest, vector.tobytes()) != stored.checksum:
                raise self._damaged(f"the vector and digest of record {stored.row.record.id!r:.80}, found others")
        return found

    def search(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, where: Filter | None
    ) -> list[list[tuple[int, float]]]:
        """Return positions and scores of min(k, matching rows) records for each query, best first.

        Equal scores are in order of insertion.
        """
        if where is not None:
            kept = self.records.vector_rows(self.state.number, where)
        else:
            kept = np.delete(np.arange(len(self.vectors)), self.dead) if len(self.dead) else None
        return [self._best(query, near, k) for query, near in zip(queries, self._near(queries, k, kept), strict=True)]

    def _near(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, kept: Int64[np.ndarray, "kept"] | None
    ) -> Iterator[Int64[np.ndarray, "_"]]:
        """Yield, for each query, ascending rows that contain its k best kept ones, certainly or very probably."""
        count = len(self.vectors) if kept is None else len(kept)
        index = self._index(count, k)
        if index is None:
            yield from _candidates(self.vectors, queries, k, kept)
            return
        if kept is None:
            among, newer = None, np.arange(index.rows, len(self.vectors))
        else:
            among, newer = np.zeros(index.rows, np.bool_), kept[kept >= index.rows]
            among[kept[kept < index.rows]] = True
        found = index.scan(queries, k, among=among) if self._few(count) else index.search(queries, k, among=among)
        for query, near, tail in zip(queries, found, _candidates(self.vectors, queries, k, newer), strict=True):
            both = np.concatenate([near, tail])
            yield both if len(both) >= k else next(_candidates(self.vectors, query[None], k, kept))

    def _index(self, count: int, k: int) -> Index | None:
        """Return the index, unless a search for k among `count` rows is exact."""
        asked, file = self.reader.indexing, self.state.index
        if file is None or not asked.at(len(self.vectors)).has_file or count <= _MOST_K * k:
            return None
        if file.quantization is None and (self._few(count) or (asked.index == "auto" and count <= FLAT_ROWS)):
            return None
        return None if self._few(count) and count <= _SCANNED_ROWS else self.reader.index(file)

    def _few(self, count: int) -> bool:
        """Return True if a filter keeps so few rows that graph or cells may miss them."""
        return count <= len(self.vectors) // 2

    def _best(
        self, query: Float32[np.ndarray, "dim"], near: Int64[np.ndarray, "rows"], k: int
    ) -> list[tuple[int, float]]:
        scores = _exact_scores(self.vectors, near, query)
        if len(near) > k:
            last = np.partition(scores, len(near) - k)[len(near) - k]
            near, scores = near[scores >= last], scores[scores >= last]
        positions = self.records.positions_of_rows(self.state.number, near)
        best = np.lexsort((positions, -scores))[:k]
        return list(zip(positions[best].tolist(), scores[best].tolist(), strict=True))

    def _damaged(self, what: str) -> StoreFormatError:
        return StoreFormatError(f"{self.vectors.path}: expected {what}. Restore a copy.")


def _candidates(
    vectors: VectorBlocks, queries: Float32[np.ndarray, "queries dim"], k: int, rows: Int64[np.ndarray, "rows"] | None
) -> Iterator[Int64[np.ndarray, "_"]]:
    """Yield, for each query, the rows that can be among its k best.

    Args:
        vectors: Vectors to search.
        queries: Unit vectors.
        k: Number of hits wanted.
        rows: Rows to search among, ascending; None for all.
    """
    count = len(vectors) if rows is None else len(rows)
    whole = rows is None or count > len(vectors) // _WHOLE
    scored = len(vectors) if whole else count
    slack = 2 * queries.shape[1] * np.finfo(np.float32).eps  # of two scores, each off by at most dim · eps / 2; doubled
    at_once = max(1, _SCORES // max(1, scored))
    for first in range(0, len(queries), at_once):
        some = queries[first : first + at_once]
        scores = np.empty((len(some), scored), np.float32)
        start = 0
        for block in _blocks(vectors, None if whole else rows):
            scores[:, start : start + len(block)] = (block @ some.T).T
            start += len(block)
        for line in scores if rows is None or not whole else scores[:, rows]:
            least = -np.inf if k >= count else np.partition(line, count - k)[count - k] - slack
            near = np.flatnonzero(line >= least)
            yield near if rows is None else rows[near]


def _exact_scores(
    vectors: VectorBlocks, rows: Int64[np.ndarray, "rows"], query: Float32[np.ndarray, "dim"]
) -> Float64[np.ndarray, "rows"]:
    """Compute dot products of rows with a query in float64; a row's score depends on that row alone."""
    scores = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK_ROWS):
        some = slice(start, start + BLOCK_ROWS)
        scores[some] = (vectors.take(rows[some]) * query.astype(np.float64)).sum(axis=1)
    return scores


def _blocks(vectors: VectorBlocks, rows: Int64[np.ndarray, "rows"] | None) -> Iterator[Float32[np.ndarray, "some dim"]]:
    """Yield the rows, block by block of the file."""
    if rows is None:
        for number in range(vectors.blocks):
            yield vectors.block(number)
        return
    for some in np.split(rows, np.flatnonzero(np.diff(rows // BLOCK_ROWS)) + 1):
        yield vectors.take(some)
