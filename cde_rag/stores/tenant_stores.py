"""Where the stores of tenants are: one for each, and one that they have in common, which holds no records."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from cde_rag.errors import StoreError
from cde_rag.stores.base import Store

KEY: Final = re.compile("[0-9a-f]{32}")  # stands for a tenant's name
FOLDER: Final = "tenants"  # in the one in common


@runtime_checkable
class TenantStores(Protocol):
    """The stores of all tenants. A key is what matches `KEY`."""

    def common(self) -> Store:
        """What they have in common."""
        ...

    def of(self, key: str) -> Store:
        """The store of a tenant, whether it is there or not."""
        ...

    def listed(self) -> list[str]:
        """Keys of the stores that are there, sorted."""
        ...

    def remove(self, key: str) -> None:
        """Remove a store with all that is in it; nothing where there is none. Nobody has it open.

        Raises:
            StoreError: The place is not writable.
        """
        ...


class FolderTenants:
    """Stores that are folders: that of a tenant lies in `tenants` in the one in common. Implements `TenantStores`.

    Args:
        path: The folder of the store in common.
        kind: Makes a store of a path, such as FaissStore or QdrantEdgeStore.
    """

    def __init__(self, path: str | Path, kind: Callable[[Path], Store]) -> None:
        self.path = Path(path)
        self._kind = kind

    def common(self) -> Store:
        """See `TenantStores.common`."""
        return self._kind(self.path)

    def of(self, key: str) -> Store:
        """See `TenantStores.of`."""
        return self._kind(self.path / FOLDER / key)

    def listed(self) -> list[str]:
        """See `TenantStores.listed`."""
        folder = self.path / FOLDER
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(name for name in names if KEY.fullmatch(name) and self.of(name).exists())

    def remove(self, key: str) -> None:
        """See `TenantStores.remove`. It is renamed first, so that a kill leaves no half of a store."""
        folder = self.path / FOLDER / key
        gone = folder.with_name(f"{key}.removed")
        try:
            shutil.rmtree(gone, ignore_errors=True)  # of a call that was killed
            if folder.exists():
                folder.rename(gone)
                shutil.rmtree(gone)
        except OSError as error:
            raise StoreError(f"{folder}: expected to remove it, found: {error.strerror}.") from error
