"""Port of stores whose vectors are replaced by those of another model: `Movable`, which each kind of source implements.

A source keeps its vectors where they are. The new ones are made next to them (a shadow), in a form that the application
reads like the old ones, and take their place at once; the old ones stay until they are released.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float32

from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import Source
from cde_rag.records import Record

PAGE: Final = 256  # rows that are embedded at once, and by most sources read and written


class SourceChangedError(StoreError):
    """A source that its application changed during a step, which is then repeated.

    Args:
        message: The change.
        notes: Notes of the move from now on, if they have to be others.
    """

    def __init__(self, message: str, notes: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.notes = notes


class SourceHeldError(StoreError):
    """A source that its application holds at the moment, so that nothing was switched or put back."""


class SourceRow(NamedTuple):
    """Row of another application's store.

    Attributes:
        id: Id in the store.
        text: Text as the application embeds it; None where there is none.
        payload: Everything else that the row has and a copy needs, as JSON; None where nothing is copied.
    """

    id: str
    text: str | None
    payload: Any = None

    @property
    def digest(self) -> str:
        """Digest of text and payload, 64 hex digits."""
        written = json.dumps([self.text, self.payload], sort_keys=True, default=repr)
        return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


class SourceFacts(NamedTuple):
    """Facts about a source.

    Attributes:
        dim: Length of its vectors.
        distance: Distance that its searches rank by, as the store calls it.
        model: Model that its configuration names; None if it names none.
    """

    dim: int
    distance: str
    model: str | None


class Movable(Source, Protocol):
    """Store whose texts and vectors can be read completely, and whose vectors can be replaced.

    `notes` are what the source has to find again after a crash, such as ids of collections. The flow keeps them and
    writes them down before each step, so that every call of `switch` and `rollback` can be repeated.
    """

    @property
    def home(self) -> Path:
        """Folder of the move's journal, by default: next to the store if that is on this machine."""
        ...

    @property
    def written_by_old_handles(self) -> bool:
        """True if writes to the old vectors after a switch are possible, and those to either side can be brought."""
        ...

    def found(self) -> SourceFacts:
        """Return facts about the source, from its settings."""
        ...

    def check(self, embedder: Embedder) -> None:
        """Check that the source can have vectors of an embedder.

        Raises:
            StoreError: It cannot; the message has the line to change.
        """
        ...

    def version(self) -> str:
        """Return a value that changes with each write, where a store has one; else an empty text."""
        ...

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield pages of the rows that have a text, with the vectors in use and the metadata that filters can read.

        Args:
            own: True for the row's own text, False for the one that was embedded; LlamaIndex puts metadata before it.
        """
        ...

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield all rows of the old or the new vectors, page by page; each page is written at once.

        Args:
            notes: Notes of the move.
            old: True for the vectors that were there first; False for those that took or are to take their place.
        """
        ...

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make the shadow without rows, and return the notes; a repeated call returns the same ones."""
        ...

    def lacking(self, notes: Mapping[str, str], rows: Sequence[SourceRow], *, old: bool) -> list[SourceRow]:
        """Return the rows that the new (or old) vectors lack: by id, or by text where only vectors are copied."""
        ...

    def get(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> list[SourceRow]:
        """Return rows of the new vectors (or of the old ones), those that are there.

        It is called where `written_by_old_handles` is true.
        """
        ...

    def put(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        vectors: Float32[np.ndarray, "rows dim"],
        *,
        old: bool,
    ) -> None:
        """Write rows with their vectors to the new ones (or the old ones), in place of those with the same ids."""
        ...

    def remove(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> None:
        """Delete rows of the new vectors (or of the old ones)."""
        ...

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Complete the shadow, durably, and return the notes.

        Args:
            notes: Notes of the move.
            parked: Vector of rows without a text, where these were not put.

        Raises:
            SourceChangedError: It lacks vectors, since the source changed, or has grown by a part that the notes lack.
        """
        ...

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> Source:
        """Return the new vectors (or the old ones, where `written_by_old_handles` is true), for an audit."""
        ...

    def switch(self, notes: Mapping[str, str]) -> float:
        """Put the new vectors in the place of the old ones; returns the seconds in which there were none.

        Raises:
            SourceChangedError: The source changed since `seal`; nothing is switched.
            SourceHeldError: Its application holds it; nothing is switched.
            StoreError: Something else is in their place.
        """
        ...

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Put the old vectors back in their place; returns the seconds in which there were none.

        Raises:
            SourceHeldError: Its application holds it; nothing is put back.
            StoreError: Something else is in their place.
        """
        ...

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the vectors in place are the new ones, or the application's own of the new model."""
        ...

    def release(self, notes: Mapping[str, str], *, switched: bool) -> None:
        """Delete the vectors that are not in use: the old ones after a switch, else the new ones."""
        ...

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the setting or line of the application that names the new model.

        Args:
            embedder: Embedder of the new vectors.
            context: File of its Context.
        """
        ...


def place_of(source: Source) -> str:
    """Return a name of a store that does not depend on the present folder, or the target of a server."""
    home: Path | None = getattr(source, "home", None)
    return str(home) if home is not None and home.is_absolute() else source.target
