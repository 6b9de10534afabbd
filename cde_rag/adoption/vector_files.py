"""Files of vectors: those of FAISS, and LlamaIndex' JSON.

Flat files of FAISS are read and written a vector and a page at a time. The others are read as their libraries do.
"""

import io
import json
import os
import struct
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._files import open_file
from cde_rag.errors import StoreError, require

MARK: Final = "cde_context"  # key of the space that CDEEmbedding writes; `moved` if nodes may have older marks
_DISTANCES: Final = {0: "ip", 1: "l2"}  # of FAISS
_FLAT: Final = (b"IxFI", b"IxF2", b"IxFl")  # first bytes of the files of IndexFlatIP, IndexFlatL2 and IndexFlat
_HEAD: Final = struct.Struct("<4siqqqBi")  # these, length, vectors, two fillers, is_trained, distance
_NUMBERS: Final = struct.Struct("<Q")  # count of numbers, which follow
_VECTORS: Final = "embedding_dict"  # key of SimpleVectorStore

VectorPages: TypeAlias = Iterator[tuple[Sequence[str], Float32[np.ndarray, "rows dim"]]]


class IndexedFile(ABC):
    """Vectors of a file.

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

    def mark(self, fingerprint: str) -> None:
        """Name the space of the vectors in the file, if it has a place for that."""
        del fingerprint

    @abstractmethod
    def write(self, path: Path, pages: VectorPages) -> None:
        """Write a file of this kind with the vectors of these pages, and the ids where the file names them."""


class FlatFile(IndexedFile):
    """File of FAISS' flat indexes: the numbers, one vector after the other. It stays where it is.

    Source: `write_index_header` and `write_index` of FAISS 1.9 to 1.15.

    Args:
        path: The file.
        head: Its first bytes, up to the count of numbers.
        where: The file, for messages.
    """

    def __init__(self, path: Path, head: bytes, where: str) -> None:
        self._path, self._head, self._where = path, head, where
        _, self.dim, self._count, *_, metric = _HEAD.unpack_from(head)
        self.distance = _DISTANCES.get(metric, str(metric))

    @classmethod
    def read(cls, path: Path, where: str) -> "FlatFile | None":
        """Read the head of a file; None for files of other kinds, and those that are cut."""
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or head[:4] not in _FLAT:
                return None
            _, dim, count, *_, metric = _HEAD.unpack(head)
            head += file.read(4 if metric > 1 else 0)  # argument of other distances
            numbers = file.read(_NUMBERS.size)
        is_complete = len(numbers) == _NUMBERS.size and _NUMBERS.unpack(numbers)[0] == dim * count
        is_complete = is_complete and size == len(head) + _NUMBERS.size + 4 * dim * count
        return cls(path, head, where) if is_complete and dim > 0 else None

    def __len__(self) -> int:
        return int(self._count)

    def empty_like(self, dim: int) -> "FlatFile":
        """Return the head of a file for vectors of another length."""
        return FlatFile(self._path, self._of(dim, 0), self._where)

    def get(self, place: int, id_: str) -> Float32[np.ndarray, " dim"]:
        """Return the vector at a place."""
        del id_
        with open_file(self._path) as file:
            file.seek(len(self._head) + _NUMBERS.size + 4 * self.dim * place)
            found = file.read(4 * self.dim)
        if len(found) != 4 * self.dim:
            raise StoreError(f"{self._where}: its application may be saving {self._path.name}: run the command again.")
        return np.frombuffer(found, "<f4").astype(np.float32)

    def write(self, path: Path, pages: VectorPages) -> None:
        """Write the file, as FAISS does."""
        count = 0
        try:
            with path.open("wb") as file:
                file.write(self._of(self.dim, 0) + _NUMBERS.pack(0))
                for _, vectors in pages:
                    count += _put(file, vectors)
                file.seek(0)
                file.write(self._of(self.dim, count) + _NUMBERS.pack(self.dim * count))
        except OSError as error:
            raise _unwritten(self._where, path, error) from error

    def _of(self, dim: int, count: int) -> bytes:
        kind, _, _, *rest = _HEAD.unpack_from(self._head)
        return _HEAD.pack(kind, dim, count, *rest) + self._head[_HEAD.size :]


class FaissFile(IndexedFile):
    """File of FAISS, in memory, as its library reads it.

    Args:
        index: An index of FAISS.
        where: The file, for messages.
    """

    def __init__(self, index: Any, where: str) -> None:
        self._index, self._where = index, where
        self.dim = int(index.d)
        self.distance = _DISTANCES.get(int(index.metric_type), str(index.metric_type))

    @classmethod
    def read(cls, path: Path, where: str) -> "FlatFile | FaissFile":
        """Read a file; of a flat one the head.

        Raises:
            MissingExtraError: FAISS is not installed.
            StoreError: It is no index of FAISS.
        """
        faiss: Any = require("faiss", "faiss")
        if (flat := FlatFile.read(path, where)) is not None:
            return flat
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

    def write(self, path: Path, pages: VectorPages) -> None:
        """Write the file, as FAISS does: the vectors are added at once, of a file, so that none is in memory twice."""
        faiss: Any = require("faiss", "faiss")
        try:
            with tempfile.TemporaryFile(dir=path.parent) as file:
                count = sum(_put(file, vectors) for _, vectors in pages)
                file.flush()
                if count:
                    self._index.add(np.memmap(file, np.float32, "r", shape=(count, self.dim)))
            faiss.write_index(self._index, str(path))
        except (OSError, RuntimeError) as error:
            raise _unwritten(self._where, path, error) from error


class JsonFile(IndexedFile):
    """File of LlamaIndex' SimpleVectorStore: one JSON object, whose other fields are kept as they are.

    Args:
        content: The object.
        where: The file, for messages.
    """

    distance = "cosine"

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self._content, self._where = dict(content), where
        listed = cast(dict[str, Any], self._content[_VECTORS])
        self._content[_VECTORS] = {}
        self._vectors: dict[str, Float32[np.ndarray, " dim"] | None] = {}
        for id_ in list(listed):  # each list goes as its vector comes
            self._vectors[id_] = _vector(listed.pop(id_))
        self.ids = list(self._vectors)
        first = next(iter(self._vectors.values()), None)
        self.dim = 0 if first is None else len(first)

    @classmethod
    def read(cls, path: Path, where: str) -> "JsonFile":
        """Read a file.

        Raises:
            StoreError: It is no such file.
        """
        found = read_json(path, where)
        vectors: object = found.get(_VECTORS)
        if not isinstance(vectors, dict) or not all(
            isinstance(each, list) for each in cast(dict[str, Any], vectors).values()
        ):
            raise StoreError(
                f"{where}: expected embedding_dict with lists of numbers in {path.name}, found none. Is it of "
                "SimpleVectorStore?"
            )
        return cls(found, where)

    def __len__(self) -> int:
        return len(self._vectors)

    def empty_like(self, dim: int) -> "JsonFile":
        """Return the same object without vectors."""
        del dim
        return JsonFile({**self._content, _VECTORS: {}}, self._where)

    def get(self, place: int, id_: str) -> Float32[np.ndarray, " dim"]:
        """Return the vector of an id."""
        del place
        if id_ not in self._vectors:
            raise StoreError(
                f"{self._where}: expected a vector of {id_!r:.80}, found none. Its application may be saving: run the "
                "command again."
            )
        if (found := self._vectors[id_]) is None:
            raise StoreError(f"{self._where}: expected numbers as the vector of {id_!r:.80}, found others.")
        return found

    def mark(self, fingerprint: str) -> None:
        """Name the space among the nodes' metadata, where CDEEmbedding reads it and LlamaIndex passes over it.

        Not in a store that was persisted without metadata: LlamaIndex refuses filters by their absence.
        """
        if metadata := self._content.get("metadata_dict"):
            self._content["metadata_dict"] = {**metadata, MARK: {"fingerprint": fingerprint, "moved": True}}

    def write(self, path: Path, pages: VectorPages) -> None:
        """Write the object, as LlamaIndex does."""
        try:
            with path.open("w", encoding="utf-8") as file:
                for number, (key, value) in enumerate(self._content.items()):
                    file.write(f"{', ' if number else '{'}{json.dumps(key)}: ")
                    if key == _VECTORS:
                        file.writelines(_members(pages))
                    else:
                        json.dump(value, file)
                file.write("}")
        except OSError as error:
            raise _unwritten(self._where, path, error) from error


def _members(pages: VectorPages) -> Iterator[str]:
    """Yield the parts of a JSON object of vectors by id."""
    before = "{"
    for ids, vectors in pages:
        for id_, vector in zip(ids, vectors, strict=True):
            yield f"{before}{json.dumps(id_)}: {json.dumps(vector.tolist())}"
            before = ", "
    yield "{}" if before == "{" else "}"


def _vector(numbers: Any) -> Float32[np.ndarray, " dim"] | None:
    """Return a vector; None for a list of other things."""
    try:
        return np.asarray(numbers, np.float32).reshape(-1)
    except (TypeError, ValueError):
        return None


def _put(file: BinaryIO, vectors: Float32[np.ndarray, "rows dim"]) -> int:
    """Write the numbers of vectors; returns the count of vectors."""
    file.write(np.ascontiguousarray(vectors, "<f4").data)
    return len(vectors)


def _unwritten(where: str, path: Path, error: Exception) -> StoreError:
    return StoreError(f"{where}: cannot write {path.name} ({error!s:.120}). Make room.")


def read_json(path: Path, where: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        StoreError: The file is missing, or another.
    """
    try:
        with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig", "surrogatepass") as text:
            found: object = json.load(text)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{where}: expected JSON in {path.name}, found: {error!s:.120}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{where}: expected a JSON object in {path.name}, found another value.")
    return cast(dict[str, Any], found)
