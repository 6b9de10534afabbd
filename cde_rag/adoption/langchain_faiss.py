"""Folders of LangChain's FAISS: `index.faiss` with the vectors, `index.pkl` with ids and documents.

The pickle is never unpickled: it is read by its opcodes (`docstore_pickle`), and stays as it is, byte for byte.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from cde_rag.adoption.application_lines import LANGCHAIN, model_line, plain_name
from cde_rag.adoption.docstore_pickle import read_docstore
from cde_rag.adoption.folder_rows import FolderRows
from cde_rag.adoption.index_files import IndexFolder
from cde_rag.adoption.vector_files import FaissFile, IndexedFile
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

    def naming(self) -> Sequence[str]:
        """Return the name of the pickle."""
        return self._others

    def read(self) -> FolderRows:
        """Read the documents and the ids of the vectors."""
        return read_docstore(self._folder / self._others[0])

    def stamp(self) -> str | None:
        """Return the stamp of CDEEmbeddings in the docstore, or None."""
        return stamped(self.texts().metadata(KEY))

    def check(self, embedder: Embedder) -> None:
        """Check as every folder; and refuse a stamp, which would name another model then.

        Raises:
            StoreError: See above.
        """
        super().check(embedder)
        if self.texts().metadata(KEY) is not None:
            raise StoreError(
                f"{self.target}: expected a docstore without a stamp, found one of CDEEmbeddings, which a move would "
                "have to change. Make the store anew of its texts, with the new embeddings."
            )

    def vectors_of(self, path: Path) -> IndexedFile:
        """Read a file of FAISS with one vector for each document."""
        found = FaissFile.read(path, self.target)
        if len(found) != (expected := len(self.texts())):
            raise StoreError(
                f"{self.target}: expected a vector for each of {expected} documents, found {len(found)}. "
                "Its application may be saving: run the command again."
            )
        return found

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line that makes the embeddings for `FAISS.load_local`."""
        stamped_once = "" if plain_name(embedder) else "once, after load_local: embeddings.stamp(store)"
        return model_line(embedder, context, LANGCHAIN, stamped_once)
