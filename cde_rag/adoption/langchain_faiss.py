"""Folders of LangChain's FAISS: `index.faiss` with the vectors, `index.pkl` with ids and documents.

The pickle is never unpickled: it is read by its opcodes (`docstore_pickle`), and stays as it is, byte for byte.
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from cde_rag._files import written
from cde_rag.adoption.application_lines import LANGCHAIN, model_line, plain_name
from cde_rag.adoption.docstore_pickle import Docstore, read_docstore
from cde_rag.adoption.index_files import FaissFile, IndexFolder
from cde_rag.adoption.movable import SourceRow
from cde_rag.adoption.positions import is_text
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.stamps import KEY, stamped


class LangChainFaiss(IndexFolder):
    """A folder that `FAISS.save_local` wrote.

    Args:
        target: Name given by the user.
        folder: The folder.
        name: Index name, `index` by default.
        home: Folder of a move's journal.
        random: Draws samples.
    """

    def __init__(self, target: str, folder: Path, name: str, home: Path, random: Random) -> None:
        super().__init__(target, folder, f"{name}.faiss", [f"{name}.pkl"], home, random)
        self._read: tuple[tuple[int, ...], Docstore] | None = None

    def texts(self) -> list[SourceRow]:
        """Return the documents in the order of their vectors."""
        found = self._docstore()
        rows: list[SourceRow] = []
        for id_ in found.ids:
            text = found.documents[id_].text
            rows.append(SourceRow(id_, text if is_text(text) else None))
        return rows

    def metadata(self, id_: str) -> Mapping[str, Any]:
        """Return texts and numbers of the metadata: nested values may refer to each other without end."""
        found = self._docstore().documents[id_].metadata
        return {
            key: value
            for key, value in found.items()
            if isinstance(key, str) and isinstance(value, str | int | float | None)
        }

    def stamp(self) -> str | None:
        """Return the stamp of CDEEmbeddings in the docstore, or None."""
        found = self._docstore().documents.get(KEY)
        return None if found is None else stamped(found.metadata)

    def check(self, embedder: Embedder) -> None:
        """Check as every folder; and refuse a stamp, which would name another model then.

        Raises:
            StoreError: See above.
        """
        super().check(embedder)
        if KEY in self._docstore().documents:
            raise StoreError(
                f"{self.target}: expected a docstore without a stamp, found one of CDEEmbeddings, which a move would "
                "have to change. Make the store anew of its texts, with the new embeddings."
            )

    def vectors_of(self, path: Path) -> FaissFile:
        """Read a file of FAISS with one vector for each document."""
        found = FaissFile.read(path, self.target)
        if len(found) != (expected := len(self._docstore().ids)):
            raise StoreError(
                f"{self.target}: expected a vector for each of {expected} documents, found {len(found)}. "
                "Its application may be saving: run the command again."
            )
        return found

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line that makes the embeddings for `FAISS.load_local`."""
        stamped_once = "" if plain_name(embedder) else "once, after load_local: embeddings.stamp(store)"
        return model_line(embedder, context, LANGCHAIN, stamped_once)

    def _docstore(self) -> Docstore:
        """Read the docstore, once for each state of its file."""
        path = self._folder / self._others[0]
        try:
            now = written(path)
            if self._read is None or self._read[0] != now:
                self._read = now, read_docstore(path)
        except OSError as error:
            raise StoreError(f"{self.target}: expected {path.name} of FAISS.save_local, found none.") from error
        return self._read[1]
