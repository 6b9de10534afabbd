"""Vectors of two contexts never meet, whatever LlamaIndex does with stores, nodes and summaries in between."""

from collections.abc import Callable
from pathlib import Path

import chromadb
import pytest
from llama_index.core import (
    Document,
    MockEmbedding,
    PropertyGraphIndex,
    StorageContext,
    VectorStoreIndex,
    load_index_from_storage,
)
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import KG_NODES_KEY, EntityNode
from llama_index.core.indices.property_graph import VectorContextRetriever
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.embeddings.cde.marks import marks_on
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index_corpora import corpus

from cde_rag import CDEWarning
from cde_rag.errors import ContextMismatchError

Fitted = Callable[[int], CDEEmbedding]


@pytest.fixture
def fitted(fresh: Callable[..., CDEEmbedding]) -> Fitted:
    """Makes embeddings, each in the context of the corpus of its seed."""

    def make(seed: int) -> CDEEmbedding:
        embedding = fresh(windows=True)  # names of a graph bring their source's id, and are longer than the window
        embedding.fit([document.text for document in corpus(seed=seed)])
        return embedding

    return make


def names(nodes: list[BaseNode], **_: object) -> list[BaseNode]:
    """A knowledge graph of each text's first word."""
    for node in nodes:
        node.metadata[KG_NODES_KEY] = [EntityNode(name=node.get_content().split()[0])]
    return nodes


GRAPH = {"kg_extractors": [names], "llm": MockLLM(), "use_async": False}


def graph(embedding: CDEEmbedding) -> PropertyGraphIndex:
    return PropertyGraphIndex.from_documents(corpus(), embed_model=embedding, **GRAPH)


def search(index: PropertyGraphIndex, embedding: CDEEmbedding) -> list[str]:
    retriever = VectorContextRetriever(
        index.property_graph_store, embed_model=embedding, vector_store=index.vector_store
    )
    return [hit.node_id for hit in index.as_retriever(sub_retrievers=[retriever]).retrieve("money")]


def test_a_reloaded_property_graph_with_another_context_is_refused(fitted: Fitted, tmp_path: Path) -> None:
    graph(fitted(0)).storage_context.persist(tmp_path)

    def load(embedding: CDEEmbedding) -> PropertyGraphIndex:
        storage = StorageContext.from_defaults(persist_dir=str(tmp_path))
        index = load_index_from_storage(storage, embed_model=embedding, **GRAPH)
        assert isinstance(index, PropertyGraphIndex)
        return index

    index = load(fitted(1))
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        search(index, fitted(1))
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        index.insert(Document(text="money"))
    index = load(fitted(0))
    index.insert(Document(text="money"))
    search(index, fitted(0))


def test_a_graph_store_of_another_context_is_refused(fitted: Fitted) -> None:
    built = graph(fitted(0))
    stores = [{"vector_store": built.vector_store}, {}]
    for kept in stores:
        index = PropertyGraphIndex.from_existing(
            property_graph_store=built.property_graph_store, embed_model=fitted(1), **kept, **GRAPH
        )
        with pytest.raises(ContextMismatchError):
            index.insert(Document(text="money"))
    read = SimplePropertyGraphStore(built.property_graph_store.graph)  # as from a file, without its vector store
    index = PropertyGraphIndex.from_existing(property_graph_store=read, embed_model=fitted(1), **GRAPH)
    with pytest.warns(CDEWarning, match="build the index anew"):
        index.insert(Document(text="money"))


def test_a_property_graph_over_a_store_of_texts_is_built_and_searched_without_a_warning(
    fitted: Fitted, tmp_path: Path
) -> None:
    names_of = chromadb.PersistentClient(path=str(tmp_path)).create_collection("names")
    for _ in range(2):  # two graphs with one store of names
        storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=names_of))
        index = PropertyGraphIndex.from_documents(corpus(), embed_model=fitted(0), storage_context=storage, **GRAPH)
        index.insert(Document(text="money"))
        assert names_of.count()
        search(index, fitted(0))


def test_one_store_takes_vectors_of_one_context(fitted: Fitted) -> None:
    storage = StorageContext.from_defaults(vector_store=SimpleVectorStore())
    index = VectorStoreIndex.from_documents(corpus(), storage_context=storage, embed_model=fitted(0))
    with pytest.raises(ContextMismatchError):
        VectorStoreIndex.from_documents(corpus(seed=1), storage_context=storage, embed_model=fitted(1))
    with pytest.raises(ContextMismatchError):
        IngestionPipeline(transformations=[fitted(1)], vector_store=storage.vector_store).run(documents=corpus(seed=1))
    storage.vector_store.delete_nodes(list(index.index_struct.nodes_dict))  # of an empty store the mark says nothing
    VectorStoreIndex.from_documents(corpus(seed=1), storage_context=storage, embed_model=fitted(1))


def test_the_mark_of_a_store_does_not_show(fitted: Fitted) -> None:
    index = VectorStoreIndex.from_documents(corpus(), embed_model=fitted(0))
    assert isinstance(index.vector_store, SimpleVectorStore)
    assert len(index.as_retriever(similarity_top_k=100).retrieve("money")) == 80
    index.vector_store.delete_nodes(list(index.index_struct.nodes_dict))
    assert index.vector_store.data.embedding_dict == {}


def test_what_a_pipelines_cache_gives_is_of_the_stores_context(fitted: Fitted) -> None:
    cache, store = IngestionCache(), SimpleVectorStore()
    for seed in (0, 1):  # the second store's vectors will all come from the cache
        IngestionPipeline(transformations=[fitted(seed)], cache=cache).run(documents=corpus(seed=seed))
    IngestionPipeline(transformations=[fitted(0)], cache=cache, vector_store=store).run(documents=corpus())
    with pytest.raises(ContextMismatchError):
        IngestionPipeline(transformations=[fitted(1)], cache=cache, vector_store=store).run(documents=corpus(seed=1))


def test_a_build_has_one_embedding(fitted: Fitted, fresh: Callable[..., CDEEmbedding]) -> None:
    for step, other in ((fitted(0), fitted(1)), (fresh(), fitted(1)), (fitted(0), fresh())):
        with pytest.raises(ContextMismatchError, match="one and the same"):
            VectorStoreIndex.from_documents(corpus(), transformations=[step], embed_model=other)


def test_equal_embeddings_are_one(fitted: Fitted, fresh: Callable[..., CDEEmbedding], tmp_path: Path) -> None:
    VectorStoreIndex.from_documents(corpus(), transformations=[fitted(0)], embed_model=fitted(0))
    path = tmp_path / "docs.context.safetensors"
    step, other = fresh(context_path=path), fresh(context_path=path)
    VectorStoreIndex.from_documents(corpus(), transformations=[step], embed_model=other)


async def test_nodes_with_vectors_of_another_context_are_refused(fitted: Fitted) -> None:
    nodes = IngestionPipeline(transformations=[fitted(1)]).run(documents=corpus(seed=1))
    index = VectorStoreIndex.from_documents(corpus(), embed_model=fitted(0))
    with pytest.raises(ContextMismatchError, match="embedded by another"):
        index.insert_nodes(nodes)
    with pytest.raises(ContextMismatchError, match="embedded by another"):
        await index.ainsert_nodes(nodes)
    with pytest.raises(ContextMismatchError, match="embedded by another"):
        VectorStoreIndex(nodes, embed_model=fitted(0))
    VectorStoreIndex(nodes, embed_model=fitted(1))


def test_a_nodes_vector_is_written_like_any_other(fitted: Fitted) -> None:
    (node,) = fitted(0)([TextNode(text="money")])
    assert TextNode.from_json(node.to_json()).embedding == node.embedding


@pytest.mark.parametrize("store", [SimpleVectorStore, None])
def test_vectors_without_a_mark_are_warned_of(fitted: Fitted, tmp_path: Path, store: type | None) -> None:
    embedding = fitted(0)
    foreign = MockEmbedding(embed_dim=embedding.dim)
    VectorStoreIndex.from_documents(corpus(), embed_model=foreign).storage_context.persist(tmp_path)
    index = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(tmp_path)), embed_model=embedding)
    if store is None:  # nodes alone tell
        index.vector_store.clear()
    for call in (index.as_retriever().retrieve, index.insert, index.as_retriever().retrieve):  # an insert notes nothing
        with pytest.warns(CDEWarning, match="build the index anew"):
            call(Document(text="money") if call == index.insert else "money")
    assert marks_on(index.docstore.docs.values()) == set()


def test_a_users_summary_is_no_way_around(fitted: Fitted, tmp_path: Path) -> None:
    index = VectorStoreIndex.from_documents(corpus(), embed_model=fitted(0))
    index.summary = "Banks and rivers"
    index.storage_context.persist(tmp_path)
    again = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(tmp_path)), embed_model=fitted(1))
    with pytest.raises(ContextMismatchError):
        again.as_retriever().retrieve("money")
    with pytest.raises(ContextMismatchError):
        again.insert(Document(text="money"))


def test_the_summary_of_an_index_that_an_older_version_built_names_its_context(fitted: Fitted) -> None:
    index = VectorStoreIndex.from_documents(corpus(), embed_model=MockEmbedding(embed_dim=16))
    index.summary = f"Banks and rivers. Vectors of the cde-rag context {fitted(0).fingerprint}."
    index.as_retriever(embed_model=fitted(0)).retrieve("money")
    with pytest.raises(ContextMismatchError):
        index.as_retriever(embed_model=fitted(1)).retrieve("money")


class TextStore(SimpleVectorStore):
    """Keeps texts too; the index keeps its nodes nevertheless if told to."""

    stores_text: bool = True


def test_nodes_beside_a_store_of_texts_tell_nothing(fitted: Fitted) -> None:
    store = TextStore()
    for seed in (0, 1):
        storage = StorageContext.from_defaults(vector_store=store)
        index = VectorStoreIndex([], storage_context=storage, embed_model=fitted(seed), store_nodes_override=True)
        index.insert(Document(text="money"))
        store.clear()
        index._embed_model = fitted(2)
        index.insert(Document(text="river"))
        store.clear()


def test_a_retriever_asks_its_index_where_the_store_tells_nothing(fitted: Fitted) -> None:
    index = VectorStoreIndex.from_documents(corpus(seed=0), embed_model=fitted(0))
    store = index.vector_store
    assert isinstance(store, SimpleVectorStore)
    store.data.metadata_dict.clear()
    with pytest.raises(ContextMismatchError):
        index.as_retriever(embed_model=fitted(1)).retrieve("money")


def test_an_index_that_began_empty_is_marked(fitted: Fitted) -> None:
    index = VectorStoreIndex([], embed_model=fitted(0))
    index.insert(Document(text="money"))
    assert marks_on(index.docstore.docs.values()) == {fitted(0).fingerprint}
    index.insert(Document(text="river"))
