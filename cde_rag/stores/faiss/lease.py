"""The right to work on generations, which one run at a time holds."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cde_rag.stores.faiss.folder import DATABASE
from cde_rag.stores.files import locked

_LEASE: Final = f"{DATABASE}-lease"


def leased(folder: Path) -> AbstractContextManager[None]:
    """Hold the lease of the store in `folder`.

    Raises:
        StoreError: Another run holds it, or the folder is not writable.
    """
    taken = f"{folder}: another run holds the lease to change its context. Wait for it to finish"
    return locked(folder / _LEASE, taken)
