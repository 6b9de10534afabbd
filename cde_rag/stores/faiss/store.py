"""FaissStore; its files are described in the package's docstring."""

from pathlib import Path

from cde_rag._files import given_path
from cde_rag.stores.faiss.copying import copy_store
from cde_rag.stores.faiss.engine import FolderEngine
from cde_rag.stores.faiss.index import FaissIndexKind, IndexConfig
from cde_rag.stores.store import Store


class FaissStore(Store):
    """Records, vectors and contexts in the folder `path`.

    Args:
        path: The folder, made by `create`.
        index: `auto`, `flat`, `hnsw` or `ivf`: see the package's docstring. Stored by `create`; an existing store must
            have this index, and is changed by `reindex`. None for the stored one, or `auto` for a new store.
        quantization: Likewise `int8`, `binary` or `prefix-<dims>`; None for the stored one, or none for a new store.

    Raises:
        ValueError: `index` or `quantization` is none of these.
    """

    def __init__(
        self, path: str | Path, *, index: FaissIndexKind | None = None, quantization: str | None = None
    ) -> None:
        self._engine = FolderEngine(given_path(path, "The folder of a store"), index, quantization)
        super().__init__(self._engine)

    def reindex(self, *, index: FaissIndexKind, quantization: str | None = None) -> None:
        """Rebuild the store's index, of this or another type, from the stored vectors.

        Others read and write meanwhile, with the old index. After a crash the store is unchanged.

        Args:
            index: `auto`, `flat`, `hnsw` or `ivf`.
            quantization: `int8`, `binary`, `prefix-<dims>`, or None for full vectors.

        Raises:
            ValueError: Another name, or a prefix that is not shorter than the vectors.
            StoreError: The index cannot be written. The store is unchanged.
        """
        self._engine.reindex(IndexConfig(index, quantization))

    def compact(self) -> None:
        """Remove the vectors of deleted and replaced records now; otherwise they stay until they are many."""
        self._engine.compact()

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return self._engine.folder

    def at(self, folder: Path) -> "FaissStore":
        """Return a FaissStore in another folder."""
        return FaissStore(folder)

    def copy_to(self, folder: Path) -> "FaissStore":
        """Copy one state of the store to a new folder, while others read and write; raises as `copy_store`."""
        copy_store(self._engine.database, folder)
        return FaissStore(folder)
