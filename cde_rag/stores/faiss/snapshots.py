"""Snapshots of a generation's vectors for approximate search: when a new one is due, and building it."""

import dataclasses
import logging
import secrets
from pathlib import Path
from typing import Final

from cde_rag.errors import StoreFormatError
from cde_rag.stores.faiss.index import Index
from cde_rag.stores.faiss.indexing import IndexConfig
from cde_rag.stores.faiss.manifest import FaissGeneration, FaissManifest, IndexFile
from cde_rag.stores.faiss.vectors import VectorBlocks

_TAIL: Final = 10  # a snapshot is extended when it lacks more than one vector in so many
_REFITTED: Final = 2  # and built anew when there are so many times the vectors that its cells and codes were fitted to

_log = logging.getLogger(__name__)


def due(state: FaissGeneration, indexing: IndexConfig, folder: Path) -> bool:
    """Return True if a generation needs a new snapshot: it has none, another kind, or one that is out of date."""
    old, wanted = state.index, indexing.at(state.rows)
    if not wanted.has_file or state.rows == 0:
        return False
    if old is None or old.indexing != wanted or not (folder / old.name).exists():
        return True
    return state.rows - old.rows > state.rows // _TAIL


def build(folder: Path, state: FaissGeneration, vectors: VectorBlocks, indexing: IndexConfig) -> IndexFile | None:
    """Write a snapshot of all these vectors to a new file.

    Args:
        folder: Folder of the store.
        state: The generation. Its old snapshot is extended if it is of the same kind, intact, and still fits.
        vectors: Vectors of the generation.
        indexing: Index configuration of the store.

    Returns:
        Its entry in the manifest; None if there is to be no snapshot, or another writer removed it meanwhile.

    Raises:
        StoreError: The disk is full, or the folder not writable.
    """
    wanted = indexing.at(len(vectors))
    if not wanted.has_file or len(vectors) == 0:
        return None
    index = _extensible(folder, state.index, wanted, len(vectors)) or Index.empty(wanted, vectors)
    index.extend(vectors)
    return index.save(folder / f"index-{state.number}-{secrets.token_hex(4)}")


def put(manifest: FaissManifest, folder: Path, built_from: FaissGeneration, file: IndexFile | None) -> FaissManifest:
    """Return the manifest with a snapshot, if its file and the vectors it was built from still exist."""
    for now in manifest.generations:
        if file is not None and now.vectors == built_from.vectors and (folder / file.name).exists():
            return manifest.put(dataclasses.replace(now, index=file))
    return manifest


def _extensible(folder: Path, old: IndexFile | None, wanted: IndexConfig, rows: int) -> Index | None:
    if old is None or old.indexing != wanted or (old.trained and rows > _REFITTED * old.trained):
        return None
    try:
        return Index.loaded(folder, old)
    except (StoreFormatError, FileNotFoundError) as error:
        _log.warning("Building the index from the first vector: %s", error)
        return None
