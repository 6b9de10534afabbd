"""QdrantEdgeStore; its folder is described in the package's docstring."""

from pathlib import Path
from typing import Final

from cde_rag._files import given_path
from cde_rag.stores.qdrant_base.index import Hnsw
from cde_rag.stores.qdrant_edge.engine import EdgeEngine
from cde_rag.stores.qdrant_edge.index import EdgeIndexConfig
from cde_rag.stores.store import Store

FLAT_ROWS: Final = 100_000  # up to about so many vectors are not indexed, and searched exactly


class QdrantEdgeStore(Store):
    """Records, vectors and contexts in the folder `path`.

    The first call that needs it opens the folder, and `close` or the end of the last object that uses it closes it;
    in between, other processes are refused.

    Args:
        path: The folder, made by `create`.
        exact: Search exactly, not by HNSW.
        flat_rows: Approximate number of vectors up to which there is no index, and search is exact. Like `quantization`
            and `hnsw` it applies to a new store; an existing one keeps its own.
        quantization: Codes that HNSW searches: `int8` or `binary`, or the first dimensions of a Matryoshka model
            (`prefix-128`); results are rescored with the full vectors. None for full vectors.
        hnsw: Parameters of the index.

    Raises:
        ValueError: `quantization` is another name, or `flat_rows` is negative.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        exact: bool = False,
        flat_rows: int = FLAT_ROWS,
        quantization: str | None = None,
        hnsw: Hnsw | None = None,
    ) -> None:
        if flat_rows < 0:
            raise ValueError(f"flat_rows: expected a number of vectors, found {flat_rows}.")
        folder = given_path(path, "The folder of a store")
        indexing = EdgeIndexConfig(flat_rows, quantization, hnsw or Hnsw())
        self._engine = EdgeEngine(folder, indexing, exact=exact)
        super().__init__(self._engine)

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return self._engine.folder

    def at(self, folder: Path) -> "QdrantEdgeStore":
        """Return a QdrantEdgeStore in another folder, with the same configuration."""
        made = self._engine.indexing
        return QdrantEdgeStore(
            folder,
            exact=self._engine.exact,
            flat_rows=made.flat_rows,
            quantization=made.quantization,
            hnsw=made.hnsw,
        )
