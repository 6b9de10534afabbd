"""Write transaction of a store: changes of tables, files and manifest."""

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.checks import checksum_of
from cde_rag.stores.faiss.manifest import FaissGeneration
from cde_rag.stores.faiss.tables import Records
from cde_rag.stores.faiss.vectors import VectorFile, extended
from cde_rag.stores.files import write_new

_COPIED_AT_ONCE: Final = 2**16  # vectors


class Transaction:
    """Write transaction. `manifest` is the store's manifest after the commit.

    Vectors are on the disk before the commit that refers to them; data that a rollback leaves in a file is ignored.

    Args:
        records: The tables.
        folder: Folder of the store.
        check: Raises if another store replaced this one.
    """

    def __init__(self, records: Records, folder: Path, check: Callable[[], None]) -> None:
        self.records = records
        self.folder = folder
        self._check = check
        self.manifest = records.manifest()

    def put_vectors(
        self,
        number: int,
        positions: Sequence[int],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> None:
        """Give records their vectors in a generation, in place of those that they have there."""
        self.mark_deleted(number, [(position, None) for position in positions])
        state = self.manifest.generation(number)
        checksums = (
            checksum_of(position, digest, vector.tobytes())
            for position, digest, vector in zip(positions, digests, vectors, strict=True)
        )
        lines = zip(positions, range(state.rows, state.rows + len(vectors)), digests, checksums, strict=True)
        self.records.put_vectors(number, lines)
        self.manifest = self.manifest.put(self._appended(state, vectors))

    def mark_deleted(self, number: int, vectors: Sequence[tuple[int, str | None]]) -> None:
        """Mark vectors of a generation as deleted; `vectors` as in `Records.mark_deleted`."""
        deleted = self.records.mark_deleted(number, vectors)
        if deleted:
            state = self.manifest.generation(number)
            state = dataclasses.replace(state, dead=state.dead + deleted, deleted=secrets.token_hex(8))
            self.manifest = self.manifest.put(state)

    def rewrite(self, state: FaissGeneration) -> None:
        """Copy the vectors that belong to records into a new file; readers in progress still see the old one."""
        old = VectorFile(self.folder / state.vectors, self.manifest.dim)
        vectors = old.read(state.rows, self.records.checksums(state.number))
        kept = np.delete(np.arange(state.rows), self.records.dead_rows(state.number))
        self.records.renumber(state.number, kept)
        name = f"vectors-{state.number}-{secrets.token_hex(4)}"
        state = dataclasses.replace(state, vectors=name, rows=0, dead=0, index=None)
        for start in range(0, len(kept), _COPIED_AT_ONCE):
            state = self._appended(state, vectors.take(kept[start : start + _COPIED_AT_ONCE]))
        self.manifest = self.manifest.put(state)

    def _appended(self, state: FaissGeneration, vectors: Float32[np.ndarray, "rows dim"]) -> FaissGeneration:
        checksums = self.records.checksums(state.number)
        file = VectorFile(self.folder / state.vectors, self.manifest.dim)
        file.append(vectors, rows=state.rows, check=self._check)
        grown = extended(vectors, rows=state.rows, last=int(checksums[-1]) if len(checksums) else 0)
        self.records.put_checksums(state.number, grown)
        return dataclasses.replace(state, rows=state.rows + len(vectors), appended=secrets.token_hex(8))


def new_generation(folder: Path, number: int, fingerprint: str, context: bytes) -> FaissGeneration:
    """Return a new generation without vectors, whose Context is on the disk."""
    name = f"{number}-{secrets.token_hex(4)}"  # no other store's files have these names
    sha256 = hashlib.sha256(context).hexdigest()
    state = FaissGeneration(number, fingerprint, sha256, f"vectors-{name}", context_name=f"context-{name}")
    write_new(folder / state.context, context)
    return state
