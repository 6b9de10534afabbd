"""The calls of a FAISS store that are about its index."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from cde_rag.stores.faiss.indexing import IndexConfig
from cde_rag.stores.faiss.manifest import FaissManifest
from cde_rag.stores.faiss.snapshots import build, due, put
from cde_rag.stores.faiss.view import View
from cde_rag.stores.faiss.writer import Transaction

Result = TypeVar("Result")


class Indexed(ABC):
    """A part of a FaissStore.

    Args:
        index: What a new store has, or what is expected of one that is there; None for `auto`, or for anything.
        quantization: Likewise; None for nothing, or for anything.

    Raises:
        ValueError: One is not known.
    """

    _folder: Path

    def __init__(self, index: str | None, quantization: str | None) -> None:
        self._new = IndexConfig(index or "auto", quantization)
        self._expected = index, quantization

    @abstractmethod
    def _read(self, work: Callable[[View], Result]) -> Result:
        """Do something with one state of the active generation."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Transaction]:
        """A write transaction."""

    def reindex(self, *, index: str, quantization: str | None = None) -> None:
        """Give the store another index, or the same built anew, from the vectors that it has.

        Others read and write meanwhile, and find by the old one. Killed, it leaves the store as it was.

        Args:
            index: `auto`, `flat`, `hnsw` or `ivf`.
            quantization: `int8`, `binary`, `prefix-<dims>`, or None for whole vectors.

        Raises:
            ValueError: It is none of these, or the prefix is no shorter than the vectors.
            StoreError: The index cannot be written. The store is as it was.
        """
        new = IndexConfig(index, quantization)
        state, vectors = self._read(lambda view: (view.state, view.vectors))
        new.check(vectors.dim)
        file = build(self._folder, dataclasses.replace(state, index=None), vectors, new)
        with self._writing() as writer:
            writer.manifest = put(writer.manifest.reindexed(new), self._folder, state, file)
        self._extend_index()

    def _indexing(self, manifest: FaissManifest) -> IndexConfig:
        """Which index the store has; compared with what was expected when it is first asked."""
        found = manifest.indexing or self._new
        found.expect(*self._expected)
        self._expected = None, None
        return found

    def _extend_index(self) -> None:
        """Bring the index up to date where that is due, beside the one in use, without keeping other writers waiting.

        Raises:
            StoreError: It cannot be written. The records are stored all the same.
        """
        state, vectors, indexing = self._read(lambda view: (view.state, view.vectors, view.reader.indexing))
        if due(state, indexing, self._folder):
            file = build(self._folder, state, vectors, indexing)
            with self._writing() as writer:
                writer.manifest = put(writer.manifest, self._folder, state, file)
