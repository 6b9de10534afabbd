"""Moves in which only vectors are replaced: the new ones are kept by their texts until the shadow is made of them.

vectors.sqlite  new vectors by text, as they are made
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.adoption.movable import SourceChangedError, SourceRow
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.models.files.vector_cache import PlainVectors

OURS: Final = 0.5  # share of a sample that the new model makes where its application has written new rows
_VECTORS: Final = "vectors.sqlite"


class TextVectors:
    """Common base of the stores that are moved in this way.

    Args:
        target: Name given by the user.
        home: Folder of a move's journal.
    """

    written_by_old_handles = False  # nothing is written to the old vectors once others are in their place

    def __init__(self, target: str, home: Path) -> None:
        self.target, self.home = target, home

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make the folder of the new vectors."""
        folder.mkdir(parents=True, exist_ok=True)
        return {"folder": str(folder.resolve()), "space": embedder.fingerprint, "dim": str(embedder.dim)}

    def lacking(self, notes: Mapping[str, str], rows: Sequence[SourceRow], *, old: bool) -> list[SourceRow]:
        """Return the rows whose text has no vector yet."""
        del old
        there = _kept(notes).get(notes["space"], map(_key, rows), int(notes["dim"]))
        return [row for row in rows if row.text is not None and _key(row) not in there]

    def get(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> list[SourceRow]:
        """Return no rows: it is not called."""
        del notes, ids, old
        return []

    def put(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        vectors: Float32[np.ndarray, "rows dim"],
        *,
        old: bool,
    ) -> None:
        """Keep the vectors by their texts."""
        del old
        made = {_key(row): (vector, False) for row, vector in zip(rows, vectors, strict=True) if row.text is not None}
        kept = _kept(notes)
        kept.put(notes["space"], made)
        if kept.get(notes["space"], made, int(notes["dim"])).keys() != made.keys():
            raise StoreError(f"{kept.path}: expected the vectors to be written, found fewer. Make room on that disk.")

    def remove(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> None:
        """Do nothing: the shadow is made of the rows that are there then."""
        del notes, ids, old

    def release(self, notes: Mapping[str, str], *, switched: bool) -> None:
        """Delete nothing: the other vectors are in the journal, which goes."""
        del notes, switched

    def made(
        self, notes: Mapping[str, str], rows: Sequence[SourceRow], parked: Float32[np.ndarray, " dim"]
    ) -> Float32[np.ndarray, "rows dim"]:
        """Return the new vectors of rows.

        Raises:
            SourceChangedError: A text has no vector yet.
        """
        there = _kept(notes).get(notes["space"], map(_key, rows), int(notes["dim"]))
        if any(row.text is not None and _key(row) not in there for row in rows):
            raise SourceChangedError(f"{self.target}: expected a vector for each text. Run the command again.")
        return np.stack([parked if row.text is None else there[_key(row)][0] for row in rows]).astype(np.float32)


def _kept(notes: Mapping[str, str]) -> PlainVectors:
    return PlainVectors(Path(notes["folder"]) / _VECTORS)


def _key(row: SourceRow) -> bytes:
    return hashlib.sha256((row.text or "").encode()).digest()
