"""Vectors that an application loads from one file of a folder: LangChain's FAISS, LlamaIndex' persisted folders.

Texts, ids and metadata stand in other files, which a move does not touch. So the new vectors are one new file, which
takes the place of the old one by one rename: readers load the old file or the new one, and there is no gap. The old
file is kept in the journal.

    new/            file with the new vectors
    old/            file with the old vectors
"""

import errno
import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag._files import file_sha256, fsync_folder, replacing, written
from cde_rag.adoption.folder_rows import FolderRows
from cde_rag.adoption.movable import SourceChangedError, SourceFacts, SourceRow
from cde_rag.adoption.positions import drawn, stored
from cde_rag.adoption.text_vectors import OURS, TextVectors
from cde_rag.adoption.vector_files import IndexedFile
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import StoredVector, audit
from cde_rag.records import Record

_NEW, _OLD = "new", "old"


class IndexFolder(TextVectors, ABC):
    """A folder of an application whose vectors are one file.

    Args:
        target: Name given by the user.
        folder: The folder.
        file: Name of the file with the vectors.
        others: Names of the files with ids and texts.
        home: Folder of a move's journal.
        random: Draws samples.
    """

    def __init__(self, target: str, folder: Path, file: str, others: Sequence[str], home: Path, random: Random) -> None:
        super().__init__(target, home)
        self._folder, self._file, self._others, self._random = folder, file, others, random
        self._read: tuple[list[tuple[int, ...]], FolderRows] | None = None

    @abstractmethod
    def naming(self) -> Sequence[str]:
        """Return the names of the files that ids and texts come from.

        Raises:
            StoreError: The file of vectors cannot be read.
        """

    @abstractmethod
    def read(self) -> FolderRows:
        """Read ids and texts.

        Raises:
            OSError: A file is missing.
            StoreError: The files cannot be read.
        """

    @abstractmethod
    def vectors_of(self, path: Path) -> IndexedFile:
        """Read a file of vectors.

        Raises:
            StoreError: It cannot be read.
        """

    def count(self) -> int:
        """Return the number of vectors."""
        return len(self.texts())

    def texts(self) -> FolderRows:
        """Return ids and texts, which are read once for each state of their files.

        Raises:
            StoreError: The files cannot be read.
        """
        names = self.naming()
        try:
            now = [written(self._folder / name) for name in names]
        except OSError as error:
            raise StoreError(f"{self.target}: expected {', '.join(names)}, found not all ({error}).") from error
        if self._read is None or self._read[0] != now:
            self._read = None
            self._read = now, self.read()
        return self._read[1]

    def stamp(self) -> str | None:
        """Return None: these files have no place for a stamp."""
        return None

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random rows that have a text."""
        return self._sample(self._live, count)

    def found(self) -> SourceFacts:
        """Return length and distance of the vectors."""
        file = self.vectors_of(self._live)
        return SourceFacts(file.dim, file.distance, None)

    def check(self, embedder: Embedder) -> None:
        """Check that the file can be made again with other vectors.

        Raises:
            StoreError: It cannot.
        """
        self.vectors_of(self._live).empty_like(embedder.dim)
        self.texts()

    def version(self) -> str:
        """Return a digest of the files."""
        return self._digest([self._file, *self._others])

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the rows; those of the old and the new vectors are the same."""
        del notes, old
        yield from self.texts().pages()

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the rows that have a text, with their vectors."""
        rows, file = self.texts(), self.vectors_of(self._live)
        place = 0
        for page in rows.pages():
            found: list[tuple[Record, Float32[np.ndarray, " dim"]]] = []
            for each, row in enumerate(page, place):
                if row.text is not None:
                    text = (rows.own(row.id) if own else None) or row.text
                    found.append((Record(row.id, text, metadata=rows.metadata(row.id) or {}), file.get(each, row.id)))
            yield found
            place += len(page)

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Write the file of the new vectors, and note its digest and those of the application's files.

        The file stays if it is there, and was made of the same files.

        Raises:
            SourceChangedError: A text has no vector yet.
        """
        texts_before, live_before = self._digest(self._others), self._digest([self._file])
        path = self._place(notes, _NEW)
        files = (texts_before, live_before)
        if (notes.get("texts"), notes.get("old")) == files and path.exists() and file_sha256(path) == notes["new"]:
            return dict(notes)
        rows, order = self.texts(), hashlib.sha256()
        index = self.vectors_of(self._live).empty_like(int(notes["dim"]))

        def pages() -> Iterator[tuple[list[str], Float32[np.ndarray, "rows dim"]]]:
            for page in rows.pages():
                _add_order(order, page)
                yield [row.id for row in page], self.made(notes, page, parked)

        index.mark(notes["space"])
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            index.write(temporary, pages())
        found = {"new": file_sha256(path), "old": live_before, "texts": texts_before, "order": order.hexdigest()}
        return {**notes, **found}

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "_NewFile":
        """Return the new vectors."""
        del old
        return _NewFile(self.target, self._place(notes, _NEW), self)

    def switch(self, notes: Mapping[str, str]) -> float:
        """Copy the old file into the journal, and rename the new one into its place; there is no gap."""
        return self._exchange(notes, notes["old"], _OLD, notes["new"], _NEW)

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Copy the new file into the journal, and rename the old one into its place; there is no gap."""
        return self._exchange(notes, notes["new"], _NEW, notes["old"], _OLD)

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the file is the new one, or one that the application saved with vectors of the new model."""
        if self._digest([self._file]) == notes["new"]:
            return True
        if self.found().dim != int(notes["dim"]):
            return False
        return audit(self, embedder).share >= OURS

    @abstractmethod
    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line of the application that names the new model."""

    @property
    def _live(self) -> Path:
        return self._folder / self._file

    def _exchange(self, notes: Mapping[str, str], out: str, out_place: str, into: str, into_place: str) -> float:
        live = self._digest([self._file])
        if live == into:
            return 0.0
        is_same = self._digest(self._others) == notes["texts"] or _order(self.texts().pages()) == notes.get("order")
        if live != out or not is_same:
            raise SourceChangedError(
                f"{self.target}: expected the files as they were, found others, which the application has saved "
                "meanwhile. Run the command again."
            )
        kept, coming = self._place(notes, out_place), self._place(notes, into_place)
        kept.parent.mkdir(exist_ok=True)
        with replacing(kept) as temporary:  # a copy, since programs write over the file itself
            shutil.copyfile(self._live, temporary)
        if file_sha256(kept) != out or not coming.exists():
            raise SourceChangedError(f"{self.target}: its files changed meanwhile. Run the command again.")
        live_file = self._live.resolve()  # a link stays
        shutil.copymode(live_file, coming)
        try:
            coming.replace(live_file)
            fsync_folder(live_file.parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with replacing(live_file) as temporary:  # the journal is on another file system
                shutil.copy(coming, temporary)
        return 0.0

    def _sample(self, path: Path, count: int) -> list[StoredVector]:
        rows, file = self.texts(), self.vectors_of(path)

        def read(places: list[int]) -> list[StoredVector]:
            chosen = zip(places, rows.at(places), strict=True)
            return [stored(row.id, row.text, file.get(place, row.id)) for place, row in chosen if row.text is not None]

        return drawn(self._random, len(rows), count, read)

    def _place(self, notes: Mapping[str, str], part: str) -> Path:
        return Path(notes["folder"]) / part / self._file

    def _digest(self, names: Iterable[str]) -> str:
        paths = [self._folder / name for name in names]
        try:
            found = [file_sha256(path) for path in paths if path.exists()]
        except OSError as error:
            raise StoreError(f"{self.target}: not readable ({error}).") from error
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def _order(pages: Iterable[Sequence[SourceRow]]) -> str:
    """Return a digest of ids and texts in their order, which stays where an application saves them once more."""
    found = hashlib.sha256()
    for page in pages:
        _add_order(found, page)
    return found.hexdigest()


def _add_order(found: Any, page: Sequence[SourceRow]) -> None:
    for row in page:
        found.update(json.dumps([row.id, row.text]).encode())


class _NewFile:
    """File of the new vectors, for an audit."""

    def __init__(self, target: str, path: Path, folder: IndexFolder) -> None:
        self.target, self._path, self._folder = target, path, folder

    def count(self) -> int:
        return len(self._folder.vectors_of(self._path))

    def stamp(self) -> str | None:
        return None

    def sample(self, count: int) -> list[StoredVector]:
        return self._folder._sample(self._path, count)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
