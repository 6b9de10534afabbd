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
        StoreError: Another run holds it, or the place is not writable.
    """
    expected = "expected to be the only run that moves it to another context"
    return locked(folder / _LEASE, f"{folder}: {expected}, found another at work. Wait until that has ended")
