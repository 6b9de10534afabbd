"""LangChain's own QdrantVectorStore with CDEEmbeddings: our named vector, the context beside the collection."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.stores import InMemoryByteStore
from langchain_qdrant import Qdrant, QdrantVectorStore
from langchain_qdrant.qdrant import QdrantVectorStoreError
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, FieldCondition, Filter, Range, VectorParams

from cde_rag import CDEModel
from cde_rag.errors import ContextError, ContextMissingError
from langchain_cde import CDEEmbeddings

REMEDY = r"vector_name=embeddings\.vector_name"


@pytest.fixture
def client() -> Iterator[QdrantClient]:
    client = QdrantClient(":memory:")
    yield client
    client.close()


@pytest.fixture
def documents(texts: list[str]) -> list[Document]:
    return [Document(page_content=text, metadata={"n": n}) for n, text in enumerate(texts)]


def make(client: QdrantClient, embeddings: CDEEmbeddings) -> QdrantVectorStore:
    """As the README has it."""
    vectors = {embeddings.vector_name: VectorParams(size=16, distance=Distance.COSINE)}
    client.create_collection("papers", vectors_config=vectors)
    return QdrantVectorStore(client, "papers", embeddings, vector_name=embeddings.vector_name)


def found(store: QdrantVectorStore, query: str, **settings) -> list[str]:
    return [document.page_content for document in store.similarity_search(query, **settings)]


async def test_a_collection_is_made_reopened_and_searched(
    client: QdrantClient, documents: list[Document], embeddings: CDEEmbeddings, tiny_model: CDEModel
) -> None:
    make(client, embeddings).add_documents(documents)
    again = CDEEmbeddings.from_qdrant(client, "papers", model=tiny_model)
    assert again.fingerprint == embeddings.fingerprint
    store = QdrantVectorStore(client, "papers", again, vector_name=again.vector_name)
    query = "the river of the delta"
    scores = (
        embeddings.embedder.embed_documents([d.page_content for d in documents])
        @ embeddings.embedder.embed_queries([query])[0]
    )
    expected = [documents[n].page_content for n in (-scores).argsort(kind="stable")[:4]]
    assert found(store, query) == expected
    assert [document.page_content for document in await store.asimilarity_search(query)] == expected
    assert len(store.max_marginal_relevance_search(query, 3)) == 3
    late = Filter(must=[FieldCondition(key="metadata.n", range=Range(gte=50))])
    assert {document.metadata["n"] >= 50 for document in store.similarity_search(query, filter=late)} == {True}


def test_from_documents_stores_the_context_with_the_first_write(
    documents: list[Document], embeddings: CDEEmbeddings, tiny_model: CDEModel, tmp_path: Path
) -> None:
    """Which sends "dummy_text" before all documents."""
    path, name = str(tmp_path / "folder"), embeddings.vector_name
    store = QdrantVectorStore.from_documents(
        documents, embeddings, path=path, collection_name="papers", vector_name=name
    )
    expected = found(store, "the river", k=100)
    assert len(expected) == 100
    store.client.close()
    client = QdrantClient(path=path)  # as the next process
    again = CDEEmbeddings.from_qdrant(client, "papers", model=tiny_model)
    assert again.fingerprint == embeddings.fingerprint
    assert found(QdrantVectorStore(client, "papers", again, vector_name=name), "the river", k=100) == expected
    client.close()


def test_through_a_cache_and_the_index_function(
    client: QdrantClient, documents: list[Document], embeddings: CDEEmbeddings
) -> None:
    from langchain_classic.embeddings import CacheBackedEmbeddings

    store = make(client, embeddings)
    cache = CacheBackedEmbeddings.from_bytes_store(
        embeddings, InMemoryByteStore(), namespace=embeddings.cache_namespace(), key_encoder="sha256"
    )
    cached = QdrantVectorStore(client, "papers", cache, vector_name=embeddings.vector_name)
    ids = {"key_encoder": lambda document: f"00000000-0000-0000-0000-{document.metadata['n']:012}"}
    with pytest.raises(ContextError, match="record manager"):
        index(documents, InMemoryRecordManager("papers"), cached, **ids)
    index(documents, InMemoryRecordManager(embeddings.record_namespace("papers")), cached, **ids)
    assert found(cached, "the river", k=7) == found(store, "the river", k=7)
    with pytest.raises(ContextError, match=REMEDY):
        QdrantVectorStore(client, "papers", cache, validate_collection_config=False).similarity_search("a")


def test_without_a_context_nothing_is_made_of_the_dummy(client: QdrantClient, documents: list[Document]) -> None:
    line = r"CDEEmbeddings\.from_documents\(documents\).*from_documents\(.*vector_name=embeddings\."
    with pytest.raises(ContextMissingError, match=line):
        QdrantVectorStore.from_documents(documents, CDEEmbeddings(), location=":memory:")
    client.create_collection("papers", vectors_config=VectorParams(size=16, distance=Distance.COSINE))
    with pytest.raises(ContextMissingError, match="from_documents"):
        QdrantVectorStore(client, "papers", CDEEmbeddings())
    with pytest.raises(ContextMissingError, match=r"papers.*embeddings\.save_to_qdrant\("):
        CDEEmbeddings.from_qdrant(client, "papers")


def test_a_vector_without_our_name_is_refused(
    client: QdrantClient, documents: list[Document], embeddings: CDEEmbeddings
) -> None:
    for name in ({}, {"vector_name": "dense"}):
        with pytest.raises(ContextError, match=REMEDY):
            QdrantVectorStore.from_documents(documents, embeddings, location=":memory:", **name)
    client.create_collection("foreign", vectors_config=VectorParams(size=16, distance=Distance.COSINE))
    with pytest.raises(ContextError, match=REMEDY):
        QdrantVectorStore(client, "foreign", embeddings)
    unchecked = QdrantVectorStore(
        client, "foreign", embeddings, validate_embeddings=False, validate_collection_config=False
    )
    for call in (lambda: unchecked.add_documents(documents), lambda: unchecked.similarity_search("a")):
        with pytest.raises(ContextError, match=REMEDY):
            call()
    assert client.count("foreign").count == 0


def test_the_older_class_too(documents: list[Document], embeddings: CDEEmbeddings) -> None:
    with pytest.raises(ContextError, match=REMEDY):
        Qdrant.from_documents(documents, embeddings, location=":memory:")


async def test_another_context_is_refused(
    client: QdrantClient, documents: list[Document], embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    make(client, embeddings).add_documents(documents)
    with pytest.raises(QdrantVectorStoreError, match=f"Did you mean .*{embeddings.vector_name}"):
        QdrantVectorStore(client, "papers", others, vector_name=others.vector_name)
    with pytest.raises(ContextError, match=REMEDY):
        QdrantVectorStore(client, "papers", others, vector_name=embeddings.vector_name)
    forced = QdrantVectorStore(
        client, "papers", others, vector_name=embeddings.vector_name, validate_collection_config=False
    )
    for call in (forced.asimilarity_search, forced.amax_marginal_relevance_search):
        with pytest.raises(ContextError, match=REMEDY):
            await call("a")
    with pytest.raises(ContextError, match=REMEDY):
        await forced.aadd_documents(documents)


def test_of_several_contexts_one_has_to_be_named(
    client: QdrantClient, embeddings: CDEEmbeddings, others: CDEEmbeddings, tiny_model: CDEModel
) -> None:
    for each in (embeddings, others):
        each.save_to_qdrant(client, "papers")
    with pytest.raises(ContextMissingError, match=r"found 2: .*fingerprint=…"):
        CDEEmbeddings.from_qdrant(client, "papers", model=tiny_model)
    with pytest.raises(ContextMissingError, match=r"embeddings\.save_to_qdrant\("):
        CDEEmbeddings.from_qdrant(client, "papers", fingerprint="0" * 64)
    for each in (embeddings, others):
        named = CDEEmbeddings.from_qdrant(client, "papers", fingerprint=each.fingerprint, model=tiny_model)
        assert named.embed_query("a") == each.embed_query("a")
