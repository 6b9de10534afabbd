"""Manifest of a FAISS store: one JSON document with a checksum, rewritten in every transaction."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cde_rag.errors import StoreFormatError
from cde_rag.stores.faiss.folder import DERIVED
from cde_rag.stores.faiss.index import IndexConfig, IndexFile
from cde_rag.stores.manifests import StoredGeneration, StoredManifest


@dataclass(frozen=True, slots=True)
class FaissGeneration(StoredGeneration):
    """One generation.

    Attributes:
        vectors: Name of the vector file.
        rows: Number of committed rows in the vector file; anything after them was never committed.
        dead: Number of these rows that no longer belong to a record (tombstones).
        index: The snapshot for approximate search, if there is one.
        context_name: Name of the file with the Context's bytes; in stores of older versions it follows from the number.
        appended: Random token of the last append to the vector file, which no later one repeats, also where the store
            is restored to an earlier state; "" in stores of older versions.
        deleted: Likewise of the last deletion.
    """

    vectors: str
    rows: int = 0
    dead: int = 0
    index: IndexFile | None = None
    context_name: str | None = None
    appended: str = ""
    deleted: str = ""

    @property
    def context(self) -> str:
        """Name of the file with the Context's bytes."""
        return self.context_name or f"context-{self.number}"


@dataclass(frozen=True, slots=True)
class FaissManifest(StoredManifest[FaissGeneration]):
    """Manifest of a store.

    Attributes:
        settings: Settings of the collection, written at creation.
        indexing: Its index configuration; None in stores of older versions, which use the one they are opened with.
        marker: Content of the marker file; None in stores that only older versions have written.
    """

    settings: Mapping[str, Any]
    indexing: IndexConfig | None = None
    marker: str | None = None

    def put(self, state: FaissGeneration) -> "FaissManifest":
        """Return the manifest with a generation added, or replaced if its number exists."""
        others = {other.number: other for other in self.generations} | {state.number: state}
        return dataclasses.replace(self, generations=tuple(others.values()))

    def without(self, number: int) -> "FaissManifest":
        """Return the manifest without a generation."""
        left = tuple(state for state in self.generations if state.number != number)
        return dataclasses.replace(self, generations=left)

    def reindexed(self, indexing: IndexConfig) -> "FaissManifest":
        """Return the manifest with another index, and no snapshots yet."""
        states = tuple(dataclasses.replace(state, index=None) for state in self.generations)
        return dataclasses.replace(self, indexing=indexing, generations=states)

    def snapshotted(self, folder: Path, built_from: FaissGeneration, file: IndexFile | None) -> "FaissManifest":
        """Return the manifest with a snapshot, if its file and the vectors it was built from still exist."""
        for now in self.generations:
            if file is not None and now.vectors == built_from.vectors and (folder / file.name).exists():
                return self.put(dataclasses.replace(now, index=file))
        return self

    def files(self) -> set[str]:
        """Return the names of all files of the store other than SQLite's."""
        names = {name for state in self.generations for name in (state.context, state.vectors)}
        indexes = [state.index.name for state in self.generations if state.index is not None]
        return names.union(*((name, f"checked-{name}") for name in indexes))

    def to_json(self) -> bytes:
        """Serialise the manifest for storage."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode()

    @classmethod
    @lru_cache(maxsize=64)  # every read of a store parses its manifest, which seldom changes
    def from_json(cls, data: bytes) -> "FaissManifest":
        """Parse the output of `to_json`, whose checksum was verified before. Equal data share one manifest.

        Raises:
            StoreFormatError: It names a file outside the folder, as a forged manifest might.
        """
        fields = json.loads(data)
        generations = [
            state | {"index": state["index"] and IndexFile(**state["index"])} for state in fields["generations"]
        ]
        fields["generations"] = tuple(FaissGeneration(**state) for state in generations)
        if fields.get("indexing") is not None:
            fields["indexing"] = IndexConfig(**fields["indexing"])
        manifest = cls(**fields)
        if foreign := [name for name in manifest.files() if not DERIVED.fullmatch(name)]:
            hint = "Do not use what others changed."
            raise StoreFormatError(f"A manifest: expected names of files of a store, found {foreign[0]!r:.80}. {hint}")
        return manifest
