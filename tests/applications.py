"""Applications as their frameworks' tutorials write them, whose vectors are moved to another model."""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import chromadb
import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from llama_index.core import Document as LlamaDocument
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.vector_stores.faiss import FaissVectorStore
from tiny import WORDS

from cde_rag import ContextualEmbedder, FunctionEmbedder
from cde_rag.adoption.reembedding import reembedding
from cde_rag.embedders.protocol import Embedder

COUNT = 40
TEXTS = [" ".join(np.random.default_rng(number).choice(WORDS, 6)) + f" {number}" for number in range(COUNT)]


def stub(name: str, dim: int) -> ContextualEmbedder:
    """A model whose vectors are drawn by the text and the name."""

    def embed(texts: list[str]) -> np.ndarray:
        seeds = [int.from_bytes(hashlib.sha256(f"{name} {text}".encode()).digest()[:8], "big") for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=dim) for seed in seeds]).astype(np.float32)

    return FunctionEmbedder(embed, name=name)


@contextmanager
def second_rename_cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cut what is done inside where Chroma's collection is to have its own name again."""
    from chromadb import Collection

    rename = Collection.modify

    def cut(self: Any, name: str | None = None, **rest: Any) -> None:
        if name == "papers":
            raise KeyboardInterrupt
        rename(self, name=name, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "modify", cut)
        with pytest.raises(KeyboardInterrupt):
            yield


def switched(target: str, embedder: ContextualEmbedder) -> None:
    """Move an index to another model."""
    with reembedding(target) as move:
        move.switch(embedder)


class Row(NamedTuple):
    """A row as the framework returns it."""

    id: str
    text: str | None
    metadata: dict[str, Any]
    vector: list[float]


class ForLangChain(Embeddings):
    """The application's model."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embedder.embed_passages(texts, None).vectors.tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embedder.embed_queries([text])[0].tolist()


class ForLlamaIndex(BaseEmbedding):
    """The application's model."""

    embedder: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.embedder.embed_passages([text], None).vectors[0].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.embedder.embed_queries([query])[0].tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Application:
    """One application, in a folder; or on a server whose address the file `address` next to that has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journals = folder.with_name(f"{folder.name}.cde-move")

    target: str
    parts = ("",)  # names of the collections that are moved together

    def part(self, name: str) -> list[Row]:
        """The rows of one of `parts`."""
        del name
        return self.rows()

    def write_old(self, notes: Mapping[str, str], text: str, vector: list[float]) -> None:
        """Change the text of a row among the old vectors of a move, as a program does that had opened them before."""
        raise NotImplementedError

    def insert_later(self, id_: str, text: str, model: Embedder) -> None:
        """Store one more text, as a program does that has a model."""
        raise NotImplementedError

    def places(self) -> list[str]:
        """Names of the tables, collections or files that are there, without those of journals."""
        return sorted(path.name for path in self.folder.iterdir())

    def embedded(self) -> list[str]:
        """The texts as the framework embeds them."""
        return TEXTS

    def finds_best(self, query: str, embedder: Embedder) -> bool:
        """True if the application finds the text that an exact search finds first, or one as near."""
        vectors = embedder.embed_passages(self.embedded(), None).vectors
        scores = vectors @ embedder.embed_queries([query])[0]
        return bool(scores[TEXTS.index(self.search(query, embedder)[0])] > scores.max() - 1e-5)

    def build(self, embedder: Embedder) -> None:
        raise NotImplementedError

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        """Texts, the best first."""
        raise NotImplementedError

    def rows(self) -> list[Row]:
        raise NotImplementedError


class ChromaApplication(Application):
    """A persistent client with vectors of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = f"chroma:{folder}#papers"

    @property
    def client(self) -> Any:
        return chromadb.PersistentClient(path=str(self.folder))

    def opened(self) -> Any:
        return self.client.get_collection("papers", embedding_function=None)

    def build(self, embedder: Embedder) -> None:
        made = self.client.create_collection(
            "papers", embedding_function=None, metadata={"who": "me", "hnsw:space": "cosine"}
        )
        made.add(
            ids=[f"d{number}" for number in range(COUNT)],
            documents=TEXTS,
            embeddings=embedder.embed_passages(TEXTS, None).vectors,
            metadatas=[{"n": number, "tags": ["a", "b"]} if number % 3 else None for number in range(COUNT)],
        )

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        return self.opened().query(query_embeddings=embedder.embed_queries([query]), n_results=k)["documents"][0]

    def rows(self) -> list[Row]:
        return rows_of(self.opened())

    def insert_later(self, id_: str, text: str, model: Embedder) -> None:
        self.opened().add(ids=[id_], documents=[text], embeddings=model.embed_passages([text], None).vectors)

    def write_old(self, notes: Mapping[str, str], text: str, vector: list[float]) -> None:
        held = self.client.get_collection("papers-cde-old", embedding_function=None)
        held.update(ids=["d7"], documents=[text], embeddings=[vector])

    def places(self) -> list[str]:
        return sorted(each.name for each in self.client.list_collections())


def rows_of(collection: Any) -> list[Row]:
    found = collection.get(include=["documents", "metadatas", "embeddings"])
    each = zip(found["ids"], found["documents"], found["metadatas"], found["embeddings"], strict=True)
    return [Row(id_, text, metadata or {}, vector.tolist()) for id_, text, metadata, vector in each]


class ChromaServerApplication(ChromaApplication):
    """The same on a server, whose port the file `address` has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = int(folder.with_name("address").read_text())
        self.target, self.journals = f"chroma:http://127.0.0.1:{self.port}#papers", folder.with_name("papers.cde-move")

    @property
    def client(self) -> Any:
        return chromadb.HttpClient("127.0.0.1", self.port)


class OpenWebUIApplication(Application):
    """The calls of Open WebUI's `ChromaClient`, and those of its routers that embed; its package is too large here."""

    parts = ("3f0c6a2e-8a50-4a2a-9a35-0d5c2f1b7e11", "file-one", "user-memory-me", "web-search-" + "0" * 52)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target, self.journals = f"open-webui:{folder}", folder / "vector_db.cde-move"

    @property
    def client(self) -> Any:
        return chromadb.PersistentClient(path=str(self.folder / "vector_db"))

    def build(self, embedder: Embedder) -> None:
        """Each part has its share of the texts, with line breaks; one more has none."""
        self.folder.mkdir()
        for name, texts in zip(self.parts, self.texts(), strict=True):
            self.insert(name, texts, embedder)
        self.client.get_or_create_collection(name="file-empty", metadata={"hnsw:space": "cosine"})

    def insert(self, name: str, texts: list[str], model: Embedder) -> None:
        collection = self.client.get_or_create_collection(name=name, metadata={"hnsw:space": "cosine"})
        lines = texts if name.startswith("user-memory-") else [text.replace("\n", " ") for text in texts]
        collection.upsert(
            ids=self.ids(texts),
            documents=texts,
            embeddings=model.embed_passages(lines, None).vectors.tolist(),
            metadatas=[{"source": f"{name}.md", "start_index": place} for place in range(len(texts))],
        )

    def texts(self) -> list[list[str]]:
        share = COUNT // len(self.parts)
        lines = [text.replace(" ", "\n", 1) for text in TEXTS]
        return [lines[share * place : share * (place + 1)] for place in range(len(self.parts))]

    def ids(self, texts: list[str]) -> list[str]:
        return [f"{len(text)}-{text[:20]}" for text in texts]

    def found_in(self, name: str, query: str, model: Embedder) -> str:
        """The text of one collection that comes first."""
        found = self.client.get_collection(name=name).query(
            query_embeddings=model.embed_queries([query]).tolist(), n_results=1
        )
        return found["documents"][0][0]

    def write_old(self, notes: Mapping[str, str], text: str, vector: list[float]) -> None:
        held = self.client.get_collection(f"{self.parts[0]}-cde-old")
        (id_,) = self.ids([TEXTS[7].replace(" ", "\n", 1)])
        held.update(ids=[id_], documents=[text.replace(" ", "\n", 1)], embeddings=[vector])

    def part(self, name: str) -> list[Row]:
        return rows_of(self.client.get_collection(name=name))

    def places(self) -> list[str]:
        return sorted(each.name for each in self.client.list_collections())


class LangChainApplication(Application):
    """FAISS with save_local and load_local."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = f"langchain-faiss:{folder}"

    def opened(self, embedder: Embedder) -> FAISS:
        return FAISS.load_local(str(self.folder), ForLangChain(embedder), allow_dangerous_deserialization=True)

    def build(self, embedder: Embedder) -> None:
        model = ForLangChain(embedder)
        store = FAISS(model, faiss.IndexFlatL2(embedder.dim), InMemoryDocstore(), {})
        documents = [Document(page_content=text, metadata={"n": n, "of": {"b": [1.5]}}) for n, text in enumerate(TEXTS)]
        store.add_documents(documents, ids=[f"d{number}" for number in range(COUNT)])
        store.save_local(str(self.folder))

    def insert_later(self, id_: str, text: str, model: Embedder) -> None:
        store = self.opened(model)
        store.add_documents([Document(page_content=text)], ids=[id_])
        store.save_local(str(self.folder))

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        return [found.page_content for found in self.opened(embedder).similarity_search(query, k)]

    def rows(self) -> list[Row]:
        store = FAISS.load_local(str(self.folder), None, allow_dangerous_deserialization=True)  # type: ignore[arg-type]
        found: list[Row] = []
        for place, id_ in store.index_to_docstore_id.items():
            document: Any = store.docstore.search(id_)
            found.append(Row(id_, document.page_content, document.metadata, store.index.reconstruct(place).tolist()))
        return found


def nodes() -> list[TextNode]:
    return [
        TextNode(
            text=text, id_=f"d{n}", metadata={"file": f"{n}.md", "secret": "x"}, excluded_embed_metadata_keys=["secret"]
        )
        for n, text in enumerate(TEXTS)
    ]


class SimpleApplication(Application):
    """LlamaIndex' SimpleVectorStore, persisted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = f"llamaindex:{folder}"

    def embedded(self) -> list[str]:
        return [node.get_content(MetadataMode.EMBED) for node in nodes()]

    def storage(self) -> StorageContext:
        return StorageContext.from_defaults(persist_dir=str(self.folder))

    def new_storage(self, dim: int) -> StorageContext:
        return StorageContext.from_defaults()

    def build(self, embedder: Embedder) -> None:
        model = ForLlamaIndex(embedder=embedder)
        index = VectorStoreIndex(nodes(), embed_model=model, storage_context=self.new_storage(embedder.dim))
        index.storage_context.persist(str(self.folder))

    def insert_later(self, id_: str, text: str, model: Embedder) -> None:
        index: Any = load_index_from_storage(self.storage(), embed_model=ForLlamaIndex(embedder=model))
        index.insert_nodes([TextNode(text=text, id_=id_)])
        index.storage_context.persist(str(self.folder))

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        index = load_index_from_storage(self.storage(), embed_model=ForLlamaIndex(embedder=embedder))
        return [
            found.get_content(MetadataMode.NONE) for found in index.as_retriever(similarity_top_k=k).retrieve(query)
        ]

    def vector(self, storage: StorageContext, place: int, id_: str) -> list[float]:
        return storage.vector_store.get(id_)  # type: ignore[attr-defined]

    def rows(self) -> list[Row]:
        storage = self.storage()
        found: list[Row] = []
        for place, id_ in enumerate(f"d{n}" for n in range(COUNT)):
            node: Any = storage.docstore.get_node(id_)
            found.append(Row(id_, node.get_content(), node.metadata, self.vector(storage, place, id_)))
        return found


def long_nodes(folder: Path, embedder: Embedder) -> SimpleApplication:
    """An index of three texts of several hundred words, each in one of LlamaIndex' default chunks."""
    made = SimpleApplication(folder)
    texts = [" ".join(np.random.default_rng(number).choice(WORDS, 300)) for number in range(3)]
    documents = [LlamaDocument(text=text, id_=f"d{number}") for number, text in enumerate(texts)]
    model = ForLlamaIndex(embedder=embedder)
    VectorStoreIndex.from_documents(documents, embed_model=model).storage_context.persist(str(folder))
    return made


class FaissApplication(SimpleApplication):
    """LlamaIndex' FaissVectorStore, persisted."""

    def storage(self) -> StorageContext:
        store = FaissVectorStore.from_persist_dir(str(self.folder))
        return StorageContext.from_defaults(vector_store=store, persist_dir=str(self.folder))

    def new_storage(self, dim: int) -> StorageContext:
        return StorageContext.from_defaults(vector_store=FaissVectorStore(faiss.IndexFlatL2(dim)))

    def vector(self, storage: StorageContext, place: int, id_: str) -> list[float]:
        return storage.vector_store.client.reconstruct(place).tolist()


class LanceApplication(Application):
    """A table of LanceDB with vectors of its own and indexes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = f"lancedb:{folder}#papers"

    @property
    def client(self) -> Any:
        import lancedb  # here: its import takes seconds, and starts a thread

        return lancedb.connect(str(self.folder))

    def opened(self) -> Any:
        return self.client.open_table("papers")

    def data(self, embedder: Embedder, texts: list[str]) -> list[dict[str, Any]]:
        each = zip(texts, embedder.embed_passages(texts, None).vectors.tolist(), strict=True)
        rows = [{"vector": vector, "text": text, "metadata": {"of": {"b": [1.5]}}} for text, vector in each]
        return [{"id": f"d{n}", "n": n, **row, "tags": ["a", "b"]} for n, row in enumerate(rows)]

    def build(self, embedder: Embedder, texts: list[str] = TEXTS) -> None:
        from lancedb.index import FTS, BTree

        made = self.client.create_table("papers", data=self.data(embedder, texts))
        made.create_index("n", config=BTree())
        made.create_index("text", config=FTS(stem=False, with_position=True), name="words")

    def insert_later(self, id_: str, text: str, model: Embedder) -> None:
        self.opened().add([{**self.data(model, [text])[0], "id": id_}])

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        found = self.opened().search(embedder.embed_queries([query])[0]).limit(k).to_list()
        return [row["text"] for row in found]

    def rows(self) -> list[Row]:
        found = self.opened().to_arrow().to_pylist()
        return [Row(row.pop("id"), row.pop("text"), row, row.pop("vector")) for row in found]

    def places(self) -> list[str]:
        indexes = [f"{each.name} {each.index_type}" for each in self.opened().list_indices()]
        return sorted([*super().places(), *indexes])


class QdrantApplication(Application):
    """LangChain's QdrantVectorStore over an alias, as Qdrant's documentation has it for such moves."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = folder.with_name("address").read_text()
        self.target, self.journals = f"qdrant:{self.url}#papers", folder.with_name("papers.cde-move")

    @property
    def client(self) -> Any:
        from qdrant_client import QdrantClient

        return QdrantClient(url=self.url, check_compatibility=False)

    def opened(self, embedder: Embedder) -> Any:
        from langchain_qdrant import QdrantVectorStore
        from qdrant_client.models import Distance

        return QdrantVectorStore(self.client, "papers", ForLangChain(embedder), distance=Distance.DOT)

    def build(self, embedder: Embedder) -> None:
        from qdrant_client import models

        client = self.client
        for each in client.get_collections().collections:  # of the test before
            client.delete_collection(each.name)
        # by cosine the local mode normalises vectors now and then, and the last digit changes
        params = models.VectorParams(size=embedder.dim, distance=models.Distance.DOT)
        client.create_collection("papers-v1", vectors_config=params, metadata={"who": "me"})
        alias = models.CreateAlias(collection_name="papers-v1", alias_name="papers")
        client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        metadatas = [{"n": number, "of": {"b": [1.5]}} for number in range(COUNT)]
        self.opened(embedder).add_texts(TEXTS, metadatas, ids=[point_id(number) for number in range(COUNT)])

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        return [found.page_content for found in self.opened(embedder).similarity_search(query, k)]

    def rows(self, name: str = "papers") -> list[Row]:
        points, _ = self.client.scroll(name, limit=10 * COUNT, with_vectors=True)
        return [
            Row(str(point.id), point.payload["page_content"], point.payload["metadata"], point.vector)
            for point in points
        ]

    def write_old(self, notes: Mapping[str, str], text: str, vector: list[float]) -> None:
        from qdrant_client.models import PointStruct

        payload = {"page_content": text, "metadata": {"n": 7, "of": {"b": [1.5]}}}
        self.client.upsert(notes["old"], [PointStruct(id=point_id(7), payload=payload, vector=vector)])

    def places(self) -> list[str]:
        return [each.name.partition("-")[0] for each in self.client.get_collections().collections]


class QdrantFolderApplication(QdrantApplication):
    """The same in a folder of Qdrant's client, which one program at a time can have open."""

    def __init__(self, folder: Path) -> None:
        Application.__init__(self, folder)
        self.target = f"qdrant:{folder}#papers"

    @cached_property
    def client(self) -> Any:  # type: ignore[override]
        from qdrant_client import QdrantClient

        return QdrantClient(path=str(self.folder))


def point_id(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


class PostgresApplication(Application):
    """A table as LangChain's PGVector makes it, with an index, a trigger and a serial number; by its SQL."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = folder.with_name("address").read_text()
        self.target, self.journals = f"pgvector:{self.address}#papers", folder.with_name("papers.cde-move")

    def opened(self) -> Any:
        import psycopg

        return psycopg.connect(self.address, autocommit=True)

    def build(self, embedder: Embedder) -> None:
        with self.opened() as connection:
            connection.execute(
                f"""
                CREATE EXTENSION IF NOT EXISTS vector;
                DROP SCHEMA IF EXISTS public_cde_new CASCADE;
                DROP SCHEMA IF EXISTS public_cde_old CASCADE;
                DROP TABLE IF EXISTS papers;
                DROP TABLE IF EXISTS collections;
                CREATE TABLE collections (uuid int PRIMARY KEY, name varchar NOT NULL UNIQUE);
                INSERT INTO collections VALUES (1, 'one'), (2, 'two');
                CREATE TABLE papers (
                    id varchar PRIMARY KEY, collection_id int REFERENCES collections ON DELETE CASCADE,
                    embedding vector({embedder.dim}), document varchar, cmetadata jsonb, place serial,
                    number bigint GENERATED ALWAYS AS IDENTITY, words tsvector, changed int NOT NULL DEFAULT 0
                        CHECK (changed >= 0), length int GENERATED ALWAYS AS (char_length(document)) STORED
                );
                CREATE INDEX meta ON papers USING gin (cmetadata jsonb_path_ops);
                CREATE INDEX near ON papers USING hnsw (embedding vector_cosine_ops) WITH (m = 8);
                CREATE OR REPLACE FUNCTION worded() RETURNS trigger LANGUAGE plpgsql AS $$
                    BEGIN NEW.words = to_tsvector('english', NEW.document); RETURN NEW; END $$;
                CREATE TRIGGER worded BEFORE INSERT OR UPDATE ON papers FOR EACH ROW EXECUTE FUNCTION worded();
                COMMENT ON TABLE papers IS 'mine: 100 %';
                ALTER TABLE papers SET (fillfactor = 70);
                """.encode()
            )
            vectors = embedder.embed_passages(TEXTS, None).vectors
            self.write([(f"d{n}", text, {"n": n}, vectors[n].tolist()) for n, text in enumerate(TEXTS)])

    def write(self, rows: list[tuple[str, str | None, dict[str, Any], list[float] | None]]) -> None:
        with self.opened() as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO papers (id, collection_id, document, cmetadata, embedding) VALUES (%s, 1, %s, %s, %s) "
                "ON CONFLICT (id) DO UPDATE SET document = excluded.document, cmetadata = excluded.cmetadata, "
                "embedding = excluded.embedding, changed = papers.changed + 1",
                [
                    (id_, text, json.dumps(metadata), None if vector is None else str(vector))
                    for id_, text, metadata, vector in rows
                ],
            )

    def search(self, query: str, embedder: Embedder, k: int = 3) -> list[str]:
        vector = str(embedder.embed_queries([query])[0].tolist())
        with self.opened() as connection:
            found = connection.execute(
                "SELECT document FROM papers ORDER BY embedding <=> %s LIMIT %s", (vector, k)
            ).fetchall()
        return [text for (text,) in found]

    def rows(self) -> list[Row]:
        query = (
            "SELECT id, document, to_jsonb(p) - 'embedding', embedding::text FROM papers p ORDER BY char_length(id), id"
        )
        with self.opened() as connection:
            found = connection.execute(query).fetchall()
        return [
            Row(id_, text, metadata, None if vector is None else json.loads(vector))  # type: ignore[arg-type]
            for id_, text, metadata, vector in found
        ]

    def write_old(self, notes: Mapping[str, str], text: str, vector: list[float]) -> None:
        query = (
            "UPDATE public_cde_old.papers SET document = %s, words = to_tsvector('english', %s), embedding = %s "
            "WHERE id = 'd7'"
        )
        with self.opened() as connection:
            connection.execute(query, (text, text, str(vector)))

    def places(self) -> list[str]:
        query = (
            "SELECT format('%s.%s', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE n.nspname LIKE 'public%'"
        )
        with self.opened() as connection:
            return sorted(name for (name,) in connection.execute(query).fetchall())


APPLICATIONS: dict[str, Callable[[Path], Application]] = {
    "chroma": ChromaApplication,
    "lancedb": LanceApplication,
    "langchain": LangChainApplication,
    "llamaindex-simple": SimpleApplication,
    "llamaindex-faiss": FaissApplication,
    "qdrant": QdrantApplication,
    "postgres": PostgresApplication,
}
