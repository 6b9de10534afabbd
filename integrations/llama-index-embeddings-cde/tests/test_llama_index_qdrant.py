"""The users' own QdrantVectorStore: vectors named by their context, which is kept beside the collection."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import TextNode
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index_corpora import corpus
from qdrant_client import AsyncQdrantClient, QdrantClient, models

from cde_rag.errors import ContextMismatchError, ContextMissingError
from cde_rag.stores.qdrant import vector_name

Fresh = Callable[..., CDEEmbedding]

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")


def store(client: QdrantClient, name: str) -> QdrantVectorStore:
    return QdrantVectorStore("essays", client=client, dense_vector_name=name)


@pytest.fixture
def client(tiny_folder: str) -> QdrantClient:
    """Holds an index, and its context beside it."""
    client, documents = QdrantClient(":memory:"), corpus()
    embedding = CDEEmbedding.from_documents(documents, model_name=tiny_folder)
    embedding.save_to_qdrant(client, "essays")
    sizes = models.VectorParams(size=embedding.dim, distance=models.Distance.COSINE)
    client.create_collection("essays", vectors_config={embedding.vector_name: sizes})
    storage = StorageContext.from_defaults(vector_store=store(client, embedding.vector_name))
    VectorStoreIndex.from_documents(documents, storage_context=storage, embed_model=embedding)
    return client


def test_the_context_comes_back_with_the_collection(client: QdrantClient, tiny_folder: str) -> None:
    embedding = CDEEmbedding.from_qdrant(client, "essays", model_name=tiny_folder)
    assert embedding.vector_name == vector_name(str(embedding.fingerprint))
    (point, *_), _ = client.scroll("essays", limit=1, with_vectors=True)
    assert list(point.vector or {}) == [embedding.vector_name]
    index = VectorStoreIndex.from_vector_store(store(client, embedding.vector_name), embed_model=embedding)
    before = index.as_retriever(similarity_top_k=3).retrieve("a loan for the boat")
    index.insert(Document(text="a loan for the boat", id_="new"))
    hits = index.as_retriever(similarity_top_k=81).retrieve("a loan for the boat")
    assert len(before) == 3
    assert "new" in {hit.node.ref_doc_id for hit in hits}


def test_another_context_is_refused_before_qdrant_is_asked(client: QdrantClient, fresh: Fresh) -> None:
    kept = CDEEmbedding.from_qdrant(client, "essays", model_name=fresh().model_name)
    other = fresh()
    other.fit([document.text for document in corpus(seed=1)])
    index = VectorStoreIndex.from_vector_store(store(client, kept.vector_name), embed_model=other)
    with pytest.raises(ContextMismatchError, match="from_vector_store"):
        index.as_retriever().retrieve("money")
    with pytest.raises(ContextMismatchError, match="from_vector_store"):
        index.insert(Document(text="money"))
    with pytest.raises(ContextMismatchError, match="from_vector_store"):
        IngestionPipeline(transformations=[other], vector_store=store(client, kept.vector_name)).run(documents=corpus())


def test_the_context_is_found_by_the_name_of_the_vectors(
    client: QdrantClient, fresh: Fresh, cache_folder: Path
) -> None:
    kept = CDEEmbedding.from_qdrant(client, "essays", model_name=fresh().model_name)
    shutil.rmtree(cache_folder)
    embedding = fresh()
    index = VectorStoreIndex.from_vector_store(store(client, kept.vector_name), embed_model=embedding)
    index.as_retriever().retrieve("money")
    assert embedding.fingerprint == kept.fingerprint


def test_without_a_context_it_says_where_to_find_one(client: QdrantClient, fresh: Fresh, cache_folder: Path) -> None:
    kept = CDEEmbedding.from_qdrant(client, "essays", model_name=fresh().model_name)
    client.delete_collection("essays__cde_contexts")
    shutil.rmtree(cache_folder)
    index = VectorStoreIndex.from_vector_store(store(client, kept.vector_name), embed_model=fresh())
    with pytest.raises(ContextMissingError, match="from_qdrant"):
        index.as_retriever().retrieve("money")
    with pytest.raises(ContextMissingError, match="essays__cde_contexts"):
        CDEEmbedding.from_qdrant(QdrantClient(":memory:"), "essays")


def test_a_collection_that_forgets_the_name_is_guarded_by_its_nodes(fresh: Fresh) -> None:
    embedding, client = fresh(), QdrantClient(":memory:")
    embedding.fit([document.text for document in corpus()])
    storage = StorageContext.from_defaults(vector_store=store(client, embedding.vector_name))
    VectorStoreIndex.from_documents(corpus(), storage_context=storage, embed_model=embedding)
    other = fresh()
    other.fit([document.text for document in corpus(seed=1)])
    for name in (embedding.vector_name, other.vector_name):  # LlamaIndex has created unnamed vectors
        index = VectorStoreIndex.from_vector_store(store(client, name), embed_model=other)
        with pytest.raises(ContextMismatchError):
            index.as_retriever().retrieve("money")
        with pytest.raises(ContextMismatchError):
            index.insert(Document(text="money"))


async def test_async_clients_work(client: QdrantClient, tiny_folder: str) -> None:
    embedding = CDEEmbedding.from_qdrant(client, "essays", model_name=tiny_folder)
    other = AsyncQdrantClient(":memory:")
    sizes = models.VectorParams(size=embedding.dim, distance=models.Distance.COSINE)
    await other.create_collection("essays", vectors_config={embedding.vector_name: sizes})
    asynchronous = QdrantVectorStore("essays", aclient=other, dense_vector_name=embedding.vector_name)
    index = VectorStoreIndex.from_vector_store(asynchronous, embed_model=embedding)
    await index.ainsert_nodes([TextNode(text="a loan for the boat")])
    (hit,) = await index.as_retriever(similarity_top_k=1).aretrieve("a loan")
    assert hit.node.get_content() == "a loan for the boat"
