"""Folders that LlamaIndex' `storage_context.persist` wrote, with a SimpleVectorStore or a FaissVectorStore.

Vectors stand in `NAMESPACE__vector_store.json` (of either store), nodes with their texts in `docstore.json`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

from cde_rag._files import open_file, written
from cde_rag.adoption.application_lines import LLAMA_INDEX, model_line, plain_name
from cde_rag.adoption.folder_rows import FolderDocument, FolderRows
from cde_rag.adoption.index_files import IndexFolder
from cde_rag.adoption.llamaindex_nodes import embedded_node_text
from cde_rag.adoption.vector_files import FaissFile, IndexedFile, JsonFile, read_json
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError

_DOCSTORE, _INDEXES = "docstore.json", "index_store.json"


class LlamaIndexFolder(IndexFolder):
    """A persisted folder.

    Args:
        target: Name given by the user.
        folder: The folder.
        name: Namespace of the vector store, `default` by default.
        home: Folder of a move's journal.
        random: Draws samples.
    """

    def __init__(self, target: str, folder: Path, name: str, home: Path, random: Random) -> None:
        super().__init__(target, folder, f"{name}__vector_store.json", [_DOCSTORE, _INDEXES], home, random)

        self._json: tuple[Path, tuple[int, ...], JsonFile] | None = None

    def naming(self) -> Sequence[str]:
        """Return the names of the files with nodes, and of the JSON or index that names their vectors."""
        return [_DOCSTORE, self._file if self._is_json(self._live) else _INDEXES]

    def read(self) -> FolderRows:
        """Read the nodes and the ids of the vectors."""
        rows, nodes = FolderRows(), self._part(_DOCSTORE, "docstore/data")
        rows.keep(_document_of(id_, nodes.pop(id_)) for id_ in list(nodes))  # a node goes when it is kept
        rows.name(enumerate(self._json_of(self._live).ids if self._is_json(self._live) else self._by_place()))
        return rows

    def vectors_of(self, path: Path) -> IndexedFile:
        """Read a file of either store."""
        if self._is_json(path):
            return self._json_of(path)
        found = FaissFile.read(path, self.target)
        if len(found) != len(self.texts()):
            raise StoreError(
                f"{self.target}: expected {len(self.texts())} vectors, as {_INDEXES} names nodes, found "
                f"{len(found)}. Its application may be saving: run the command again."
            )
        return found

    def _json_of(self, path: Path) -> JsonFile:
        """Read a JSON of vectors, once for each state of the file; one is kept, since reading it takes long."""
        try:
            now = written(path)
        except OSError as error:
            raise StoreError(f"{self.target}: expected {path.name}, found none.") from error
        if self._json is None or self._json[:2] != (path, now):
            self._json = None
            self._json = path, now, JsonFile.read(path, self.target)
        return self._json[2]

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line that makes the embed_model of `load_index_from_storage`."""
        unmarked = "" if self._is_json(self._live) else "a FAISS file names no model, so CDEEmbedding warns once"
        return model_line(embedder, context, LLAMA_INDEX, "" if plain_name(embedder) else unmarked)

    def _is_json(self, path: Path) -> bool:
        try:
            with open_file(path) as file:
                return file.read(1) == b"{"
        except OSError as error:
            raise StoreError(f"{self.target}: expected {path.name}, found none.") from error

    def _by_place(self) -> list[str]:
        """Return the ids of the nodes of a FaissVectorStore, whose own ids are places.

        Raises:
            StoreError: There is no index of this store, or several.
        """
        written = self._part(_INDEXES, "index_store/data")
        try:
            found: list[dict[str, str]] = [
                dict(json.loads(each["__data__"])["nodes_dict"])
                for each in written.values()
                if each["__type__"] == "vector_store"
            ]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{self.target}: expected indexes of LlamaIndex in {_INDEXES}, found others.") from error
        if len(found) != 1 or found[0].keys() != set(map(str, range(len(found[0])))):
            raise StoreError(
                f"{self.target}: expected one vector index in {_INDEXES}, its vectors numbered from 0, found "
                f"{len(found)}. Persist each index in a folder of its own."
            )
        return [str(found[0][str(place)]) for place in range(len(found[0]))]

    def _part(self, name: str, key: str) -> dict[str, Any]:
        """Return an object of one of the files."""
        found: object = read_json(self._folder / name, self.target).get(key) or {}
        if not isinstance(found, dict):
            raise StoreError(f"{self.target}: expected an object as {key!r} in {name}, found another value.")
        return cast(dict[str, Any], found)


def _document_of(id_: str, node: Any) -> FolderDocument:
    content = cast(dict[str, Any], node).get("__data__") if isinstance(node, dict) else None
    if not isinstance(content, dict):
        return FolderDocument(id_, None, {})
    fields = cast(dict[str, Any], content)
    text = fields.get("text")
    if text is None and isinstance(fields.get("text_resource"), dict):  # of a Node
        text = fields["text_resource"].get("text")
    if not isinstance(text, str):
        return FolderDocument(id_, None, {})
    embedded, metadata = embedded_node_text(fields, text), fields.get("metadata")
    kept = cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}
    return FolderDocument(id_, embedded, kept, None if embedded == text else text)
