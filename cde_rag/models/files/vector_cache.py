"""Cache of texts' plain vectors: one SQLite file, from which contextual vectors are made without a model.

    vectors    space, sha256 of the text → vector (float32), whether the text was truncated, checksum

The file is derived: without it, or with rows missing, the model embeds the texts again.
"""

import json
import sqlite3
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
from jaxtyping import Float32

from cde_rag._files import given_path
from cde_rag.errors import CDEWarning, StoreError, StoreFormatError
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.files import check_no_link, check_path

FILE: Final = "plain-vectors.sqlite"  # in the folder of a store
_WAIT_S: Final = 30.0  # for other processes that write
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS vectors (
    space TEXT NOT NULL, digest TEXT NOT NULL, vector BLOB NOT NULL, truncated INTEGER NOT NULL, seal BLOB NOT NULL,
    UNIQUE (space, digest)
)
"""
_SELECT: Final = """
SELECT digest, vector, truncated, seal FROM vectors WHERE space = ? AND digest IN (SELECT value FROM json_each(?))
"""


class PlainVectors:
    """Plain vectors of one collection, by space and text. Safe to use from threads and processes.

    Attributes:
        path: The file.
        adds: True if `put` adds vectors; else nothing is changed.

    Args:
        path: The file; made with the first vector. In the folder of a FaissStore or QdrantEdgeStore a collection keeps
            one by itself.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = given_path(path, "The file of plain vectors")
        self.adds = True
        check_path(self.path)

    def __repr__(self) -> str:
        return f"PlainVectors({str(self.path)!r})"

    def unchanged(self) -> "PlainVectors":
        """Return the same vectors for a caller who changes nothing: `put` adds none."""
        other = copy(self)
        other.adds = False
        return other

    def get(
        self, space: str, digests: Iterable[bytes], dim: int
    ) -> dict[bytes, tuple[Float32[np.ndarray, " dim"], bool]]:
        """Return the vectors that are there, with True for texts that were truncated.

        Args:
            space: Fingerprint of the plain embedder.
            digests: sha256 of each text.
            dim: Length of a vector.

        Raises:
            StoreError: The file cannot be read.
            StoreFormatError: It is damaged.
        """
        check_no_link(self.path)
        if not self.path.exists():
            return {}
        asked = json.dumps([digest.hex() for digest in digests])
        found: dict[bytes, tuple[Float32[np.ndarray, " dim"], bool]] = {}
        with self._opened("rw") as connection:
            for digest, data, truncated, sealed in connection.execute(_SELECT, (space, asked)):
                if len(data) != 4 * dim or sealed != checksum_of(space, digest, data, int(truncated)):
                    raise self._damaged("a vector that is not as it was written")
                found[bytes.fromhex(digest)] = np.frombuffer(data, "<f4"), bool(truncated)
        return found

    def put(self, space: str, vectors: Mapping[bytes, tuple[Float32[np.ndarray, " dim"], bool]]) -> None:
        """Keep vectors, in one transaction; if the file cannot be written, none is kept.

        Args:
            space: Fingerprint of the plain embedder.
            vectors: By sha256 of the text; with True for texts that were truncated.

        Raises:
            StoreError: The file is a link.
            StoreFormatError: It is damaged.

        Warns:
            CDEWarning: The file cannot be written.
        """
        if not self.adds:
            return
        check_no_link(self.path)
        rows: list[tuple[str, str, bytes, int, bytes]] = []
        for digest, (vector, truncated) in vectors.items():
            data = np.ascontiguousarray(vector, "<f4").tobytes()
            name = digest.hex()
            rows.append((space, name, data, int(truncated), checksum_of(space, name, data, int(truncated))))
        try:
            with self._opened("rwc") as connection:
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?)", rows)
        except StoreFormatError:
            raise
        except StoreError as error:
            warnings.warn(
                f"{error} The vectors are used; the next call embeds the texts again.", CDEWarning, stacklevel=2
            )

    def forget(self, digests: Sequence[bytes]) -> None:
        """Delete the vectors of texts, of all spaces, and overwrite them in the file.

        Raises:
            StoreError: The file cannot be written.
            StoreFormatError: It is damaged.
        """
        check_no_link(self.path)
        if digests and self.path.exists():
            with self._opened("rw") as connection:
                connection.execute("PRAGMA secure_delete = ON")
                connection.executemany("DELETE FROM vectors WHERE digest = ?", [(digest.hex(),) for digest in digests])

    @contextmanager
    def _opened(self, mode: str) -> Generator[sqlite3.Connection, None, None]:
        """Open the file for one transaction. No handle stays, so that the folder can be moved, replaced or forked."""
        try:
            with closing(
                sqlite3.connect(f"file:{quote(str(self.path))}?mode={mode}", uri=True, timeout=_WAIT_S)
            ) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute(_TABLE)  # a kill may have left an empty file
                with connection:
                    yield connection
        except sqlite3.OperationalError as error:
            raise StoreError(
                f"{self.path}: plain vectors cannot be read or written ({error}). Give a writable folder with space."
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, found: str) -> StoreFormatError:
        return StoreFormatError(
            f"{self.path}: expected plain vectors as they were written, found: {found}. Delete the file; the model "
            "makes them again."
        )
