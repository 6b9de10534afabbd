"""CDEVectorStore and CDERetriever: LangChain's calls, the core Collection's answers."""

import asyncio
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from tiny import tiny_cde_model

from cde_rag import CDEModel, Collection, ContextualEmbedder, Record
from cde_rag.errors import (
    ContextError,
    ContextMismatchError,
    CorpusError,
    FilterError,
    SmallContextWarning,
    StoreError,
    TruncationError,
    TruncationWarning,
)
from cde_rag.search import searcher
from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDERetriever, CDEVectorStore


@pytest.fixture
def documents(texts: list[str]) -> list[Document]:
    """Thirty passages of three sources, the last of them without one."""
    return [
        Document(id=f"d{n}", page_content=text, metadata={"source": f"s{n % 3}", "n": n} if n % 3 < 2 else {"n": n})
        for n, text in enumerate(texts[:30])
    ]


@pytest.fixture
def store(documents: list[Document], embeddings: CDEEmbeddings, tmp_path: Path) -> Iterator[CDEVectorStore]:
    made = CDEVectorStore.from_documents(documents, embeddings, store=FaissStore(tmp_path / "store"))
    yield made
    made.collection.close()


@pytest.fixture
def empty(embeddings: CDEEmbeddings, tmp_path: Path) -> Iterator[CDEVectorStore]:
    made = CDEVectorStore.from_texts([], embeddings, store=FaissStore(tmp_path / "empty"))
    yield made
    made.collection.close()


def ids(found: list[Document]) -> list[str | None]:
    return [document.id for document in found]


# What is stored


def test_documents_may_wait_for_their_vectors(
    documents: list[Document], store: CDEVectorStore, embeddings: CDEEmbeddings, tmp_path: Path
) -> None:
    later = CDEVectorStore.from_documents(documents[:20], embeddings, store=tmp_path / "later", embed="later")
    later.add_documents(documents[20:], embed="later")
    assert later.collection.pending == 30
    word = documents[7].page_content.rsplit(maxsplit=1)[-1]  # a number that no other text has
    assert ids(later.hybrid_search(word, 1)) == ["d7"]
    later.collection.embed_pending()
    fingerprint, names = store.collection.embedder.fingerprint, [f"d{n}" for n in range(30)]
    made, first = (each.collection.store.vectors(names, fingerprint=fingerprint) for each in (later, store))
    np.testing.assert_allclose(made, first, atol=1e-6)
    later.collection.close()


def test_siblings_are_the_documents_of_the_same_source(
    store: CDEVectorStore, documents: list[Document], embeddings: CDEEmbeddings
) -> None:
    texts = [document.page_content for document in documents]
    with_parents = embeddings.embedder.embed_documents(
        texts, parents=[document.metadata.get("source") for document in documents]
    )
    stored = store.collection.store.vectors(
        [f"d{n}" for n in range(30)], fingerprint=store.collection.embedder.fingerprint
    )
    np.testing.assert_allclose(stored, with_parents, atol=1e-6)
    assert np.abs(stored - np.array(embeddings.embed_documents(texts))).max() > 1e-3
    assert store.collection.parent_key == "source"


@pytest.mark.parametrize("parent_key", ["book", None])
def test_another_parent_key_or_none(
    parent_key: str | None, documents: list[Document], embeddings: CDEEmbeddings, tmp_path: Path
) -> None:
    made = CDEVectorStore.from_documents(documents, embeddings, store=FaissStore(tmp_path / "c"), parent_key=parent_key)
    assert made.collection.parent_key == parent_key
    np.testing.assert_allclose(
        made.collection.store.vectors(["d0"], fingerprint=made.collection.embedder.fingerprint),
        embeddings.embed_documents([documents[0].page_content]),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("given", "more"),
    [
        (["a", " "], {}),
        (["a", "b"], {"metadatas": [{}]}),
        (["a", "b"], {"ids": ["1", "1"]}),
        (["a"], {"metadatas": [{"when": object()}]}),
        (["a"], {"metadatas": [{"source": 1.5}]}),
    ],
)
def test_a_refused_call_makes_no_collection(
    given: list[str], more: dict[str, Any], embeddings: CDEEmbeddings, tmp_path: Path
) -> None:
    """An empty one would refuse the right call."""
    with pytest.raises(CorpusError):
        CDEVectorStore.from_texts(given, embeddings, store=tmp_path / "c.faiss", **more)
    assert CDEVectorStore.from_texts(["a"], embeddings, store=tmp_path / "c.faiss").collection.count() == 1


def test_ids_that_are_given_stay_and_others_are_made(empty: CDEVectorStore) -> None:
    made = empty.add_texts(["a fish", "a boat", "a bank"], [{"n": 1}, {"n": 2}, {"n": 3}], ids=["mine", None, "3"])
    assert made[0] == "mine"
    assert made[2] == "3"
    assert len(set(made)) == 3
    assert empty.get_by_ids(made) == [
        Document(id=made[0], page_content="a fish", metadata={"n": 1}),
        Document(id=made[1], page_content="a boat", metadata={"n": 2}),
        Document(id=made[2], page_content="a bank", metadata={"n": 3}),
    ]


def test_the_same_text_twice_is_two_documents_without_ids_and_one_with(empty: CDEVectorStore) -> None:
    """As in LangChain's own stores: an id that was not given is new."""
    assert len(set(empty.add_texts(["a fish", "a fish"]) + empty.add_texts(["a fish"]))) == 3
    assert empty.collection.count() == 3
    empty.add_texts(["a bank"], ids=["same"])
    empty.add_texts(["a bank", "a boat"], ids=["same", "other"])
    assert empty.collection.count() == 5
    empty.add_texts(["a river"], ids=["same"])
    assert empty.get_by_ids(["same"]) == [Document(id="same", page_content="a river")]
    assert empty.collection.count() == 5


def test_texts_from_anything_that_can_be_read_once(empty: CDEVectorStore) -> None:
    assert len(empty.add_texts(text for text in ("a", "b"))) == 2
    assert empty.add_texts([]) == []
    assert empty.collection.count() == 2


def test_metadata_with_an_exact_json_value_are_stored(empty: CDEVectorStore) -> None:
    metadata = {"size": np.float32(0.5), "pages": np.int64(3), "row": np.array([1, 2])}
    (id_,) = empty.add_documents([Document(page_content="a", metadata=metadata)])
    assert empty.get_by_ids([id_])[0].metadata == {"size": 0.5, "pages": 3, "row": [1, 2]}


def test_what_cannot_be_stored_is_refused_with_its_place(empty: CDEVectorStore) -> None:
    with pytest.raises(CorpusError, match=r"Text 1 is .*blank"):
        empty.add_texts(["a", " "], ids=["x", "y"])
    with pytest.raises(CorpusError, match="equally many"):
        empty.add_texts(["a", "b"], [{}])
    with pytest.raises(CorpusError, match="equally many"):
        empty.add_texts(["a", "b"], ids=["x"])
    with pytest.raises(CorpusError, match="JSON"):
        empty.add_texts(["a"], [{"when": object()}])
    for value, message in [(float("nan"), "when is nan"), ({1}, "when is of the type set, .*; give a list")]:
        with pytest.raises(CorpusError, match=message):
            empty.add_documents([Document(page_content="a", metadata={"when": value})])
    with pytest.raises(TypeError, match="list"):
        empty.add_texts("a text")
    with pytest.raises(CorpusError, match="equally many"):
        empty.add_texts(["a", "b"], ids=[])
    with pytest.raises(CorpusError, match="equally many"):
        empty.add_texts(["a", "b"], [])
    with pytest.raises(CorpusError, match="id is empty"):
        empty.add_texts(["a"], ids=[""])
    assert empty.collection.count() == 0


def test_delete(store: CDEVectorStore) -> None:
    assert store.delete(["d0", "unknown"]) is True
    assert store.collection.count() == 29
    assert store.delete([]) is True
    assert store.collection.count() == 29
    for everything in ({}, {"and": []}, {"not": {"n": {"in": []}}}, {"or": [{"n": 1}, {}]}):
        with pytest.raises(FilterError, match=r"call delete\(\)"):
            store.delete(filter=everything)
    assert store.collection.count() == 29
    store.delete(filter={"n": {"lt": 10}})
    assert store.collection.count() == 20
    with pytest.raises(ValueError, match="exactly one"):
        store.delete(["d1"], filter={"n": 1})
    with pytest.raises(ValueError, match="The filter is None"):
        store.delete(filter=None)
    assert store.delete(["unknown"], filter=None) is True
    assert store.collection.count() == 20
    store.delete()
    assert store.collection.count() == 0


# What is found


def test_answers_are_the_cores(store: CDEVectorStore) -> None:
    query, where = "the bank of the delta", {"n": {"gte": 5}}
    hits = store.collection.search(query, 7, by="vectors", where=where)
    scored = store.similarity_search_with_score(query, 7, filter=where)
    assert [(document.id, document.page_content, document.metadata, score) for document, score in scored] == [
        (hit.id, hit.text, hit.metadata, hit.score) for hit in hits
    ]
    found = [document for document, _ in scored]
    vector = store.embeddings.embed_query(query)
    assert store.similarity_search(query, 7, filter=where) == found
    assert store.similarity_search_by_vector(vector, 7, filter=where) == found
    assert store.similarity_search_by_vector([*vector], 7, filter=where) == found
    assert store.search(query, "similarity", k=7, filter=where) == found
    assert len(store.similarity_search(query)) == 4


def test_relevance_is_the_cosine_from_nought_to_one(store: CDEVectorStore) -> None:
    scored = store.similarity_search_with_score("a fish", 30)
    relevant = store.similarity_search_with_relevance_scores("a fish", 30)
    assert [score for _, score in relevant] == pytest.approx([(1 + score) / 2 for _, score in scored])
    kept = store.similarity_search_with_relevance_scores("a fish", 30, score_threshold=relevant[4][1])
    assert [document.id for document, _ in kept] == [document.id for document, _ in relevant[:5]]


def test_rounding_does_not_lead_out_of_the_scale(store: CDEVectorStore) -> None:
    """LangChain warns of a relevance of 1.0000001."""
    relevance = store._select_relevance_score_fn()
    assert [relevance(1 + 1e-6), relevance(-1 - 1e-6), relevance(0.0)] == [1, 0, 0.5]


@pytest.mark.parametrize("lambda_mult", [0.0, 0.3, 1.0])
def test_diverse_search_is_the_cores(store: CDEVectorStore, lambda_mult: float) -> None:
    query, where = "the bank of the delta", {"n": {"gte": 5}}
    hits = store.collection.search_diverse(query, 4, candidates=15, diversity=1 - lambda_mult, where=where)
    settings = {"k": 4, "fetch_k": 15, "lambda_mult": lambda_mult, "filter": where}
    found = store.max_marginal_relevance_search(query, **settings)
    assert ids(found) == [hit.id for hit in hits]
    assert store.max_marginal_relevance_search_by_vector(store.embeddings.embed_query(query), **settings) == found
    assert store.search(query, "mmr", **settings) == found
    assert (found == store.similarity_search(query, 4, filter=where)) == (lambda_mult == 1)


def test_diverse_search_of_nothing(empty: CDEVectorStore) -> None:
    assert empty.max_marginal_relevance_search("a") == []
    assert empty.max_marginal_relevance_search_by_vector(empty.embeddings.embed_query("a")) == []


def test_no_search_is_for_no_documents(store: CDEVectorStore) -> None:
    vector = store.embeddings.embed_query("a")
    for search, query in (
        (store.similarity_search, "a"),
        (store.similarity_search_by_vector, vector),
        (store.max_marginal_relevance_search, "a"),
        (store.max_marginal_relevance_search_by_vector, vector),
    ):
        with pytest.raises(ValueError, match="k must be at least 1, not 0"):
            search(query, k=0)
    with pytest.raises(ValueError, match="fetch_k must be at least 1, not 0"):
        store.max_marginal_relevance_search_by_vector(vector, fetch_k=0)


def test_filters_are_those_of_the_core(store: CDEVectorStore) -> None:
    found = store.similarity_search("a", 30, filter={"or": [{"source": "s1"}, {"n": {"in": [0, 2]}}]})
    assert sorted(document.metadata["n"] for document in found) == sorted([0, 2, *range(1, 30, 3)])
    with pytest.raises(FilterError, match="expected an operator"):
        store.similarity_search("a", filter={"n": {"$gt": 3}})


def test_an_argument_that_is_not_known_is_an_error(store: CDEVectorStore) -> None:
    with pytest.raises(TypeError, match="fliter"):
        store.similarity_search("a", fliter={"n": 1})  # type: ignore[call-arg]


async def test_async_gives_the_same(store: CDEVectorStore) -> None:
    query, vector = "the bank", store.embeddings.embed_query("the bank")
    assert await store.asimilarity_search(query, 5) == store.similarity_search(query, 5)
    assert await store.asimilarity_search_with_score(query, 5) == store.similarity_search_with_score(query, 5)
    assert await store.asimilarity_search_by_vector(vector, 5) == store.similarity_search_by_vector(vector, 5)
    relevant = store.similarity_search_with_relevance_scores(query, 5)
    assert await store.asimilarity_search_with_relevance_scores(query, 5) == relevant
    diverse = store.max_marginal_relevance_search(query, 5, filter={"n": {"lt": 20}})
    assert await store.amax_marginal_relevance_search(query, 5, filter={"n": {"lt": 20}}) == diverse
    diverse = store.max_marginal_relevance_search_by_vector(vector, 5)
    assert await store.amax_marginal_relevance_search_by_vector(vector, 5) == diverse
    assert await store.aget_by_ids(["d1"]) == store.get_by_ids(["d1"])
    assert await store.adelete(["d1"]) is True
    assert await store.aget_by_ids(["d1"]) == []


async def test_many_at_once_lose_nothing(documents: list[Document], embeddings: CDEEmbeddings, tmp_path: Path) -> None:
    empty = await CDEVectorStore.afrom_texts([], embeddings, store=FaissStore(tmp_path / "c"), parent_key="source")
    added = await asyncio.gather(*(empty.aadd_documents([document]) for document in documents))
    assert [one for (one,) in added] == ids(documents)
    whole = await CDEVectorStore.afrom_documents(
        list(empty.get_by_ids([record.id for record in empty.collection.scroll()])),
        embeddings,
        store=FaissStore(tmp_path / "d"),
    )
    wanted = [f"d{n}" for n in range(30)]
    np.testing.assert_allclose(
        empty.collection.store.vectors(wanted, fingerprint=empty.collection.embedder.fingerprint),
        whole.collection.store.vectors(wanted, fingerprint=whole.collection.embedder.fingerprint),
        atol=1e-6,
    )


# Retrievers


async def test_both_retrievers_give_what_the_core_finds(store: CDEVectorStore) -> None:
    query, where = "the bank of the delta", {"n": {"gte": 5}}
    hits = [hit.id for hit in store.collection.search(query, 6, where=where)]
    own = CDERetriever(collection=store.collection, k=6, filter=where)
    for retriever in (own, store.as_retriever(search_kwargs={"k": 6, "filter": where})):
        assert ids(retriever.invoke(query)) == hits
        assert ids(await retriever.ainvoke(query)) == hits
        assert ids(retriever.invoke(query, k=2)) == hits[:2]
        assert ids(await retriever.ainvoke(query, k=2)) == hits[:2]
    other = [hit.id for hit in store.collection.search(query, 6, where={"n": 7})]
    assert ids(own.invoke(query, filter={"n": 7})) == ids(await own.ainvoke(query, filter={"n": 7})) == other
    assert len(CDERetriever(collection=store.collection).invoke(query)) == 4


def test_a_retriever_hands_on_a_reranker(store: CDEVectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def shortest(pairs: list[tuple[str, str]]) -> list[int]:
        return [-len(text) for _, text in pairs]

    monkeypatch.setattr(searcher, "named_reranker", {"short": shortest}.__getitem__)
    query = "the bank of the delta"
    for search_type, by in (("hybrid", "hybrid"), ("similarity", "vectors")):
        hits = [hit.id for hit in store.collection.search(query, 4, by=by, rerank=shortest)]
        retriever = CDERetriever(collection=store.collection, search_type=search_type, rerank="short")
        assert ids(retriever.invoke(query)) == hits
        assert hits != [hit.id for hit in store.collection.search(query, 4, by=by)]


def test_the_other_ways_of_as_retriever(store: CDEVectorStore) -> None:
    diverse = store.as_retriever(search_type="mmr", search_kwargs={"k": 3, "fetch_k": 9, "lambda_mult": 0.2})
    assert diverse.invoke("a") == store.max_marginal_relevance_search("a", 3, fetch_k=9, lambda_mult=0.2)
    settings = {"score_threshold": 0.5, "k": 30}
    above = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=settings).invoke("a")
    assert above == [document for document, score in store.similarity_search_with_score("a", 30) if score >= 0]


def test_a_retriever_refuses_settings_that_it_does_not_have(store: CDEVectorStore) -> None:
    with pytest.raises(TypeError, match=r"^CDERetriever has no argument 'top_k': write k=… for it\.$"):
        CDERetriever(collection=store.collection, top_k=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^CDERetriever: collection has to be an instance of Collection, found <"):
        CDERetriever(collection=store)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^CDERetriever needs the argument 'collection'\. Give it\.$"):
        CDERetriever()  # type: ignore[call-arg]


def test_a_collection_made_without_langchain(embeddings: CDEEmbeddings, tmp_path: Path) -> None:
    collection = Collection.create(FaissStore(tmp_path / "c"), embeddings.embedder)
    collection.add_records([Record("1", "a fish", title="Rivers", metadata={"n": 1}), Record("2", "a boat")])
    found = CDEVectorStore(collection).get_by_ids(["1", "2"])
    assert found == [
        Document(id="1", page_content="a fish", metadata={"title": "Rivers", "n": 1}),
        Document(id="2", page_content="a boat"),
    ]
    found[0].metadata["n"] = 2
    assert collection.get(["1"])[0].metadata == {"n": 1}
    assert sorted(ids(CDERetriever(collection=collection).invoke("a fish"))) == ["1", "2"]


@pytest.mark.parametrize("again", ["same", "changed", "without"])
def test_documents_of_records_with_titles_are_added_again(
    embeddings: CDEEmbeddings, tmp_path: Path, again: str
) -> None:
    collection = Collection.create(FaissStore(tmp_path / "c"), embeddings.embedder)
    records = [Record("1", "a fish", "Rivers", {"n": 1}), Record("2", "a bank", "Loans", {"title": "mine"})]
    collection.add_records(records)
    store = CDEVectorStore(collection)
    documents = store.get_by_ids(["1", "2"])
    expected = records
    if again == "changed":
        documents[0].metadata |= {"title": "Seas"}
        expected = [replace(records[0], title="Seas"), records[1]]
    if again == "without":
        del documents[0].metadata["title"]
    store.add_documents(documents)
    assert collection.get(["1", "2"]) == expected
    assert [each.metadata["title"] for each in store.get_by_ids(["1", "2"])] == [expected[0].title, "mine"]


def test_any_key_can_be_filtered(empty: CDEVectorStore) -> None:
    names = {"file.type": "file.type", "and": ".and", "not": ".not", "": "", "$in": "$in", "eq": "eq"}
    empty.add_texts(["a text"] * len(names), [{key: 1} for key in names], ids=[f"of {key}" for key in names])
    for key, name in names.items():
        assert ids(empty.similarity_search("a", 9, filter={name: 1})) == [f"of {key}"]


# The function `index`


def test_index_adds_updates_and_cleans_up(documents: list[Document], empty: CDEVectorStore) -> None:
    records = InMemoryRecordManager(empty.embeddings.record_namespace("papers"))
    settings = {"cleanup": "full", "key_encoder": "sha256", "batch_size": 7}
    assert index(documents, records, empty, **settings)["num_added"] == 30
    again = index([*documents[1:], Document(page_content="a new one")], records, empty, **settings)
    assert again == {"num_added": 1, "num_updated": 0, "num_skipped": 29, "num_deleted": 1}
    assert empty.collection.count() == 30
    assert empty.similarity_search("a", 30, filter={"n": 0}) == []


async def test_index_async(documents: list[Document], empty: CDEVectorStore) -> None:
    records = InMemoryRecordManager(empty.embeddings.record_namespace("papers"))
    assert (await aindex(documents, records, empty, key_encoder="sha256"))["num_added"] == 30
    assert empty.collection.count() == 30


async def test_index_needs_a_record_manager_of_the_context(
    documents: list[Document], empty: CDEVectorStore, others: CDEEmbeddings
) -> None:
    for namespace in ("papers", others.record_namespace("papers")):
        records = InMemoryRecordManager(namespace)
        with pytest.raises(ContextError, match=r"namespace=embeddings\.record_namespace\("):
            index(documents, records, empty, key_encoder="sha256")
        with pytest.raises(ContextError, match=r"namespace=embeddings\.record_namespace\("):
            await aindex(documents, records, empty, key_encoder="sha256")
        assert records.list_keys() == []
    assert empty.collection.count() == 0


async def test_index_skips_nothing_for_what_another_context_has_seen(
    store: CDEVectorStore, documents: list[Document], others: CDEEmbeddings, tmp_path: Path
) -> None:
    """Nothing would be embedded then, or an empty collection stay empty."""
    records, settings = InMemoryRecordManager(store.embeddings.record_namespace("papers")), {"key_encoder": "sha256"}
    index(documents, records, store, **settings)
    elsewhere = CDEVectorStore.from_texts([], others, store=FaissStore(tmp_path / "elsewhere"))
    swap(tmp_path / "store", others)
    for destination in (elsewhere, store):
        with pytest.raises(ContextError, match="record manager"):
            index(documents, records, destination, **settings)
        with pytest.raises(ContextError, match="record manager"):
            await aindex(documents, records, destination, **settings)
        with pytest.raises(ContextError, match="record manager"):
            index([], records, destination, cleanup="full", **settings)
    assert len(records.list_keys()) == 30
    right = InMemoryRecordManager(others.record_namespace("papers"))
    assert index(documents, right, elsewhere, **settings)["num_added"] == elsewhere.collection.count() == 30


def test_index_goes_on_after_a_new_context_in_the_order_that_the_readme_tells(
    empty: CDEVectorStore, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"cleanup": "full", "key_encoder": "sha256"}
    old = empty.embeddings.record_namespace("papers")
    records = InMemoryRecordManager(old)
    index(documents, records, empty, **settings)
    index(documents[1:], records, empty, **settings)
    with pytest.warns(SmallContextWarning):
        empty.collection.recontextualize(seed=1)
    records = InMemoryRecordManager(empty.embeddings.record_namespace(old))
    before = {record.id for record in empty.collection.scroll()}
    with monkeypatch.context() as without:
        without.setattr(ContextualEmbedder, "embed_passages", lambda *_: pytest.fail("embedded again"))
        index(documents[1:], records, empty, **settings)
    assert {record.id for record in empty.collection.scroll()} == before
    assert index(documents[2:], records, empty, **settings)["num_deleted"] == 1
    assert empty.collection.count() == 28


# Contexts that must not meet


def test_a_store_makes_the_context_of_its_documents(
    documents: list[Document], tiny_model: CDEModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = CDEEmbeddings.from_texts
    monkeypatch.setattr(CDEEmbeddings, "from_texts", lambda texts: make(texts, model=tiny_model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallContextWarning)
        expected = make([document.page_content for document in documents], model=tiny_model)
        store = CDEVectorStore.from_documents(documents, CDEEmbeddings(), store=FaissStore(tmp_path / "c"))
    assert store.embeddings.fingerprint == expected.fingerprint


def test_a_store_without_documents_moves_when_there_are_enough(tmp_path: Path) -> None:
    store = CDEVectorStore.from_documents([], CDEEmbeddings(), store=tmp_path / "c.faiss")
    texts = [f"Note {number}: {number * 7} men went to sea." for number in range(64)]
    assert store.similarity_search("sea") == []
    store.add_texts(texts[:63])
    assert store.collection.inspect().context_source == "null"
    store.add_texts(texts[63:])
    assert store.collection.inspect().context_documents_seen == 64
    moved = store.embeddings.fingerprint
    store.add_texts(["one more"])
    assert store.embeddings.fingerprint == moved
    with Collection.open(tmp_path / "c.faiss") as opened:
        assert opened.store.manifest().settings["moves_at"] == 512
        assert opened.search("qqqqzzzz") == []
    store.collection.close()


def test_a_store_is_made_of_what_it_can_use_or_not_at_all(documents: list[Document], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"DeterministicFakeEmbedding.*CDEEmbeddings\.from_documents"):
        CDEVectorStore.from_documents(documents, DeterministicFakeEmbedding(size=16), store=FaissStore(tmp_path / "c"))
    assert not FaissStore(tmp_path / "c").exists()


def test_a_path_or_a_store_is_not_taken_for_a_collection(embeddings: CDEEmbeddings, tmp_path: Path) -> None:
    for wrong in (str(tmp_path / "c"), tmp_path / "c", FaissStore(tmp_path / "c"), embeddings):
        with pytest.raises(TypeError, match=rf"found {type(wrong).__name__}\. .*Collection\.open\(\"papers\.faiss\"\)"):
            CDEVectorStore(wrong)  # type: ignore[arg-type]


def test_a_path_is_a_place_for_a_store(documents: list[Document], embeddings: CDEEmbeddings, tmp_path: Path) -> None:
    for number, path in enumerate((str(tmp_path / "a.faiss"), tmp_path / "b.qdrant")):
        made = CDEVectorStore.from_documents(documents, embeddings, store=path)
        assert made.collection.count() == len(documents)
        assert len(list(tmp_path.iterdir())) == number + 1
        made.collection.close()
    with pytest.raises(TypeError, match="found int"):
        CDEVectorStore.from_documents(documents, embeddings, store=5)  # type: ignore[arg-type]


def test_without_a_store_documents_are_kept_for_this_process(
    documents: list[Document], embeddings: CDEEmbeddings, store: CDEVectorStore
) -> None:
    made = CDEVectorStore.from_documents(documents, embeddings)
    assert made.similarity_search_with_score("river", 3) == store.similarity_search_with_score("river", 3)


@pytest.mark.parametrize(("named", "meant"), [("where", "filter"), ("top_k", "k"), ("filters", "filter")])
def test_a_keyword_of_another_library_is_answered_with_langchains(
    store: CDEVectorStore, named: str, meant: str
) -> None:
    for search in (store.similarity_search, store.hybrid_search, store.as_retriever(search_type="hybrid").invoke):
        with pytest.raises(TypeError, match=f"no argument '{named}': write {meant}=…"):
            search("river", **{named: 3})  # pyright: ignore[reportArgumentType]


def test_a_store_in_use_is_not_filled_from_another_context(
    store: CDEVectorStore, documents: list[Document], others: CDEEmbeddings, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=r"Open it with CDEVectorStore\(Collection\.open\(store\)\)"):
        CDEVectorStore.from_documents(documents, others, store=FaissStore(tmp_path / "store"))
    with pytest.raises(ContextMismatchError, match=r"Collection\.open"):
        CDEVectorStore(Collection(FaissStore(tmp_path / "store"), others.embedder))
    assert store.collection.count() == 30


def test_a_vector_of_another_context_finds_nothing(store: CDEVectorStore, others: CDEEmbeddings) -> None:
    foreign = others.embed_query("a fish")
    for search in (store.similarity_search_by_vector, store.max_marginal_relevance_search_by_vector):
        with pytest.raises(ContextMismatchError, match="`embeddings` of the vector store"):
            search(foreign)
    with pytest.raises(ContextMismatchError):
        store.similarity_search_by_vector(others.embed_documents(["a fish"])[0])
    with pytest.raises(ValueError, match="norm"):
        store.similarity_search_by_vector([2 * number for number in store.embeddings.embed_query("a")])
    with pytest.raises(ValueError, match="shape"):
        store.similarity_search_by_vector([1.0])


def swap(path: Path, embeddings: CDEEmbeddings) -> None:
    """Give a collection another context, as another process would."""
    other = FaissStore(path)
    rows = list(other.scroll())
    generation = other.create_generation(
        fingerprint=embeddings.fingerprint, context=embeddings.embedder.context.to_bytes()
    )
    vectors = embeddings.embedder.embed_documents([row.record.text for row in rows])
    other.add_to_generation(generation, rows, [row.digest for row in rows], vectors)
    other.activate(generation)
    other.close()


def test_an_open_store_follows_to_a_new_context_and_old_vectors_do_not(
    store: CDEVectorStore, others: CDEEmbeddings, tmp_path: Path
) -> None:
    before, query = store.embeddings, "the bank of the delta"
    records = InMemoryRecordManager(before.record_namespace("papers"))
    swap(tmp_path / "store", others)
    expected = [
        hit.id
        for (hits,) in [
            FaissStore(tmp_path / "store").search(
                others.embedder.embed_queries([query]), 4, fingerprint=others.fingerprint
            )
        ]
        for hit in hits
    ]
    assert ids(store.similarity_search(query)) == expected
    assert ids(store.as_retriever(search_type="similarity").invoke(query)) == expected
    assert ids(CDERetriever(collection=store.collection, search_type="similarity").invoke(query)) == expected
    assert store.embeddings.fingerprint == others.fingerprint
    assert ids(store.similarity_search_by_vector(store.embeddings.embed_query(query))) == expected
    with pytest.raises(ContextMismatchError, match="`embeddings` of the vector store"):
        store.similarity_search_by_vector(before.embed_query(query))
    with pytest.raises(ContextError, match="record manager"):
        index([Document(page_content="new")], records, store, key_encoder="sha256")


def test_a_store_that_was_moved_to_another_model_is_not_searched(store: CDEVectorStore, tmp_path: Path) -> None:
    swap(tmp_path / "store", CDEEmbeddings.from_texts(map(str, range(100)), model=tiny_cde_model(seed=1)))
    for stale in (
        lambda: store.similarity_search("a"),
        lambda: store.max_marginal_relevance_search("a"),
        lambda: store.add_texts(["new"]),
        lambda: store.as_retriever().invoke("a"),
        lambda: CDERetriever(collection=store.collection).invoke("a"),
    ):
        with pytest.raises(ContextMismatchError, match="load that model"):
            stale()


# Hybrid search


QUERY = "the river bank and a loan"


def test_hybrid_by_name_is_the_hybrid_search_of_the_collection(store: CDEVectorStore) -> None:
    hits = store.collection.search(QUERY, 7, by="hybrid")
    assert [hit.id for hit in hits] != [hit.id for hit in store.collection.search(QUERY, 7, by="vectors")]
    expected = [hit.id for hit in hits]
    assert ids(store.hybrid_search(QUERY, 7)) == expected
    assert ids(asyncio.run(store.ahybrid_search(QUERY, 7))) == expected
    assert ids(store.search(QUERY, "hybrid", k=7)) == expected
    assert ids(asyncio.run(store.asearch(QUERY, "hybrid", k=7))) == expected
    retriever = store.as_retriever(search_type="hybrid", search_kwargs={"k": 7})
    assert ids(retriever.invoke(QUERY)) == expected
    assert ids(asyncio.run(retriever.ainvoke(QUERY))) == expected
    assert "CDEVectorStore" in (retriever.tags or [])
    of_collection = CDERetriever(collection=store.collection, k=7, search_type="hybrid")
    assert ids(of_collection.invoke(QUERY)) == expected
    assert [score for _, score in store.hybrid_search_with_score(QUERY, 7)] == [hit.score for hit in hits]


def test_hybrid_takes_filters_pages_thresholds_and_weights(store: CDEVectorStore) -> None:
    every = store.hybrid_search_with_score(QUERY, 30)
    assert ids(store.hybrid_search(QUERY, 3, offset=3)) == [one.id for one, _ in every[3:6]]
    floor = every[4][1]
    found = store.hybrid_search_with_score(QUERY, 30, score_threshold=floor)
    assert [one.id for one, _ in found] == [one.id for one, score in every if score >= floor]
    some = store.as_retriever(search_type="hybrid", search_kwargs={"k": 30, "filter": {"source": "s1"}}).invoke(QUERY)
    assert {one.metadata["source"] for one in some} == {"s1"}
    assert ids(store.hybrid_search(QUERY, 5, weight=1.0)) == ids(store.similarity_search(QUERY, 5))
    words = [hit.id for hit in store.collection.search(QUERY, 5, by="words")]
    assert ids(store.hybrid_search(QUERY, 5, weight=0.0)) == words
    with pytest.raises(ValueError, match="weight"):
        store.hybrid_search(QUERY, weight=1.5)
    with pytest.raises(TypeError, match="weight has to be less than or equal to 1"):
        CDERetriever(collection=store.collection, search_type="hybrid", weight=2.0)


def test_the_other_search_types_are_what_they_were(store: CDEVectorStore) -> None:
    assert ids(store.as_retriever().invoke(QUERY)) == ids(store.hybrid_search(QUERY))
    assert ids(store.as_retriever(search_type="similarity").invoke(QUERY)) == ids(store.similarity_search(QUERY))
    assert ids(store.search(QUERY, "mmr", k=3)) == ids(store.max_marginal_relevance_search(QUERY, 3))
    assert ids(asyncio.run(store.asearch(QUERY, "similarity", k=3))) == ids(store.similarity_search(QUERY, 3))
    with pytest.raises(ValueError, match="search_type of words"):
        store.as_retriever(search_type="words")


def test_long_texts_are_refused_with_the_splitters_setting(store: CDEVectorStore, embeddings: CDEEmbeddings) -> None:
    setting = r"RecursiveCharacterTextSplitter\(chunk_size=\d+, chunk_overlap=\d+\)"
    ids_before = {record.id for record in store.collection.scroll()}
    for add in (store.add_texts, embeddings.embed_documents):
        with pytest.raises(TruncationError, match=rf"would not be read.*{setting}.*windows=True"):
            add(["money " * 100, "a bank"])
        with pytest.warns(TruncationWarning, match=rf"1 of 40 texts .*{setting}") as told:
            add(["money " * 35, *["a bank by the river"] * 39])
        assert len(told) == 1  # and none of the core's
    assert len({record.id for record in store.collection.scroll()} - ids_before) == 40


def test_arguments_of_other_stores_are_answered_with_the_way_to_make_one(embeddings: CDEEmbeddings) -> None:
    with pytest.raises(TypeError, match=r"CDEVectorStore has no argument 'embedding_function': .*\.from_documents\("):
        CDEVectorStore(embedding_function=embeddings)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"CDEEmbeddings has no argument 'model': .*from_documents\(.*, model=…\)"):
        CDEEmbeddings(model="cde-mini")  # type: ignore[call-arg]
