"""CDEVectorStore keeps what LlamaIndex expects of a store, and lets no vector of another space in."""

import asyncio
import pickle  # noqa: TID251 - what LlamaIndex does with transformations for its worker processes
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings_server import running
from llama_index.core import Document, Settings, StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.schema import IndexNode, MetadataMode, NodeRelationship, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode
from llama_index.vector_stores.cde import CDEVectorStore, CollectionEmbedding

from cde_rag import CDEModel, CDEWarning, Collection, ContextualEmbedder, FunctionEmbedder, Record
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.errors import (
    ContextError,
    CorpusError,
    FilterError,
    SmallContextWarning,
    StoreError,
    TruncationError,
    TruncationWarning,
)
from cde_rag.search import searcher
from cde_rag.stores.faiss import FaissStore


def index_of(vector_store: CDEVectorStore) -> VectorStoreIndex:
    return VectorStoreIndex.from_vector_store(vector_store, embed_model=vector_store.embed_model)


def test_queries_hand_on_a_reranker(vector_store: CDEVectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def shortest(pairs: list[tuple[str, str]]) -> list[int]:
        return [-len(text) for _, text in pairs]

    monkeypatch.setattr(searcher, "named_reranker", {"short": shortest}.__getitem__)
    for mode, by in (("default", "vectors"), ("hybrid", "hybrid"), ("text_search", "bm25")):
        hits = vector_store.collection.search("money river", 5, by=by, rerank=shortest)
        query = VectorStoreQuery(query_str="money river", mode=VectorStoreQueryMode(mode), similarity_top_k=5)
        found = vector_store.query(query, rerank="short")
        assert (found.ids, found.similarities) == ([hit.id for hit in hits], [hit.score for hit in hits])
    with pytest.raises(ValueError, match="no keywords but mmr_threshold, mmr_prefetch_k; found"):
        vector_store.query(VectorStoreQuery(query_str="money", mode=VectorStoreQueryMode.MMR), rerank="short")


def test_a_collection_without_documents_has_the_model_of_an_api(
    documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with running() as server:
        store = CDEVectorStore.from_documents([], tmp_path / "essays.faiss", model=f"{server.url}#small")
        store.add([TextNode(text=document.text) for document in documents[:3]])
        assert len(store.query(VectorStoreQuery(query_str="money", similarity_top_k=2)).ids) == 2
        store.collection.close()


def test_nodes_may_wait_for_their_vectors(documents: list[Document], model: CDEModel, tmp_path: Path) -> None:
    store = CDEVectorStore.from_documents(documents[:15], tmp_path / "essays", model=model, embed="later")
    before = store.collection.pending
    assert before == len(store.get_nodes()) > 60
    index = index_of(store)
    index.insert_nodes([TextNode(text="quixotic zebra", id_="z")], embed="later")
    assert store.collection.pending == before + 1
    found = store.query(VectorStoreQuery(query_str="zebra", mode=VectorStoreQueryMode.HYBRID, similarity_top_k=1))
    assert found.ids == ["z"]
    store.collection.embed_pending()
    assert store.collection.pending == 0
    index.insert_nodes([TextNode(text="money river")])
    assert store.collection.pending == 0
    store.collection.close()


def test_it_is_a_vector_store() -> None:
    assert BasePydanticVectorStore in CDEVectorStore.__mro__
    assert CDEVectorStore.class_name() == "CDEVectorStore"


def test_every_node_is_embedded_given_its_siblings(vector_store: CDEVectorStore, model: CDEModel) -> None:
    nodes = vector_store.get_nodes()
    assert len(nodes) > 80
    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
    core = ContextualEmbedder.from_corpus(texts, model=model)
    found = vector_store.collection.store.vectors(
        [node.node_id for node in nodes], fingerprint=vector_store.collection.embedder.fingerprint
    )
    expected = core.embed_documents(texts, parents=[node.ref_doc_id for node in nodes])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - core.embed_documents(texts)).max() > 1e-2


def test_the_context_has_as_many_documents_as_the_model_expects(
    documents: list[Document], model: CDEModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model, "context_size", 70)
    store = CDEVectorStore.from_documents(documents, FaissStore(tmp_path / "essays.faiss"), model=model)
    with store.collection as collection:
        assert collection.inspect().context_size == 70


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_a_function_of_the_user_holds_nodes_with_or_without_siblings(tmp_path: Path, weight: float) -> None:
    def letters(texts: list[str]) -> list[list[float]]:
        return [[1.0 + text.count(chr(97 + letter)) for letter in range(26)] for text in texts]

    function = FunctionEmbedder(letters, name="letters-1")
    embedder = ArithmeticEmbedder.from_corpus([], model=function, weight=weight, corpus=False)
    store = CDEVectorStore.create(tmp_path / "letters.faiss", embedder)
    nodes = [TextNode(text=text, id_=text) for text in ("zebra", "quagga", "tapir")]
    for node in nodes:
        node.relationships[NodeRelationship.SOURCE] = Document(text="", id_="animals").as_related_node_info()
    store.add(nodes)
    store.collection.close()
    again = CDEVectorStore.open(str(tmp_path / "letters.faiss"), model=function)
    found = again.collection.store.vectors(["zebra"], fingerprint=embedder.fingerprint)
    parents = ["animals"] * 3 if weight else None
    np.testing.assert_allclose(found, embedder.embed_documents([n.text for n in nodes], parents=parents)[:1], atol=1e-6)
    assert index_of(again).as_retriever(similarity_top_k=1).retrieve("zebra zebra")[0].node.node_id == "zebra"


def test_a_retriever_answers_as_the_collection(vector_store: CDEVectorStore) -> None:
    retriever = index_of(vector_store).as_retriever(similarity_top_k=10)
    hits = vector_store.collection.search("interest of the loan", 10, by="vectors")
    assert [(hit.node_id, hit.score) for hit in retriever.retrieve("interest of the loan")] == [
        (hit.id, hit.score) for hit in hits
    ]
    found = asyncio.run(retriever.aretrieve("interest of the loan"))
    assert [hit.node_id for hit in found] == [hit.id for hit in hits]


def test_a_node_comes_back_as_it_was(vector_store: CDEVectorStore, documents: list[Document]) -> None:
    nodes = vector_store.get_nodes()
    middle = next(node for node in nodes if node.prev_node and node.next_node)
    (again,) = vector_store.get_nodes([middle.node_id])
    assert again == middle
    assert again.ref_doc_id in {document.id_ for document in documents}
    node = TextNode(
        text="money",
        id_="mine",
        metadata={"tags": ["a", "b"], "author": {"name": "Rush"}, "pages": 3, "draft": True, "none": None},
        excluded_embed_metadata_keys=["author", "tags", "draft", "none"],
        start_char_idx=4,
        relationships={NodeRelationship.SOURCE: Document(text="x", id_="source").as_related_node_info()},
    )
    vector_store.add([node])
    assert vector_store.get_nodes(["mine"]) == [node]
    assert vector_store.collection.get(["mine"])[0].text == node.get_content(metadata_mode=MetadataMode.EMBED)


def test_other_kinds_of_nodes_come_back_as_they_were(vector_store: CDEVectorStore) -> None:
    node = IndexNode(text="the delta", index_id="delta", id_="pointer")
    vector_store.add([node])
    (found,) = vector_store.get_nodes(["pointer"])
    assert isinstance(found, IndexNode)
    assert found.index_id == "delta"


def test_nodes_without_a_source_are_no_siblings(vector_store: CDEVectorStore) -> None:
    vector_store.add([TextNode(text="money loan", id_="one"), TextNode(text="river boat", id_="two")])
    alone = vector_store.collection.embedder.embed_documents(["money loan", "river boat"])
    np.testing.assert_allclose(
        vector_store.collection.store.vectors(["one", "two"], fingerprint=vector_store.collection.embedder.fingerprint),
        alone,
        atol=1e-5,
    )


def test_an_index_inserts_refreshes_and_deletes(vector_store: CDEVectorStore) -> None:
    index, count = index_of(vector_store), vector_store.collection.count()
    index.insert(Document(text="a fish in the delta", id_="new"))
    assert vector_store.collection.count({"ref_doc_id": "new"}) == 1
    index.update_ref_doc(Document(text="a boat in the flood", id_="new"))
    (node,) = vector_store.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value="new")]))
    assert node.get_content() == "a boat in the flood"
    index.delete_ref_doc("new")
    assert vector_store.collection.count() == count


def test_a_document_that_is_inserted_again_is_warned_of(vector_store: CDEVectorStore) -> None:
    index, document = index_of(vector_store), Document(text="Terns fly from pole to pole.", id_="terns")
    index.insert(document)
    with pytest.warns(CDEWarning, match=r"Found twice from now on: 1 node with texts .* index\.delete_ref_doc"):
        index_of(vector_store).refresh_ref_docs([document])
    index.delete_ref_doc("terns")
    index.insert(document)  # nothing is stored twice, so that nobody is warned
    assert [node.ref_doc_id for node in vector_store.get_nodes()].count("terns") == 1


async def test_an_index_inserts_and_deletes_async(vector_store: CDEVectorStore) -> None:
    index, count = index_of(vector_store), vector_store.collection.count()
    await index.ainsert(Document(text="a fish in the delta", id_="new"))
    assert vector_store.collection.count() == count + 1
    await index.adelete_ref_doc("new")
    assert vector_store.collection.count() == count
    node = (await vector_store.aget_nodes())[0]
    await vector_store.adelete_nodes([node.node_id])
    assert vector_store.get_nodes([node.node_id]) == []
    await vector_store.aclear()
    assert vector_store.collection.count() == 0


@pytest.mark.parametrize("use_async", [False, True])
async def test_an_index_builds_into_an_empty_collection(
    vector_store: CDEVectorStore, documents: list[Document], use_async: bool
) -> None:
    before = {node.get_content(): node.ref_doc_id for node in vector_store.get_nodes()}
    vector_store.clear()
    VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=vector_store),
        embed_model=vector_store.embed_model,
        use_async=use_async,
    )
    assert {node.get_content(): node.ref_doc_id for node in vector_store.get_nodes()} == before


def test_documents_are_embedded_once(
    vector_store: CDEVectorStore, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("embedded as strings")

    vector_store.clear()
    monkeypatch.setattr(ContextualEmbedder, "embed_documents", refuse)
    Settings.embed_model = vector_store.embed_model
    storage = StorageContext.from_defaults(vector_store=vector_store)
    VectorStoreIndex.from_documents(documents, storage_context=storage)
    pipeline = IngestionPipeline(
        transformations=[*Settings.transformations, vector_store.embed_model], vector_store=vector_store
    )
    pipeline.run(documents=[Document(text="a fish in the delta", id_="new")])
    assert vector_store.collection.count({"ref_doc_id": "new"}) == 1


async def test_a_pipeline_with_a_docstore_upserts(vector_store: CDEVectorStore) -> None:
    pipeline = IngestionPipeline(
        transformations=[*Settings.transformations, vector_store.embed_model],
        vector_store=vector_store,
        docstore=SimpleDocumentStore(),
    )
    count = vector_store.collection.count()
    for text in ("a fish in the delta", "a boat in the flood", "a boat in the flood"):
        await pipeline.arun(documents=[Document(text=text, id_="new")])
        pipeline.run(documents=[Document(text=text, id_="new")])
    assert vector_store.collection.count() == count + 1


def test_what_json_cannot_hold_is_refused(vector_store: CDEVectorStore) -> None:
    count = vector_store.collection.count()
    circle: list[object] = []
    circle.append(circle)
    refused: dict[object, str] = {
        object(): "d is of the type object",
        float("nan"): "d is nan, which JSON does not have; leave it out",
        np.float32("inf"): "d is inf",
        frozenset({"a", "b"}): "d is of the type frozenset, .*; give a list",
    }
    cases = [*refused.items(), ({"a"}, "d is of the type set"), ([{"e": np.nan}], "d is nan|e is nan"), (circle, "100")]
    for value, message in cases:
        odd = TextNode(id_="odd", text="money", metadata={"d": value})
        with pytest.raises(CorpusError, match=rf"^Node odd: metadata has to be a JSON object: .*{message}"):
            vector_store.add([TextNode(text="money"), odd])
    source = Document(text="x", id_="source", metadata={"d": {"a"}}).as_related_node_info()
    node = TextNode(id_="odd", text="money", relationships={NodeRelationship.SOURCE: source})
    with pytest.raises(CorpusError, match="Node odd: metadata of its source has to be a JSON object: d is of the type"):
        vector_store.add([node])
    assert vector_store.collection.count() == count


def test_metadata_with_an_exact_json_value_are_stored(vector_store: CDEVectorStore) -> None:
    metadata = {"size": np.float32(0.5), "pages": np.int64(3), "row": np.array([1, 2]), "day": date(2026, 11, 28)}
    source = Document(text="x", id_="source", metadata=metadata)
    related = {
        NodeRelationship.SOURCE: source.as_related_node_info(),
        NodeRelationship.CHILD: [TextNode(text="y", metadata=metadata).as_related_node_info()],
    }
    vector_store.add([TextNode(id_="mine", text="money", metadata=metadata, relationships=related)])
    (node,) = vector_store.get_nodes(["mine"])
    plain = {"size": 0.5, "pages": 3, "row": [1, 2], "day": "2026-11-28"}
    assert node.metadata == plain
    assert node.source_node is not None
    assert node.source_node.metadata == plain
    assert node.child_nodes is not None
    assert node.child_nodes[0].metadata == plain
    assert vector_store.collection.count({"pages": 3, "size": 0.5, "ref_doc_id": "source"}) == 1
    assert metadata["pages"].dtype == np.int64  # the caller's are as they were


def test_a_search_limited_to_records_of_another_program_is_refused(vector_store: CDEVectorStore) -> None:
    """They have no node's id in their metadata, so nothing would be found."""
    vector_store.collection.add_records([Record("foreign", "money money")])
    mine = vector_store.get_nodes()[0].node_id
    for node_ids in (["foreign"], [mine, "foreign"]):
        with pytest.raises(FilterError, match=r"1 of these node_ids .*'foreign'.*get_nodes\(node_ids\)"):
            vector_store.query(VectorStoreQuery(query_str="money", similarity_top_k=5, node_ids=node_ids))
    for node_ids in ([mine], [mine, "unknown"]):
        ask = VectorStoreQuery(query_str="money", similarity_top_k=5, node_ids=node_ids)
        assert vector_store.query(ask).ids == [mine]


def test_no_cache_keeps_what_the_embedding_of_a_collection_gives(vector_store: CDEVectorStore) -> None:
    cache, embedding, documents = IngestionCache(), vector_store.embed_model, [Document(text="money", id_="new")]
    IngestionPipeline(transformations=[embedding], vector_store=vector_store, cache=cache).run(documents=documents)
    other = IngestionPipeline(transformations=[embedding], vector_store=SimpleVectorStore(), cache=cache)
    with pytest.raises(ContextError, match="CDEEmbedding"):
        other.run(documents=documents)


@pytest.mark.parametrize("nodes", ["money", ["money"], TextNode(text="money")])
def test_only_nodes_are_added(vector_store: CDEVectorStore, nodes: Any) -> None:
    with pytest.raises(TypeError, match=r"add (expects|takes) a list of"):
        vector_store.add(nodes)


def test_foreign_vectors_are_not_taken(vector_store: CDEVectorStore) -> None:
    node = TextNode(text="money loan", id_="one", embedding=[1.0] + [0.0] * 15)
    with pytest.warns(CDEWarning, match=r"vector_store\.embed_model"):
        vector_store.add([node])
    own = vector_store.collection.embedder.embed_documents(["money loan"])
    np.testing.assert_allclose(
        vector_store.collection.store.vectors(["one"], fingerprint=vector_store.collection.embedder.fingerprint),
        own,
        atol=1e-5,
    )


class Unasked(MockEmbedding):
    """An embedding that nobody may ask."""

    def get_query_embedding(self, query: str) -> list[float]:
        raise AssertionError(query)


def test_an_index_without_an_embedding_answers(vector_store: CDEVectorStore) -> None:
    index = VectorStoreIndex.from_vector_store(vector_store, embed_model=Unasked(embed_dim=16))
    hits = index.as_retriever(similarity_top_k=5).retrieve("money")
    assert [hit.node_id for hit in hits] == [hit.id for hit in vector_store.collection.search("money", 5, by="vectors")]


def test_a_query_vector_is_not_taken(vector_store: CDEVectorStore) -> None:
    with pytest.raises(ValueError, match="query_str"):
        vector_store.query(VectorStoreQuery(query_embedding=[1.0] + [0.0] * 15, similarity_top_k=3))


def test_the_embedding_of_a_collection_goes_to_no_other_store(vector_store: CDEVectorStore) -> None:
    embedding = vector_store.embed_model
    with pytest.raises(ContextError, match="CDEEmbedding"):
        VectorStoreIndex([TextNode(text="money")], embed_model=embedding)
    for other in (SimpleVectorStore(), None):
        with pytest.raises(ContextError, match="CDEEmbedding"):
            IngestionPipeline(transformations=[embedding], vector_store=other).run(documents=[Document(text="money")])
    with pytest.raises(ContextError, match="num_workers"):
        pickle.dumps(embedding)


async def test_the_embedding_of_a_collection_embeds_for_others(vector_store: CDEVectorStore) -> None:
    embedding, core = vector_store.embed_model, vector_store.collection.embedder
    assert isinstance(embedding, CollectionEmbedding)
    assert embedding.get_query_embedding("money") == core.embed_queries(["money"])[0].tolist()
    assert await embedding.aget_query_embedding("money") == core.embed_queries(["money"])[0].tolist()
    assert embedding.get_text_embedding("money") == core.embed_documents(["money"])[0].tolist()
    assert embedding.get_text_embedding_batch(["money"]) == core.embed_documents(["money"]).tolist()
    assert await embedding.aget_text_embedding_batch(["money"]) == core.embed_documents(["money"]).tolist()
    assert embedding.to_dict()["fingerprint"] == core.fingerprint


def test_it_opens_again(vector_store: CDEVectorStore, model: CDEModel, tmp_path: Path) -> None:
    expected = vector_store.collection.search("money", 5, by="vectors")
    again = CDEVectorStore(Collection.open(FaissStore(tmp_path / "essays.faiss"), model=model))
    hits = index_of(again).as_retriever(similarity_top_k=5).retrieve("money")
    assert [(hit.node_id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in expected]
    again.collection.close()


def test_a_collection_is_made_once(
    vector_store: CDEVectorStore, documents: list[Document], model: CDEModel, tmp_path: Path
) -> None:
    with pytest.raises(StoreError):
        CDEVectorStore.from_documents(documents, FaissStore(tmp_path / "essays.faiss"), model=model)


def test_refused_documents_make_no_collection(model: CDEModel, tmp_path: Path) -> None:
    """An empty one would refuse the right call."""
    place = tmp_path / "essays.faiss"
    documents = [Document(text="a fish", metadata={"size": {1}}), Document(text="a bank")]
    with pytest.raises(CorpusError, match="metadata of its source has to be a JSON object: size is of the type set"):
        CDEVectorStore.from_documents(documents, place, model=model)
    with pytest.warns(SmallContextWarning):
        assert len(CDEVectorStore.from_documents(documents[1:], place, model=model).get_nodes()) == 1


def test_any_collection_can_be_read(model: CDEModel, tmp_path: Path) -> None:
    with pytest.warns(SmallContextWarning):
        embedder = ContextualEmbedder.from_corpus(["money", "river"], model=model)
    with Collection.create(FaissStore(tmp_path / "plain.faiss"), embedder) as collection:
        collection.add(["money", "river"], ids=["a", "b"], metadata=[{"year": 1}, {"year": 2}])
        (hit,) = index_of(CDEVectorStore(collection)).as_retriever(similarity_top_k=1).retrieve("money")
        assert hit.node.metadata in ({"year": 1}, {"year": 2})
        assert hit.node.get_content() == {"a": "money", "b": "river"}[hit.node_id]


@pytest.mark.parametrize("again", ["same", "changed", "new"])
def test_records_with_titles_come_and_go_unchanged(model: CDEModel, tmp_path: Path, again: str) -> None:
    """Nodes of records that LlamaIndex did not make, and of its own with a title, are added again."""
    with pytest.warns(SmallContextWarning):
        embedder = ContextualEmbedder.from_corpus(["money", "river"], model=model)
    record = Record("a", "a fish", "Rivers", {"year": 1, "title.of": "x"})
    with Collection.create(tmp_path / "plain.faiss", embedder) as collection:
        collection.add_records([record, Record("b", "a bank", "Loans", {"title": "mine"})])
        store = CDEVectorStore(collection)
        nodes = store.get_nodes()
        assert [node.metadata for node in nodes] == [{"title": "Rivers", "year": 1, "title.of": "x"}, {"title": "mine"}]
        if again == "changed":
            nodes[0].metadata["title"] = "Seas"
        if again == "new":
            nodes = [TextNode(id_="a", text="a fish", metadata={"year": 1, "title.of": "x"}), nodes[1]]
            nodes[0].excluded_embed_metadata_keys = ["year", "title.of"]
        for _ in range(2):
            store.add(nodes)
            nodes = store.get_nodes()
        found = {each.id: each for each in collection.scroll()}
        assert (found["a"].text, found["b"].text) == ("a fish", "a bank")
        assert (found["a"].title, found["b"].title) == ("Seas" if again == "changed" else "Rivers", "Loans")
        assert found["a"].metadata.items() >= record.metadata.items()
        assert "title" not in found["a"].metadata
        assert found["b"].metadata["title"] == "mine"
        assert [node.metadata["title"] for node in nodes] == [found["a"].title, "mine"]


def test_nodes_of_other_records_are_found_by_ids_and_filters(model: CDEModel, tmp_path: Path) -> None:
    with pytest.warns(SmallContextWarning):
        embedder = ContextualEmbedder.from_corpus(["money", "river"], model=model)
    with Collection.create(tmp_path / "plain.faiss", embedder) as collection:
        collection.add(["money", "river"], ids=["a", "b"], metadata=[{"year": 1}, {"year": 2}])
        store = CDEVectorStore(collection)
        assert [node.node_id for node in store.get_nodes(["a", "b"], filtered("year", 2))] == ["b"]
        store.delete_nodes(["a", "b"], filtered("year", 1))
        assert [node.node_id for node in store.get_nodes()] == ["b"]


def test_any_key_can_be_filtered(vector_store: CDEVectorStore) -> None:
    keys = ["file.type", "and", "or", "not", "", "$in", "eq", "a..b", ".and"]
    vector_store.add([TextNode(id_=f"of {key}", text="money", metadata={key: "pdf"}) for key in keys])
    for key in keys:
        assert [node.node_id for node in vector_store.get_nodes(filters=filtered(key, "pdf"))] == [f"of {key}"]


def filtered(key: str, value: object, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])  # pyright: ignore[reportArgumentType]


def test_queries_are_filtered(vector_store: CDEVectorStore) -> None:
    retriever = index_of(vector_store).as_retriever(
        similarity_top_k=4, filters=filtered("year", 2003, FilterOperator.LT)
    )
    assert {hit.node.metadata["year"] for hit in retriever.retrieve("money")} <= {2000, 2001, 2002}
    ask = VectorStoreQuery(query_str="money", similarity_top_k=50, doc_ids=["essay 3"])
    assert {node.ref_doc_id for node in vector_store.query(ask).nodes or []} == {"essay 3"}
    some = [node.node_id for node in vector_store.get_nodes()[:3]]
    ask = VectorStoreQuery(query_str="money", similarity_top_k=50, node_ids=some)
    assert sorted(vector_store.query(ask).ids or []) == sorted(some)
    assert vector_store.query(VectorStoreQuery(query_str="money", similarity_top_k=5, doc_ids=[])).ids == []
    ask = VectorStoreQuery(query_str="money", similarity_top_k=2, node_ids=[])  # what an index without nodes sends
    assert len(vector_store.query(ask).ids or []) == 2
    with pytest.raises(FilterError, match="text_match_insensitive"):
        vector_store.get_nodes(filters=filtered("year", "x", FilterOperator.TEXT_MATCH_INSENSITIVE))


def test_nodes_are_deleted_by_id_and_filter(vector_store: CDEVectorStore) -> None:
    ids = [node.node_id for node in vector_store.get_nodes(filters=filtered("year", 2003))]
    vector_store.delete_nodes(ids, filtered("year", 2004))
    assert len(vector_store.get_nodes(ids)) == len(ids)
    vector_store.delete_nodes(ids[:1], filtered("year", 2003))
    assert len(vector_store.get_nodes(ids)) == len(ids) - 1
    vector_store.delete_nodes(filters=filtered("year", 2003))
    assert vector_store.get_nodes(ids) == []
    everything = [
        None,
        MetadataFilters(filters=[]),
        MetadataFilters(filters=[MetadataFilters(filters=[]), MetadataFilters(filters=[])]),
        MetadataFilters(filters=[filtered("year", 2004), MetadataFilters(filters=[])]),
        filtered("year", [], FilterOperator.NIN),
        filtered("year", [], FilterOperator.ALL),
        MetadataFilters(filters=[filtered("year", [], FilterOperator.IN)], condition=FilterCondition.NOT),
    ]
    count = vector_store.collection.count()
    for nothing in everything:
        with pytest.raises(ValueError, match=r"clear\(\)"):
            vector_store.delete_nodes(filters=nothing)
    vector_store.delete_nodes([])
    vector_store.delete_nodes([], MetadataFilters(filters=[]))
    assert vector_store.collection.count() == count


@pytest.mark.parametrize("nothing", [None, "", [], 5])
def test_the_nodes_of_no_source_are_not_deleted(vector_store: CDEVectorStore, nothing: Any) -> None:
    """SimpleVectorStore keeps them, too; a node without a source has None for its id."""
    vector_store.add([TextNode(text=f"fact {number} on bridges") for number in range(3)])
    count = vector_store.collection.count()
    with pytest.raises(ValueError, match="source"):
        vector_store.delete(nothing)
    with pytest.raises(ValueError, match="source"):
        index_of(vector_store).delete_ref_doc(nothing)
    assert vector_store.collection.count() == count
    vector_store.clear()
    assert vector_store.get_nodes() == []


def test_mmr_chooses_unlike_nodes(vector_store: CDEVectorStore) -> None:
    def ask(threshold: float | None, **kwargs: object) -> list[str]:
        query = VectorStoreQuery(
            query_str="money", similarity_top_k=5, mode=VectorStoreQueryMode.MMR, mmr_threshold=threshold
        )
        return list(vector_store.query(query, **kwargs).ids or [])

    search = vector_store.collection
    assert ask(1.0) == [hit.id for hit in search.search("money", 5, by="vectors")]
    assert ask(None) == [hit.id for hit in search.search_diverse("money", 5)]
    assert ask(0.2) == ask(None, mmr_threshold=0.2) == [h.id for h in search.search_diverse("money", 5, diversity=0.8)]
    assert ask(0.2, mmr_prefetch_k=7) == [
        hit.id for hit in search.search_diverse("money", 5, candidates=7, diversity=0.8)
    ]
    retriever = index_of(vector_store).as_retriever(
        vector_store_query_mode="mmr", similarity_top_k=5, vector_store_kwargs={"mmr_threshold": 0.2}
    )
    assert [hit.node_id for hit in retriever.retrieve("money")] == ask(0.2)
    with pytest.raises(ValueError, match="prefetch_factor"):
        ask(0.2, prefetch_factor=3)


def test_what_is_no_collection_store_or_node_is_refused(documents: list[Document], tmp_path: Path) -> None:
    store = FaissStore(tmp_path / "new.faiss")
    for wrong in ("new.faiss", store):
        with pytest.raises(TypeError, match=rf"found {type(wrong).__name__}\. .*CDEVectorStore\.open\(FaissStore\("):
            CDEVectorStore(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"found int\. Give the path of a folder"):
        CDEVectorStore.open(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"found int\. Give the path of a folder"):
        CDEVectorStore.from_documents(documents, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"found str in it\. Give \[Document\("):
        CDEVectorStore.from_documents(["a"], store)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "new.faiss").exists()


def test_hybrid_and_text_search_are_those_of_the_collection(vector_store: CDEVectorStore) -> None:
    text, collection = "interest of the loan", vector_store.collection
    hits = collection.search(text, 8, by="hybrid")
    assert [hit.id for hit in hits] != [hit.id for hit in collection.search(text, 8, by="vectors")]
    retriever = index_of(vector_store).as_retriever(vector_store_query_mode="hybrid", similarity_top_k=8)
    assert [(hit.node_id, hit.score) for hit in retriever.retrieve(text)] == [(hit.id, hit.score) for hit in hits]
    assert [hit.node_id for hit in asyncio.run(retriever.aretrieve(text))] == [hit.id for hit in hits]
    words = [hit.id for hit in collection.search(text, 8, by="words")]
    for mode in (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE):
        assert vector_store.query(VectorStoreQuery(query_str=text, mode=mode, similarity_top_k=8)).ids == words


def test_alpha_weighs_vectors_and_other_settings_count_nodes(vector_store: CDEVectorStore) -> None:
    text, collection = "interest of the loan", vector_store.collection

    def found(**settings: object) -> list[str]:
        query = VectorStoreQuery(query_str=text, mode=VectorStoreQueryMode.HYBRID, similarity_top_k=6, **settings)
        return list(vector_store.query(query).ids or [])

    assert found(alpha=1.0) == [hit.id for hit in collection.search(text, 6, by="vectors")]
    assert found(alpha=0.0) == [hit.id for hit in collection.search(text, 6, by="words")]
    assert found(hybrid_top_k=2) == found()[:2]
    assert found(sparse_top_k=5) == found()
    source = collection.search(text, 1)[0].metadata["ref_doc_id"]
    some = [hit.id for hit in collection.search(text, 6, by="hybrid", where={"ref_doc_id": source})]
    assert found(doc_ids=[source]) == some
    with pytest.raises(ValueError, match="weight"):
        found(alpha=1.5)
    with pytest.raises(ValueError, match="alpha is for the mode hybrid"):
        vector_store.query(VectorStoreQuery(query_str=text, alpha=0.5))


def test_other_modes_are_refused(vector_store: CDEVectorStore) -> None:
    with pytest.raises(ValueError, match="found 'svm'"):
        vector_store.query(VectorStoreQuery(query_str="money", mode=VectorStoreQueryMode.SVM))


def test_long_nodes_are_refused_with_the_splitters_setting(vector_store: CDEVectorStore) -> None:
    setting = r"SentenceSplitter\(chunk_size=\d+, chunk_overlap"
    with pytest.raises(TruncationError, match=rf"would not be read.*{setting}.*windows=True"):
        vector_store.add([TextNode(text="money " * 100, id_="long")])
    short = [TextNode(text=f"a bank by the river {number}") for number in range(39)]
    with pytest.warns(TruncationWarning, match=rf"Truncated: 1 node\..*{setting}") as told:
        vector_store.add([TextNode(text="money " * 35, id_="long"), *short])
    assert len(told) == 1  # and none of the core's


def test_a_store_without_documents_begins_without_a_corpus(tmp_path: Path) -> None:
    store = CDEVectorStore.from_documents([], tmp_path / "notes.faiss")
    index = VectorStoreIndex.from_vector_store(store, embed_model=store.embed_model)
    assert index.as_retriever().retrieve("sea") == []
    store.add([TextNode(text=f"Note {number}: {number * 7} men went to sea.") for number in range(64)])
    assert store.collection.inspect().context_documents_seen == 64
    index.insert(Document(text="The pump was mended."))
    assert index.as_retriever(similarity_top_k=1).retrieve("who mended the pump")[0].text == "The pump was mended."
    store.collection.close()


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_long_nodes_are_read_in_windows_where_asked_for(
    documents: list[Document], model: CDEModel, tmp_path: Path
) -> None:
    whole = [Document(text=document.text * 4, id_=document.doc_id) for document in documents[:4]]
    store = CDEVectorStore.from_documents(
        whole, FaissStore(tmp_path / "long.faiss"), transformations=[], model=model, windows=True
    )
    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in store.get_nodes()]
    core = ContextualEmbedder.from_corpus(texts, model=model, windows=True)
    with store.collection as collection:
        assert collection.inspect().windows
        assert collection.embedder.fingerprint == core.fingerprint
        ids = [node.node_id for node in store.get_nodes()]
        found = collection.store.vectors(ids, fingerprint=core.fingerprint)
    np.testing.assert_allclose(found, core.embed_documents(texts, parents=ids), atol=1e-5)
