"""Caches and record managers whose names do not tell the context are refused before they keep anything."""

import json
import re
from pathlib import Path

import pytest
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_classic.storage import LocalFileStore
from langchain_classic.storage.encoder_backed import EncoderBackedStore
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.stores import InMemoryByteStore, InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore

from cde_rag.errors import ContextError
from langchain_cde import CDEEmbeddings
from langchain_cde.space import Role

DOCUMENTS = [Document(page_content=f"a boat {n}", metadata={"source": "boats"}) for n in range(5)]
REMEDY = r"namespace=embeddings\.cache_namespace\(\)"


def cached(embeddings: CDEEmbeddings, store: InMemoryByteStore, namespace: str, **settings) -> CacheBackedEmbeddings:
    return CacheBackedEmbeddings.from_bytes_store(
        embeddings, store, namespace=namespace, key_encoder="sha256", **settings
    )


def with_queries(embeddings: CDEEmbeddings, queries: CDEEmbeddings, role: Role) -> CacheBackedEmbeddings:
    """A cache of queries too, under keys of the context of `queries`."""
    store = InMemoryByteStore()
    kept = EncoderBackedStore(store, (queries.cache_namespace(role) + "{}").format, json.dumps, json.loads)
    documents = cached(embeddings, store, embeddings.cache_namespace()).document_embedding_store
    return CacheBackedEmbeddings(embeddings, documents, query_embedding_store=kept)


def test_two_contexts_share_a_cache_and_keep_apart(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    store = InMemoryByteStore()
    for each in (embeddings, others):
        cache = cached(each, store, each.cache_namespace())
        assert cache.embed_documents(["a fish", "a bank"]) == each.embed_documents(["a fish", "a bank"])  # makes
        assert cache.embed_documents(["a fish", "a bank"]) == each.embed_documents(["a fish", "a bank"])  # finds
        assert cache.embed_query("a fish") == each.embed_query("a fish")
    assert len(list(store.yield_keys())) == 4


async def test_and_async(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    store = InMemoryByteStore()
    for each in (embeddings, others):
        cache = cached(each, store, each.cache_namespace())
        for _ in ("makes", "finds"):
            assert await cache.aembed_documents(["a fish", "a bank"]) == each.embed_documents(["a fish", "a bank"])
        assert await cache.aembed_query("a fish") == each.embed_query("a fish")


def test_the_namespace_is_good_for_files(embeddings: CDEEmbeddings, tmp_path: Path) -> None:
    cache = cached(embeddings, LocalFileStore(tmp_path), embeddings.cache_namespace())  # type: ignore[arg-type]
    for _ in ("makes", "finds"):
        assert cache.embed_documents(["a fish"]) == embeddings.embed_documents(["a fish"])
    assert len(list((tmp_path / "cde" / embeddings.fingerprint / "document").iterdir())) == 1


def test_a_cache_without_the_context_in_its_keys_is_refused(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    for namespace in ("", "cde-mini", others.cache_namespace(), embeddings.cache_namespace("query")):
        store = InMemoryByteStore()
        with pytest.raises(ContextError, match=REMEDY):
            cached(embeddings, store, namespace).embed_documents(["a fish"])
        assert list(store.yield_keys()) == []


async def test_a_cache_without_the_context_in_its_keys_is_refused_async(embeddings: CDEEmbeddings) -> None:
    store = InMemoryByteStore()
    with pytest.raises(ContextError, match=REMEDY):
        await cached(embeddings, store, "cde-mini").aembed_documents(["a fish"])
    assert list(store.yield_keys()) == []


def filled_by_another(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> CacheBackedEmbeddings:
    """A cache that has all documents, from another context: our embeddings are not asked for them."""
    store, namespace = InMemoryByteStore(), others.cache_namespace()
    expected = cached(others, store, namespace).embed_documents(["a fish"])
    cache = cached(embeddings, store, namespace)
    assert cache.embed_documents(["a fish"]) == expected  # the limit that README tells of
    return cache


def test_vectors_of_another_context_are_refused_with_the_first_query(
    embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    cache = filled_by_another(embeddings, others)
    for call in (lambda: cache.embed_query("a fish"), lambda: cache.embed_documents(["a fish", "a bank"])):
        with pytest.raises(ContextError, match=REMEDY):
            call()


async def test_vectors_of_another_context_are_refused_with_the_first_query_async(
    embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    with pytest.raises(ContextError, match=REMEDY):
        await filled_by_another(embeddings, others).aembed_query("a fish")


def test_texts_for_keys_are_refused(embeddings: CDEEmbeddings) -> None:
    store = InMemoryStore()
    with pytest.raises(ContextError, match=REMEDY):
        CacheBackedEmbeddings(embeddings, store).embed_documents(["a fish"])
    assert list(store.yield_keys()) == []


def test_a_query_does_not_come_out_as_a_document(embeddings: CDEEmbeddings) -> None:
    shared = cached(embeddings, InMemoryByteStore(), embeddings.cache_namespace(), query_embedding_cache=True)
    for call in (lambda: shared.embed_documents(["a fish"]), lambda: shared.embed_query("a fish")):
        with pytest.raises(ContextError, match=r"query vectors.*Leave query_embedding_cache out"):
            call()


def test_queries_may_have_a_cache_of_their_own(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    cache = with_queries(embeddings, embeddings, "query")
    cache.embed_documents(["a fish"])
    for _ in ("makes", "finds"):
        assert cache.embed_query("a fish") == embeddings.embed_query("a fish")
    with pytest.raises(ContextError, match="query vectors"):
        with_queries(embeddings, others, "query").embed_query("a fish")
    with pytest.raises(ContextError, match="query vectors"):
        with_queries(embeddings, embeddings, "document").embed_query("a fish")


def test_a_record_manager_of_no_context_is_refused_before_anything_is_stored(
    embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    for namespace in ("papers", others.record_namespace("papers")):
        records, store = InMemoryRecordManager(namespace=namespace), InMemoryVectorStore(embeddings)
        records.create_schema()
        with pytest.raises(ContextError, match=r"namespace=embeddings\.record_namespace\("):
            index(DOCUMENTS, records, store, key_encoder="sha256")
        assert records.list_keys() == []
        assert store.store == {}


def test_the_namespace_that_the_refusal_advises_is_the_right_one(
    embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    name = "the papers of a long shelf"
    for namespace in (name, others.record_namespace(name)):
        with pytest.raises(ContextError, match=re.escape(f"embeddings.record_namespace({name!r})")):
            index(DOCUMENTS, InMemoryRecordManager(namespace), InMemoryVectorStore(embeddings), key_encoder="sha256")


def test_in_a_new_context_nothing_is_skipped(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    kept: dict[str, InMemoryRecordManager] = {}  # what a database keeps by namespace
    added = []
    for each in (embeddings, embeddings, others):
        records = kept.setdefault(each.record_namespace("boats"), InMemoryRecordManager(each.record_namespace("boats")))
        result = index(DOCUMENTS, records, InMemoryVectorStore(each), key_encoder="sha256")
        added.append((result["num_added"], result["num_skipped"]))
    assert added == [(5, 0), (0, 5), (5, 0)]


async def test_index_async(embeddings: CDEEmbeddings) -> None:
    store = InMemoryVectorStore(embeddings)
    with pytest.raises(ContextError, match="record manager"):
        await aindex(DOCUMENTS, InMemoryRecordManager("boats"), store, key_encoder="sha256")
    records = InMemoryRecordManager(embeddings.record_namespace("boats"))
    result = await aindex(DOCUMENTS, records, store, key_encoder="sha256")
    assert result["num_added"] == 5
