"""Candidates for a search, found in a file derived from the vectors. The only module that knows FAISS."""

import contextlib
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int64

from cde_rag._files import file_sha256, fsync_folder, read_file
from cde_rag.errors import StoreError, StoreFormatError, require
from cde_rag.stores.faiss.vectors import VectorBlocks
from cde_rag.stores.quantization import check_prefix, prefix_dims, prefixes

faiss: Any = require("faiss", "faiss")

FaissIndexKind: TypeAlias = Literal["auto", "flat", "hnsw", "ivf"]
"""Values of `index` of a FaissStore; see `IndexConfig`."""

FLAT_ROWS: Final = 100_000  # up to so many vectors "auto" is flat
INDEXES: Final[tuple[str, ...]] = get_args(FaissIndexKind)

# docs/guide/compression.md says what these find.
_LINKS: Final = 32  # of a node in HNSW's upper layers; twice as many in the lowest
_BUILD_BEAM: Final = 100
_SEARCH_BEAM: Final = 256
_CELLS: Final = 4  # of IVF for each root of the vectors, and
_CELL_ROWS: Final = 40  # at least so many vectors in each on average
_SCANNED: Final = 0.25  # of the cells, and at least
_CELLS_SCANNED: Final = 64
_CODES: Final = {None: "Flat", "int8": "SQ8", "binary": "RaBitQ"}
_CANDIDATES: Final = {None: 2, "int8": 4, "binary": 20}  # for each hit that is wanted; by a prefix
_PREFIX_CANDIDATES: Final = 9  # times the square of how much shorter it is
_TRAINING_ROWS: Final = 2**15  # at most, or so many for each cell:
_CELL_TRAINING_ROWS: Final = 64
_ADDED_AT_ONCE: Final = 2**16  # vectors copied while building
_TAIL: Final = 10  # a snapshot is extended when it lacks more than one vector in so many
_REFITTED: Final = 2  # and built anew when there are so many times the vectors that its cells and codes were fitted to
_PROCESS: Final = os.getpid()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Index configuration, set at creation or by `FaissStore.reindex`.

    Attributes:
        index: `flat` scans all vectors, `hnsw` follows a graph, `ivf` scans the nearest cells; `auto` is `flat` up to
            `FLAT_ROWS` vectors and `hnsw` beyond.
        quantization: Codes used for search in place of the vectors; see `cde_rag.stores.quantization`.

    Raises:
        ValueError: A name is not known.
    """

    index: str = "auto"
    quantization: str | None = None

    def __post_init__(self) -> None:
        if self.index not in INDEXES:
            raise ValueError(f"index: expected one of {', '.join(INDEXES)}, found {self.index!r}.")
        prefix_dims(self.quantization)

    def check(self, dim: int) -> None:
        """Refuse configurations that vectors of `dim` dimensions cannot have.

        Raises:
            ValueError: The prefix is not shorter than the vectors.
        """
        check_prefix(prefix_dims(self.quantization), dim)

    def at(self, rows: int) -> "IndexConfig":
        """Resolve `auto` for a number of vectors."""
        if self.index != "auto":
            return self
        return IndexConfig("flat" if rows <= FLAT_ROWS else "hnsw", self.quantization)

    @property
    def has_file(self) -> bool:
        """True if the index has a file in addition to the vectors."""
        return (self.index, self.quantization) != ("flat", None)

    def expect(self, index: str | None, quantization: str | None) -> None:
        """Refuse a configuration other than the requested one; None accepts any.

        Raises:
            StoreError: It is another.
        """
        if index not in (None, self.index) or quantization not in (None, self.quantization):
            asked, found = (
                f"index={one!r}, quantization={other!r}"
                for one, other in ((index, quantization), (self.index, self.quantization))
            )
            hint = "Omit these arguments to open it, or call reindex(…) to change them."
            raise StoreError(f"Expected a store with {asked}, found one with {found}. {hint}")


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A snapshot of a generation's vectors for approximate search.

    Attributes:
        name: File name.
        rows: Number of rows of the vector file in it, from the first on.
        sha256: Checksum of the file.
        index: Type of index; see `IndexConfig`.
        quantization: Quantization of the index.
        trained: Number of vectors that cells and codes were trained on; 0 without training.
    """

    name: str
    rows: int
    sha256: str
    index: str = "hnsw"
    quantization: str | None = None
    trained: int = 0

    @property
    def indexing(self) -> IndexConfig:
        """Configuration of the index."""
        return IndexConfig(self.index, self.quantization)


class Index:
    """Index over the first `rows` vectors of a file, or codes of them: flat, a graph (HNSW), or cells (IVF).

    Args:
        index: The FAISS index.
        indexing: Its configuration; never `auto`.
        trained: Number of vectors that cells and codes were trained on; 0 without training.
    """

    def __init__(self, index: Any, indexing: IndexConfig, trained: int) -> None:
        self._index = index
        self._prefix = prefix_dims(indexing.quantization)
        self.indexing = indexing
        self.trained = trained

    @property
    def rows(self) -> int:
        """Number of rows in the index."""
        return self._index.ntotal

    @classmethod
    def empty(cls, indexing: IndexConfig, vectors: VectorBlocks) -> "Index":
        """Return an empty index, trained on these vectors."""
        _choose_threads()
        rows = len(vectors)
        cells = max(1, min(int(_CELLS * rows**0.5), rows // _CELL_ROWS))
        structure = {"flat": "", "hnsw": f"HNSW{_LINKS},", "ivf": f"IVF{cells},"}[indexing.index]
        codes = _CODES.get(indexing.quantization, "Flat")
        # Of unit vectors the nearest have the highest dot products; FAISS has this pair for distances only.
        metric = faiss.METRIC_L2 if (indexing.index, codes) == ("hnsw", "RaBitQ") else faiss.METRIC_INNER_PRODUCT
        index = cls(
            faiss.index_factory(prefix_dims(indexing.quantization) or vectors.dim, structure + codes, metric),
            indexing,
            trained=0 if (indexing.index, codes) in {("flat", "Flat"), ("hnsw", "Flat")} else rows,
        )
        if indexing.index == "hnsw":
            index._index.hnsw.efConstruction = _BUILD_BEAM
        elif indexing.index == "ivf":
            index._index.cp.min_points_per_centroid = 1  # else it complains on stderr of few vectors
        if index.trained:
            some = max(_TRAINING_ROWS, _CELL_TRAINING_ROWS * cells)
            dice = np.random.default_rng(0)
            drawn = np.arange(rows) if rows <= some else np.sort(dice.choice(rows, some, replace=False))
            index._index.train(index._seen(vectors.take(drawn)))
        return index

    def extend(self, vectors: VectorBlocks) -> None:
        """Add the vectors that are not in it; not while another thread searches in it, nor where it was mapped."""
        _choose_threads()
        for start in range(self.rows, len(vectors), _ADDED_AT_ONCE):
            rows = np.arange(start, min(start + _ADDED_AT_ONCE, len(vectors)))
            self._index.add(self._seen(vectors.take(rows)))

    def search(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, *, among: Bool[np.ndarray, "rows"] | None
    ) -> list[Int64[np.ndarray, "_"]]:
        """Return rows that are probably among the k best of each query, ascending; at times fewer than k.

        Args:
            queries: Unit vectors.
            k: Number of hits wanted.
            among: Mask of allowed rows; None for all. The fewer, the wider the search.
        """
        widened = 1.0 if among is None else len(among) / max(1, among.sum())
        if self.indexing.index == "hnsw":
            beam = max(_SEARCH_BEAM, self._candidates(k, queries.shape[1]))
            parameters = faiss.SearchParametersHNSW(efSearch=min(self.rows, int(beam * widened)))
        elif self.indexing.index == "ivf":
            cells = max(_CELLS_SCANNED, _SCANNED * self._index.nlist)
            parameters = faiss.SearchParametersIVF(nprobe=min(self._index.nlist, int(cells * widened)))
        else:
            parameters = faiss.SearchParameters()
        return self._found(self._index, queries, k, parameters, among)

    def scan(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, *, among: Bool[np.ndarray, "rows"] | None
    ) -> list[Int64[np.ndarray, "_"]]:
        """Search like `search`, but by the codes of all allowed rows, without graph or cells."""
        index, parameters = self._index, faiss.SearchParameters()
        if self.indexing.index == "hnsw":
            index = faiss.downcast_index(index.storage)
        elif self.indexing.index == "ivf":
            parameters = faiss.SearchParametersIVF(nprobe=index.nlist)
        return self._found(index, queries, k, parameters, among)

    def _found(
        self,
        index: Any,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        parameters: Any,
        among: Bool[np.ndarray, "rows"] | None,
    ) -> list[Int64[np.ndarray, "_"]]:
        _choose_threads()
        if among is not None:
            allowed = np.packbits(among, bitorder="little")
            parameters.sel = faiss.IDSelectorBitmap(allowed)
        wanted = min(self._candidates(k, queries.shape[1]), self.rows)
        _, found = index.search(self._seen(queries), wanted, params=parameters)
        return [np.unique(line[line >= 0]) for line in found]

    def _candidates(self, k: int, dim: int) -> int:
        """Return the number of rows to request from FAISS for k hits."""
        if self._prefix is None:
            return k * _CANDIDATES[self.indexing.quantization]
        return int(k * _PREFIX_CANDIDATES * (dim / self._prefix) ** 2)

    def _seen(self, vectors: Float32[np.ndarray, "some dim"]) -> Float32[np.ndarray, "some seen"]:
        """Return the part of the vectors that FAISS indexes."""
        return vectors if self._prefix is None else prefixes(vectors, self._prefix)

    def save(self, path: Path) -> IndexFile | None:
        """Write it durably; returns nothing where another writer has removed it meanwhile.

        Raises:
            StoreError: The disk is full, or the folder not writable.
        """
        try:
            faiss.write_index(self._index, str(path))
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            fsync_folder(path.parent)
            sha256 = file_sha256(path)
            _note_checked(path)
        except FileNotFoundError:  # another writer swept it away, since nothing refers to it yet
            return None
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):  # swept by the next writer that replaces a file
                path.unlink(missing_ok=True)
            hint = "All records are stored, and searches are exact without it; make room and add again."
            raise StoreError(f"{path}: expected to write the index, found: {error}. {hint}") from error
        index, quantization = self.indexing.index, self.indexing.quantization
        return IndexFile(path.name, self.rows, sha256, index, quantization, self.trained)

    @classmethod
    def mapped(cls, folder: Path, file: IndexFile) -> "Index":
        """Map a saved index into memory, for search only.

        Raises:
            StoreFormatError: The file does not have its sha256, or is of a FAISS that this one cannot read.
            FileNotFoundError: There is no such file.
        """
        return cls._read(folder, file, faiss.IO_FLAG_MMAP_IFC)  # IO_FLAG_MMAP maps IVF too, and is four times slower

    @classmethod
    def loaded(cls, folder: Path, file: IndexFile) -> "Index":
        """Load a saved index as a copy in memory, to extend; raises like `mapped`."""
        return cls._read(folder, file, 0)

    @classmethod
    def _read(cls, folder: Path, file: IndexFile, flags: int) -> "Index":
        path = folder / file.name
        hint = "It is derived: delete it, and searches are exact until the next one is built."
        if not _is_checked(path):
            found = file_sha256(path)
            if found != file.sha256:
                raise StoreFormatError(f"{path}: expected sha256 {file.sha256[:16]}…, found {found[:16]}…. {hint}")
            _note_checked(path)
        try:
            return cls(faiss.read_index(str(path), flags), file.indexing, file.trained)
        except RuntimeError as error:
            raise StoreFormatError(f"{path}: expected an index, found: {error}. {hint}") from error


def is_due(old: IndexFile | None, rows: int, indexing: IndexConfig, folder: Path) -> bool:
    """Return True if a generation of `rows` vectors needs a new snapshot: it has none, another kind, or an old one."""
    wanted = indexing.at(rows)
    if not wanted.has_file or rows == 0:
        return False
    if old is None or old.indexing != wanted or not (folder / old.name).exists():
        return True
    return rows - old.rows > rows // _TAIL


def build(
    folder: Path, number: int, vectors: VectorBlocks, indexing: IndexConfig, *, old: IndexFile | None = None
) -> IndexFile | None:
    """Write a snapshot of all vectors of a generation to a new file.

    Args:
        folder: Folder of the store.
        number: Number of the generation.
        vectors: Its vectors.
        indexing: Index configuration of the store.
        old: Its old snapshot, which is extended if it is of the same kind, intact, and still fits.

    Returns:
        Its entry in the manifest; None if there is to be no snapshot, or another writer removed it meanwhile.

    Raises:
        StoreError: The disk is full, or the folder not writable.
    """
    wanted = indexing.at(len(vectors))
    if not wanted.has_file or len(vectors) == 0:
        return None
    index = _extensible(folder, old, wanted, len(vectors)) or Index.empty(wanted, vectors)
    index.extend(vectors)
    return index.save(folder / f"index-{number}-{secrets.token_hex(4)}")


def _extensible(folder: Path, old: IndexFile | None, wanted: IndexConfig, rows: int) -> Index | None:
    if old is None or old.indexing != wanted or (old.trained and rows > _REFITTED * old.trained):
        return None
    try:
        return Index.loaded(folder, old)
    except (StoreFormatError, FileNotFoundError) as error:
        _log.warning("Building the index from the first vector: %s", error)
        return None


def _is_checked(path: Path) -> bool:
    """Return True if a process compared the file's bytes with its checksum, and nobody has written to it since.

    The note next to it holds the file's inode, size and times then. So a process that begins to search reads the bytes
    that the search touches, not the complete file; `verify` reads all of it always.
    """
    try:
        return read_file(_note(path)) == _stamp(path)
    except FileNotFoundError:
        return False


def _note_checked(path: Path) -> None:
    with contextlib.suppress(OSError):  # a full disk or a read-only folder; the next process compares again
        _note(path).write_bytes(_stamp(path))


def _note(path: Path) -> Path:
    return path.with_name(f"checked-{path.name}")


def _stamp(path: Path) -> bytes:
    found = path.stat()
    return b"%d %d %d %d\n" % (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _choose_threads() -> None:
    """Use one thread after a fork: OpenMP's others are not in this process, and it would wait for them for ever."""
    if os.getpid() != _PROCESS:
        faiss.omp_set_num_threads(1)
