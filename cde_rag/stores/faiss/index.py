"""Approximate search over a snapshot of a vector file: FAISS's HNSW graph. The only module that knows FAISS."""

import logging
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float32, Int64

from cde_rag.errors import StoreError, StoreFormatError, require
from cde_rag.stores.faiss.manifest import IndexFile
from cde_rag.stores.faiss.vectors import Vectors
from cde_rag.stores.folder import file_sha256, fsync_folder

faiss: Any = require("faiss", "faiss")
_log = logging.getLogger(__name__)

# Over 120 000 passages of text (384 dims): recall@10 0.99, 0.99 under random filters that keep half, 0.94 under filters
# that keep the half of the space that half of the queries are not in; below a half it falls, so those are exact.
_LINKS: Final = 32  # of a node in HNSW's upper layers; twice as many in the lowest
_BUILD_BEAM: Final = 100
_SEARCH_BEAM: Final = 256
_ADDED_AT_ONCE: Final = 2**16  # vectors copied while building
_PROCESS: Final = os.getpid()


class Index:
    """A graph over the first `rows` vectors of a file, in memory (about 4 · dim + 280 bytes a row)."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return self._graph.ntotal

    @classmethod
    def empty(cls, dim: int) -> "Index":
        """A graph of nothing."""
        graph = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = _BUILD_BEAM
        return cls(graph)

    def extend(self, vectors: Vectors) -> None:
        """Add the vectors that are not in it; not while another thread searches in it."""
        _choose_threads()
        for start in range(self.rows, len(vectors), _ADDED_AT_ONCE):
            self._graph.add(vectors.take(np.arange(start, min(start + _ADDED_AT_ONCE, len(vectors)))))

    def search(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, *, among: Bool[np.ndarray, "rows"] | None
    ) -> list[Int64[np.ndarray, "_"]]:
        """For each query rows that are probably among its k best, ascending; at times fewer than k.

        Args:
            queries: Unit vectors.
            k: How many are wanted.
            among: Rows that may be found; all where None. The fewer, the wider the search.
        """
        _choose_threads()
        beam = max(_SEARCH_BEAM, 2 * k)
        parameters = faiss.SearchParametersHNSW()
        if among is not None:
            allowed = np.packbits(among, bitorder="little")
            parameters.sel = faiss.IDSelectorBitmap(allowed)
            beam = min(self.rows, int(beam * len(among) / max(1, among.sum())))
        parameters.efSearch = beam
        _, found = self._graph.search(queries, min(2 * k, self.rows), params=parameters)
        return [np.unique(line[line >= 0]) for line in found]

    def save(self, path: Path) -> str:
        """Write it durably; returns the file's sha256, or nothing where another writer has removed it meanwhile.

        Raises:
            StoreError: The disk is full, or the folder not writable.
        """
        try:
            faiss.write_index(self._graph, str(path))
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            fsync_folder(path.parent)
            return file_sha256(path)
        except FileNotFoundError:  # another writer swept it away, since nothing refers to it yet
            return ""
        except (OSError, RuntimeError) as error:
            path.unlink(missing_ok=True)
            hint = "All records are stored, and searches are exact without it; make room and add again."
            raise StoreError(f"{path}: expected to write the index, found: {error}. {hint}") from error

    @classmethod
    def load(cls, path: Path, sha256: str) -> "Index":
        """Read what `save` wrote.

        Raises:
            StoreFormatError: The file does not have this sha256, or is of a FAISS that this one cannot read.
            FileNotFoundError: It is not there.
        """
        hint = "It is derived: delete it, and searches are exact until the next one is built."
        found = file_sha256(path)
        if found != sha256:
            raise StoreFormatError(f"{path}: expected sha256 {sha256[:16]}…, found {found[:16]}…. {hint}")
        try:
            return cls(faiss.read_index(str(path)))
        except RuntimeError as error:
            raise StoreFormatError(f"{path}: expected an index, found: {error}. {hint}") from error


def _choose_threads() -> None:
    """Use one thread after a fork: OpenMP's others are not in this process, and it would wait for them for ever."""
    if os.getpid() != _PROCESS:
        faiss.omp_set_num_threads(1)


def build(folder: Path, name: str, vectors: Vectors, old: IndexFile | None) -> IndexFile:
    """Write an index over all these vectors to a new file; `old` spares work where it is sound.

    Raises:
        StoreError: The disk is full, or the folder not writable.
    """
    index = Index.empty(vectors.dim)
    if old is not None:
        try:
            index = Index.load(folder / old.name, old.sha256)
        except (StoreFormatError, FileNotFoundError) as error:
            _log.warning("Building the index from the first vector: %s", error)
    index.extend(vectors)
    return IndexFile(name, index.rows, index.save(folder / name))
