"""Vectors that an application loads from one file of a folder: LangChain's FAISS, LlamaIndex' persisted folders.

Texts, ids and metadata stand in other files, which a move does not touch. So the new vectors are one new file, which
takes the place of the old one by one rename: readers load the old file or the new one, and there is no gap. The old
file is kept in the journal.

    new/            file with the new vectors
    old/            file with the old vectors
"""

import errno
import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._files import file_sha256, fsync_folder, read_file, replacing
from cde_rag.adoption.movable import PAGE, SourceChangedError, SourceFacts, SourceRow
from cde_rag.adoption.positions import drawn, stored
from cde_rag.adoption.text_vectors import OURS, TextVectors
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError, require
from cde_rag.indexing.audit import StoredVector, audit
from cde_rag.records import Record

_NEW, _OLD = "new", "old"
MARK: Final = "cde_context"  # key of the space that CDEEmbedding writes; `moved` if nodes may have older marks
_DISTANCES: Final = {0: "ip", 1: "l2"}  # of FAISS


class IndexFolder(TextVectors, ABC):
    """A folder of an application whose vectors are one file.

    Args:
        target: Name given by the user.
        folder: The folder.
        file: Name of the file with the vectors.
        others: Names of the files with ids and texts.
        home: Folder of a move's journal.
        random: Draws samples.
    """

    def __init__(self, target: str, folder: Path, file: str, others: Sequence[str], home: Path, random: Random) -> None:
        super().__init__(target, home)
        self._folder, self._file, self._others, self._random = folder, file, others, random

    @abstractmethod
    def texts(self) -> list[SourceRow]:
        """Return the rows in the order of their vectors.

        Raises:
            StoreError: The files cannot be read.
        """

    @abstractmethod
    def vectors_of(self, path: Path) -> "IndexedFile":
        """Read a file of vectors.

        Raises:
            StoreError: It cannot be read.
        """

    def count(self) -> int:
        """Return the number of vectors."""
        return len(self.texts())

    def stamp(self) -> str | None:
        """Return None: these files have no place for a stamp."""
        return None

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random rows that have a text."""
        return self._sample(self._live, count)

    def found(self) -> SourceFacts:
        """Return length and distance of the vectors."""
        file = self.vectors_of(self._live)
        return SourceFacts(file.dim, file.distance, None)

    def check(self, embedder: Embedder) -> None:
        """Check that the file can be made again with other vectors.

        Raises:
            StoreError: It cannot.
        """
        self.vectors_of(self._live).empty_like(embedder.dim)
        self.texts()

    def version(self) -> str:
        """Return a digest of the files."""
        return self._digest([self._file, *self._others])

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the rows; those of the old and the new vectors are the same."""
        del notes, old
        rows = self.texts()
        yield from (rows[start : start + PAGE] for start in range(0, len(rows), PAGE))

    def passages(self) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the rows that have a text, with their vectors."""
        rows, file = self.texts(), self.vectors_of(self._live)
        for start in range(0, len(rows), PAGE):
            page = enumerate(rows[start : start + PAGE], start)
            yield [
                (Record(row.id, row.text, metadata=self.metadata(row.id)), file.get(place, row.id))
                for place, row in page
                if row.text is not None
            ]

    def metadata(self, id_: str) -> Mapping[str, Any]:
        """Return the metadata of a row that filters can read; none, where the text has them."""
        del id_
        return {}

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Write the file of the new vectors, and note its digest and those of the application's files.

        Raises:
            SourceChangedError: A text has no vector yet.
        """
        texts_before, live_before = self._digest(self._others), self._digest([self._file])
        rows = self.texts()
        index = self.vectors_of(self._live).empty_like(int(notes["dim"]))
        for start in range(0, len(rows), PAGE):
            page = rows[start : start + PAGE]
            index.add([row.id for row in page], self.made(notes, page, parked))
        index.mark(notes["space"])
        path = self._place(notes, _NEW)
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            index.write(temporary)
        found = {"new": file_sha256(path), "old": live_before, "texts": texts_before, "order": _order(rows)}
        return {**notes, **found}

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "_NewFile":
        """Return the new vectors."""
        del old
        return _NewFile(self.target, self._place(notes, _NEW), self)

    def switch(self, notes: Mapping[str, str]) -> float:
        """Copy the old file into the journal, and rename the new one into its place; there is no gap."""
        return self._exchange(notes, notes["old"], _OLD, notes["new"], _NEW)

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Copy the new file into the journal, and rename the old one into its place; there is no gap."""
        return self._exchange(notes, notes["new"], _NEW, notes["old"], _OLD)

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the file is the new one, or one that the application saved with vectors of the new model."""
        if self._digest([self._file]) == notes["new"]:
            return True
        if self.found().dim != int(notes["dim"]):
            return False
        return audit(self, embedder).share >= OURS

    @abstractmethod
    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line of the application that names the new model."""

    @property
    def _live(self) -> Path:
        return self._folder / self._file

    def _exchange(self, notes: Mapping[str, str], out: str, out_place: str, into: str, into_place: str) -> float:
        live = self._digest([self._file])
        if live == into:
            return 0.0
        is_same = self._digest(self._others) == notes["texts"] or _order(self.texts()) == notes.get("order")
        if live != out or not is_same:
            raise SourceChangedError(
                f"{self.target}: expected the files as they were, found others, which the application has saved "
                "meanwhile. Run the command again."
            )
        kept, coming = self._place(notes, out_place), self._place(notes, into_place)
        kept.parent.mkdir(exist_ok=True)
        with replacing(kept) as temporary:  # a copy, since programs write over the file itself
            shutil.copyfile(self._live, temporary)
        if file_sha256(kept) != out or not coming.exists():
            raise SourceChangedError(f"{self.target}: its files changed meanwhile. Run the command again.")
        live_file = self._live.resolve()  # a link stays
        shutil.copymode(live_file, coming)
        try:
            coming.replace(live_file)
            fsync_folder(live_file.parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with replacing(live_file) as temporary:  # the journal is on another file system
                shutil.copy(coming, temporary)
        return 0.0

    def _sample(self, path: Path, count: int) -> list[StoredVector]:
        rows, file = self.texts(), self.vectors_of(path)

        def read(places: list[int]) -> list[StoredVector]:
            chosen = [(place, rows[place]) for place in places]
            return [stored(row.id, row.text, file.get(place, row.id)) for place, row in chosen if row.text is not None]

        return drawn(self._random, len(rows), count, read)

    def _place(self, notes: Mapping[str, str], part: str) -> Path:
        return Path(notes["folder"]) / part / self._file

    def _digest(self, names: Iterable[str]) -> str:
        paths = [self._folder / name for name in names]
        try:
            found = [file_sha256(path) for path in paths if path.exists()]
        except OSError as error:
            raise StoreError(f"{self.target}: not readable ({error}).") from error
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def _order(rows: Iterable[SourceRow]) -> str:
    """Return a digest of ids and texts in their order, which stays where an application saves them once more."""
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps([row.id, row.text]).encode())
    return found.hexdigest()


class IndexedFile(ABC):
    """Vectors of a file, in memory.

    Attributes:
        dim: Length of a vector; 0 where there are none.
        distance: Distance of searches.
    """

    dim: int
    distance: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def empty_like(self, dim: int) -> "IndexedFile":
        """Return the same kind of file without vectors, for others.

        Raises:
            StoreError: The kind cannot be made without training.
        """

    @abstractmethod
    def get(self, place: int, id_: str) -> Float32[np.ndarray, " dim"]:
        """Return the vector at a place, or of an id where the file names them."""

    @abstractmethod
    def add(self, ids: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]) -> None:
        """Add vectors."""

    def mark(self, fingerprint: str) -> None:
        """Name the space of the vectors in the file, if it has a place for that."""
        del fingerprint

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write the file."""


class FaissFile(IndexedFile):
    """File of FAISS.

    Args:
        index: An index of FAISS.
        where: The file, for messages.
    """

    def __init__(self, index: Any, where: str) -> None:
        self._index, self._where = index, where
        self.dim = int(index.d)
        self.distance = _DISTANCES.get(int(index.metric_type), str(index.metric_type))

    @classmethod
    def read(cls, path: Path, where: str) -> "FaissFile":
        """Read a file.

        Raises:
            MissingExtraError: FAISS is not installed.
            StoreError: It is no index of FAISS.
        """
        faiss: Any = require("faiss", "faiss")
        try:
            return cls(faiss.read_index(str(path)), where)
        except RuntimeError as error:
            raise StoreError(f"{where}: expected an index of FAISS in {path.name}, found another file.") from error

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def empty_like(self, dim: int) -> "FaissFile":
        """Return an empty index of the same kind and distance, for vectors of another length."""
        faiss: Any = require("faiss", "faiss")
        kind, metric = type(self._index).__name__, self._index.metric_type
        if kind in ("IndexFlat", "IndexFlatL2", "IndexFlatIP"):
            made = faiss.IndexFlatL2(dim) if kind == "IndexFlatL2" else faiss.IndexFlat(dim, metric)
            return FaissFile(faiss.IndexFlatIP(dim) if kind == "IndexFlatIP" else made, self._where)
        if kind == "IndexHNSWFlat":
            made = faiss.IndexHNSWFlat(dim, self._index.hnsw.nb_neighbors(1), metric)
            made.hnsw.efConstruction, made.hnsw.efSearch = self._index.hnsw.efConstruction, self._index.hnsw.efSearch
            return FaissFile(made, self._where)
        raise StoreError(
            f"{self._where}: expected a flat or HNSW index, found {kind}, which needs training or ids. Make a new "
            "index of that kind, with the new model, from the texts."
        )

    def get(self, place: int, id_: str) -> Float32[np.ndarray, " dim"]:
        """Return the vector at a place."""
        del id_
        try:
            return np.asarray(self._index.reconstruct(place), np.float32)
        except RuntimeError as error:
            kind = type(self._index).__name__
            raise StoreError(
                f"{self._where}: expected an index whose vectors can be read, found {kind}, which keeps none by place."
            ) from error

    def add(self, ids: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]) -> None:
        """Add vectors at the end."""
        del ids
        self._index.add(vectors)

    def write(self, path: Path) -> None:
        """Write the file, as FAISS does."""
        faiss: Any = require("faiss", "faiss")
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise StoreError(f"{self._where}: cannot write {path.name} ({error!s:.120}). Make room.") from error


class JsonFile(IndexedFile):
    """File of LlamaIndex' SimpleVectorStore: one JSON object, whose other fields are kept as they are.

    Args:
        content: The object.
        where: The file, for messages.
    """

    distance = "cosine"

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self._content, self._where = dict(content), where
        self.vectors: dict[str, list[float]] = dict(content["embedding_dict"])
        self.dim = len(next(iter(self.vectors.values()), list[float]()))

    @classmethod
    def read(cls, path: Path, where: str) -> "JsonFile":
        """Read a file.

        Raises:
            StoreError: It is no such file.
        """
        found = read_json(path, where)
        vectors: object = found.get("embedding_dict")
        if not isinstance(vectors, dict) or not all(
            isinstance(each, list) for each in cast(dict[str, Any], vectors).values()
        ):
            raise StoreError(
                f"{where}: expected embedding_dict with lists of numbers in {path.name}, found none. Is it of "
                "SimpleVectorStore?"
            )
        return cls(found, where)

    def __len__(self) -> int:
        return len(self.vectors)

    def empty_like(self, dim: int) -> "JsonFile":
        """Return the same object without vectors."""
        del dim
        return JsonFile({**self._content, "embedding_dict": {}}, self._where)

    def get(self, place: int, id_: str) -> Float32[np.ndarray, " dim"]:
        """Return the vector of an id."""
        del place
        if id_ not in self.vectors:
            raise StoreError(
                f"{self._where}: expected a vector of {id_!r:.80}, found none. Its application may be saving: run the "
                "command again."
            )
        try:
            return np.asarray(self.vectors[id_], np.float32)
        except (TypeError, ValueError) as error:
            raise StoreError(f"{self._where}: expected numbers as the vector of {id_!r:.80}, found others.") from error

    def add(self, ids: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]) -> None:
        """Add vectors by their ids."""
        self.vectors.update(zip(ids, vectors.tolist(), strict=True))

    def mark(self, fingerprint: str) -> None:
        """Name the space among the nodes' metadata, where CDEEmbedding reads it and LlamaIndex passes over it.

        Not in a store that was persisted without metadata: LlamaIndex refuses filters by their absence.
        """
        if metadata := self._content.get("metadata_dict"):
            self._content["metadata_dict"] = {**metadata, MARK: {"fingerprint": fingerprint, "moved": True}}

    def write(self, path: Path) -> None:
        """Write the object, as LlamaIndex does."""
        with path.open("w", encoding="utf-8") as file:
            json.dump({**self._content, "embedding_dict": self.vectors}, file)


class _NewFile:
    """File of the new vectors, for an audit."""

    def __init__(self, target: str, path: Path, folder: IndexFolder) -> None:
        self.target, self._path, self._folder = target, path, folder

    def count(self) -> int:
        return len(self._folder.vectors_of(self._path))

    def stamp(self) -> str | None:
        return None

    def sample(self, count: int) -> list[StoredVector]:
        return self._folder._sample(self._path, count)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def read_json(path: Path, where: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        StoreError: The file is missing, or another.
    """
    try:
        found: object = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{where}: expected JSON in {path.name}, found: {error!s:.120}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{where}: expected a JSON object in {path.name}, found another value.")
    return cast(dict[str, Any], found)
