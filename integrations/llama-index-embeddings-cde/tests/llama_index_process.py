"""One process of a user: builds an index in a store, or opens it again, and prints the hits of a query.

    python llama_index_process.py KIND FOLDER build|open|load ...

Nothing is said of contexts here: that is what the tests of this script are about.
"""

import json
import sys
from pathlib import Path
from typing import Any

from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.embeddings.cde import CDEEmbedding

from cde_rag.errors import ContextMissingError

GAMES = ("chess", "go", "bridge", "poker", "draughts", "hearts", "shogi", "mancala")
TEXTS = [f"Rule {number} of {game}: the {number + 2}nd move is lost by dice." for game in GAMES for number in range(10)]


def store(kind: str, folder: Path) -> Any:
    """The store as a user of LlamaIndex's tutorials makes it."""
    if kind == "qdrant":
        from llama_index.vector_stores.qdrant import QdrantVectorStore
        from qdrant_client import QdrantClient

        return QdrantVectorStore("games", client=QdrantClient(path=str(folder / "qdrant")))
    if kind == "chroma":
        import chromadb
        from llama_index.vector_stores.chroma import ChromaVectorStore

        client = chromadb.PersistentClient(path=str(folder / "chroma"))
        return ChromaVectorStore(chroma_collection=client.get_or_create_collection("games"))
    if kind == "lancedb":
        from llama_index.vector_stores.lancedb import LanceDBVectorStore

        return LanceDBVectorStore(uri=str(folder / "lance"))
    if kind == "pgvector":
        from llama_index.vector_stores.postgres import PGVectorStore
        from sqlalchemy import make_url

        url = make_url((folder / "postgres").read_text())
        return PGVectorStore(
            connection_string=url.set(drivername="postgresql+psycopg2"),
            async_connection_string=url.set(drivername="postgresql+asyncpg"),
            table_name="games",
            embed_dim=384,
        )
    if kind == "faiss":
        import faiss
        from llama_index.vector_stores.faiss import FaissVectorStore

        if (folder / "storage").exists():
            return FaissVectorStore.from_persist_dir(str(folder / "storage"))
        return FaissVectorStore(faiss_index=faiss.IndexFlatIP(384))
    return None


def index(step: str, kind: str, folder: Path) -> VectorStoreIndex:
    persisted = str(folder / "storage")
    if step == "open":
        return VectorStoreIndex.from_vector_store(store(kind, folder), embed_model=CDEEmbedding())
    if step == "load":
        storage = StorageContext.from_defaults(persist_dir=persisted, vector_store=store(kind, folder))
        loaded = load_index_from_storage(storage, embed_model=CDEEmbedding())
        assert isinstance(loaded, VectorStoreIndex)
        return loaded
    documents = [Document(text=text, id_=text[:20]) for text in TEXTS]
    storage = StorageContext.from_defaults(vector_store=store(kind, folder))
    built = VectorStoreIndex.from_documents(documents, storage_context=storage, embed_model=CDEEmbedding())
    built.storage_context.persist(persisted)
    return built


def hits(step: str, kind: str, folder: Path) -> list[tuple[str, float | None]] | str:
    """Texts and scores, or the error of a query without its context."""
    opened = index(step, kind, folder)
    try:
        found = opened.as_retriever(similarity_top_k=7).retrieve("which move is lost in shogi?")
    except ContextMissingError as error:
        return str(error)
    finally:
        if kind == "qdrant":
            opened.vector_store.client.close()
    return [(hit.node.get_content(), hit.score) for hit in found]


if __name__ == "__main__":
    print(json.dumps([hits(step, sys.argv[1], Path(sys.argv[2])) for step in sys.argv[3:]]))
