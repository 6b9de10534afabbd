"""Stores of tenants: one per tenant, and a common one, which holds no records."""

import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from cde_rag._files import given_path
from cde_rag.errors import StoreError
from cde_rag.stores.files import TENANTS
from cde_rag.stores.store import Store

KEY: Final = re.compile("[0-9a-f]{32}")  # stands for a tenant's name


@runtime_checkable
class TenantStores(Protocol):
    """Interface of the stores of all tenants. A key matches `KEY`."""

    def common(self) -> Store:
        """Return the common store."""
        ...

    def of(self, key: str) -> Store:
        """Return the store of a tenant, which may not exist yet."""
        ...

    def listed(self) -> list[str]:
        """Return the keys of existing stores, sorted."""
        ...

    def remove(self, key: str) -> None:
        """Delete a store with its contents, if it exists. It must not be open.

        Raises:
            StoreError: The place is not writable.
        """
        ...


class FolderTenants:
    """Stores in folders: a tenant's is in `tenants` in the common one. Implements `TenantStores`.

    Args:
        path: The folder of the common store.
        kind: Factory of a store from a path, such as FaissStore or QdrantEdgeStore.
    """

    def __init__(self, path: str | Path, kind: Callable[[Path], Store]) -> None:
        self.path = given_path(path, "The folder of tenants")
        self._kind = kind

    def common(self) -> Store:
        """Return the common store."""
        return self._kind(self.path)

    def of(self, key: str) -> Store:
        """Return the store in a tenant's folder, which may not exist yet."""
        return self._kind(self.path / TENANTS / key)

    def listed(self) -> list[str]:
        """Return the keys of existing stores, sorted."""
        folder = self.path / TENANTS
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(name for name in names if KEY.fullmatch(name) and self.of(name).exists())

    def remove(self, key: str) -> None:
        """Delete a tenant's folder."""
        folder = self.path / TENANTS / key
        remove_folder(folder)
        remove_folder(folder.with_name(f"{key}.removed"))  # of a call of 0.2 that was killed


def remove_folder(folder: Path) -> None:
    """Delete a folder, if there is one. It is renamed first, so that a crash leaves no half of a store.

    Raises:
        StoreError: The place is not writable.
    """
    removed = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{8}}\.removed")
    try:
        if folder.exists():
            folder.rename(folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.removed"))
        for gone in list(folder.parent.iterdir()) if folder.parent.is_dir() else ():
            if removed.fullmatch(gone.name):  # also of calls that were killed
                shutil.rmtree(gone)
    except OSError as error:
        raise StoreError(f"{folder}: expected to remove it, found: {error.strerror}.") from error
