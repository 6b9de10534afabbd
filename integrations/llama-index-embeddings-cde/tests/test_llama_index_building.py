"""A context is made of the first corpus that is seen as a whole, and of nothing else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llama_index.core import (
    Document,
    MockEmbedding,
    PropertyGraphIndex,
    Settings,
    StorageContext,
    SummaryIndex,
    VectorStoreIndex,
)
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices import KnowledgeGraphIndex
from llama_index.core.indices.property_graph import ImplicitPathExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SemanticSplitterNodeParser, SentenceSplitter
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import BaseNode, TextNode, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.embeddings.cde.marks import marks_on
from llama_index_corpora import corpus, sentences

from cde_rag import ContextualEmbedder
from cde_rag.errors import (
    ContextError,
    ContextMissingError,
    ContextReusedWarning,
    PartialContextWarning,
    SmallContextWarning,
)

Fresh = Callable[..., CDEEmbedding]


def semantic(embedding: CDEEmbedding) -> SemanticSplitterNodeParser:
    return SemanticSplitterNodeParser(embed_model=embedding, sentence_splitter=lambda text: text.split(". "))


def expected_fingerprint(tiny_folder: str, texts: list[str]) -> str:
    return ContextualEmbedder.from_corpus(texts, model=tiny_folder).fingerprint


def test_the_context_has_as_many_documents_as_the_model_expects(
    tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cde_rag.models.one_way.config.ModelConfig.context_size", 70)
    nodes = [TextNode(text=text) for text in sentences(100)]
    for embedding in (
        CDEEmbedding.from_nodes(nodes, model_name=tiny_folder),
        CDEEmbedding.from_documents(nodes, transformations=[], model_name=tiny_folder),
    ):
        assert embedding.inspect().context_size == 70
    with pytest.raises(ContextError, match="expects 70 context documents, found context_size=512"):
        CDEEmbedding.from_nodes(nodes, model_name=tiny_folder, context_size=512)


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("show_progress", [False, True])
def test_a_build_makes_the_context_of_all_texts(
    fresh: Fresh, tiny_folder: str, use_async: bool, show_progress: bool
) -> None:
    embedding, documents = fresh(), corpus()
    index = VectorStoreIndex.from_documents(
        documents, embed_model=embedding, use_async=use_async, show_progress=show_progress
    )
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, [document.text for document in documents])
    inspection = embedding.inspect()
    assert (inspection.context_source, inspection.context_documents_seen) == ("all", 80)
    (hit,) = index.as_retriever(similarity_top_k=1).retrieve(documents[3].text)
    assert hit.score is not None


async def test_a_build_in_a_running_loop_makes_the_context(fresh: Fresh, tiny_folder: str) -> None:
    embedding, documents = fresh(), corpus()
    VectorStoreIndex.from_documents(documents, embed_model=embedding, use_async=True)
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, [document.text for document in documents])


def test_a_build_of_nodes_makes_the_context(fresh: Fresh, tiny_folder: str) -> None:
    texts = sentences(70)
    embedding = fresh()
    VectorStoreIndex([TextNode(text=text) for text in texts], embed_model=embedding)
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, texts)


def test_the_context_has_the_form_in_which_nodes_are_embedded(fresh: Fresh, tiny_folder: str) -> None:
    nodes = [TextNode(text=text, metadata={"source": "bank"}) for text in sentences(70)]
    embedding = fresh()
    VectorStoreIndex(nodes, embed_model=embedding)
    assert embedding.fingerprint == expected_fingerprint(
        tiny_folder, [f"source: bank\n\n{node.text}" for node in nodes]
    )
    explicit = CDEEmbedding.from_nodes(nodes, model_name=tiny_folder)
    assert explicit.fingerprint == embedding.fingerprint


def test_a_tutorial_sized_corpus_works_and_warns(fresh: Fresh) -> None:
    embedding = fresh()
    with pytest.warns(SmallContextWarning, match="only 20"):
        index = VectorStoreIndex.from_documents(corpus(20), embed_model=embedding)
    assert len(index.as_retriever(similarity_top_k=3).retrieve("money in the bank")) == 3


def test_a_direct_batch_call_makes_the_context(fresh: Fresh, tiny_folder: str) -> None:
    embedding, texts = fresh(), sentences(70)
    vectors = embedding.get_text_embedding_batch(texts)
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, texts)
    core = ContextualEmbedder.from_corpus(texts, model=tiny_folder)
    assert vectors == core.embed_documents(texts).tolist()


async def test_a_direct_async_batch_call_makes_the_context(fresh: Fresh, tiny_folder: str) -> None:
    embedding, texts = fresh(), sentences(70)
    first, second = await asyncio.gather(
        embedding.aget_text_embedding_batch(texts), embedding.aget_text_embedding_batch(texts[:5])
    )
    assert len(first) == 70
    assert second == first[:5]


def test_no_texts_are_no_corpus(fresh: Fresh) -> None:
    embedding = fresh()
    assert embedding.get_text_embedding_batch([]) == []
    assert embedding([]) == []
    assert embedding.fingerprint is None


def test_a_query_is_refused_without_a_context(fresh: Fresh) -> None:
    for call in (fresh().get_query_embedding, fresh().get_text_embedding):
        with pytest.raises(ContextMissingError, match="load_index_from_storage"):
            call("money")


async def test_an_async_query_is_refused_without_a_context(fresh: Fresh) -> None:
    for call in (fresh().aget_query_embedding, fresh().aget_text_embedding):
        with pytest.raises(ContextMissingError, match="load_index_from_storage"):
            await call("money")


@pytest.fixture
def foreign_index(fresh: Fresh) -> VectorStoreIndex:
    """An index that is there already, and an embedding without a context."""
    index = VectorStoreIndex.from_documents(corpus(), embed_model=MockEmbedding(embed_dim=16))
    index._embed_model = fresh()
    return index


def test_an_inserted_document_never_becomes_the_context(foreign_index: VectorStoreIndex) -> None:
    with pytest.raises(ContextMissingError, match="added to an index"):
        foreign_index.insert(Document(text="money " * 3))
    with pytest.raises(ContextMissingError, match="added to an index"):
        foreign_index.insert_nodes([TextNode(text=text) for text in sentences(70, seed=2)])


async def test_an_async_insert_never_becomes_the_context(foreign_index: VectorStoreIndex) -> None:
    with pytest.raises(ContextMissingError, match="added to an index"):
        await foreign_index.ainsert_nodes([TextNode(text=text) for text in sentences(70, seed=2)])
    with pytest.raises(ContextMissingError, match="added to an index"):
        await foreign_index.ainsert(Document(text="money " * 3))


def test_a_refreshed_document_never_becomes_the_context(foreign_index: VectorStoreIndex) -> None:
    with pytest.raises(ContextMissingError, match="added to an index"):
        foreign_index.refresh_ref_docs(corpus(90, seed=3))


def test_an_insert_through_a_transformation_never_becomes_the_context(foreign_index: VectorStoreIndex) -> None:
    embedding = foreign_index._embed_model
    foreign_index._transformations = [SentenceSplitter(), embedding]
    with pytest.raises(ContextMissingError, match="added to an index"):
        foreign_index.insert(Document(text="money " * 3))


def test_insert_and_refresh_keep_the_context(fresh: Fresh) -> None:
    embedding, documents = fresh(), corpus()
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    fingerprint = embedding.fingerprint
    index.insert(Document(text="the loan of the boat", id_="new"))
    changed = Document(text="a fish in the delta", id_=documents[0].id_)
    assert index.refresh_ref_docs([changed, *documents[1:]]) == [True] + [False] * 79
    assert embedding.fingerprint == fingerprint
    assert index.as_retriever(similarity_top_k=1).retrieve("a fish in the delta")


async def test_async_insert_and_refresh_keep_the_context(fresh: Fresh) -> None:
    embedding, documents = fresh(), corpus()
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    fingerprint = embedding.fingerprint
    await index.ainsert_nodes([TextNode(text="the loan of the boat")])
    assert (await index.arefresh_ref_docs([Document(text="a fish", id_="new")])) == [True]
    assert embedding.fingerprint == fingerprint
    assert await index.as_retriever().aretrieve("a fish in the delta")


def test_a_splitters_sentences_never_become_the_context(fresh: Fresh) -> None:
    embedding = fresh()
    splitter = semantic(embedding)
    essay = Document(text=". ".join(sentences(80)) + ".")
    with pytest.raises(ContextMissingError, match="SemanticSplitterNodeParser"):
        splitter.get_nodes_from_documents([essay])
    with pytest.raises(ContextMissingError, match="SemanticSplitterNodeParser"):
        VectorStoreIndex.from_documents([essay], transformations=[splitter], embed_model=embedding)
    with pytest.raises(ContextMissingError, match="SemanticSplitterNodeParser"):
        IngestionPipeline(transformations=[splitter, embedding]).run(documents=[essay])
    assert embedding.fingerprint is None


async def test_an_async_splitters_sentences_never_become_the_context(fresh: Fresh) -> None:
    splitter = semantic(fresh())
    with pytest.raises(ContextMissingError, match="SemanticSplitterNodeParser"):
        await splitter.aget_nodes_from_documents([Document(text=". ".join(sentences(80)) + ".")])


def test_a_splitter_with_a_context_splits(fresh: Fresh) -> None:
    embedding = fresh()
    embedding.fit(sentences(80))
    essay = Document(text=". ".join(sentences(12)))
    splitter = semantic(embedding)
    splitter.buffer_size, splitter.breakpoint_percentile_threshold = 0, 0
    index = VectorStoreIndex.from_documents([essay], transformations=[splitter], embed_model=embedding)
    assert len(index.docstore.docs) > 1


class Extractor(TransformComponent):
    """An application's own transformation, which embeds for its own purposes."""

    embed_model: CDEEmbedding

    def __call__(self, nodes: list[BaseNode], **kwargs: object) -> list[BaseNode]:
        self.embed_model.get_text_embedding_batch([node.get_content() for node in nodes])
        return nodes


def test_an_applications_transformation_never_makes_the_context(fresh: Fresh) -> None:
    embedding = fresh()
    with pytest.raises(ContextMissingError, match="Extractor"):
        IngestionPipeline(transformations=[Extractor(embed_model=embedding)]).run(documents=corpus())


def test_the_first_slice_warns_of_both_remedies(fresh: Fresh) -> None:
    embedding = fresh()
    with pytest.warns(PartialContextWarning, match=r"CDEEmbedding\.from_documents.*transformations=\[") as warned:
        VectorStoreIndex.from_documents(corpus(150), embed_model=embedding, insert_batch_size=70)
    assert [warning.category for warning in warned] == [PartialContextWarning]
    inspection = embedding.inspect()
    assert (inspection.context_source, inspection.context_documents_seen) == ("first_slice", 70)
    assert inspection.texts_without_parent == 150


@pytest.mark.slow
def test_the_first_slice_is_two_thousand_and_forty_eight_by_default(fresh: Fresh) -> None:
    nodes = [TextNode(text=text) for text in sentences(2049)]
    embedding = fresh()
    with pytest.warns(PartialContextWarning, match="2048"):
        VectorStoreIndex(nodes, embed_model=embedding)
    assert embedding.inspect().context_documents_seen == 2048


def test_both_remedies_of_the_first_slice_see_all(fresh: Fresh, tiny_folder: str) -> None:
    documents = corpus(150)
    explicit = CDEEmbedding.from_documents(documents, model_name=tiny_folder)
    VectorStoreIndex.from_documents(documents, embed_model=explicit, insert_batch_size=70)
    step = fresh()
    VectorStoreIndex.from_documents(
        documents, transformations=[SentenceSplitter(), step], embed_model=step, insert_batch_size=70
    )
    whole = fresh()
    VectorStoreIndex.from_documents(documents, embed_model=whole, insert_batch_size=10**9)
    assert explicit.fingerprint == step.fingerprint == whole.fingerprint
    assert explicit.inspect().context_source == "explicit"


def test_a_second_build_warns_that_the_context_is_reused(fresh: Fresh) -> None:
    Settings.embed_model = fresh()
    VectorStoreIndex.from_documents(corpus())
    with pytest.warns(ContextReusedWarning, match=r"CDEEmbedding\.from_documents") as warned:
        VectorStoreIndex.from_documents(corpus(150, seed=1), insert_batch_size=70)
    assert len(warned) == 1


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize("use_async", [False, True])
def test_a_second_build_by_transformation_warns(fresh: Fresh, use_async: bool) -> None:
    embedding = fresh()

    def build(seed: int) -> None:
        VectorStoreIndex.from_documents(
            corpus(seed=seed), transformations=[embedding], embed_model=embedding, use_async=use_async
        )

    build(0)
    with pytest.warns(ContextReusedWarning) as warned:
        build(1)
    assert len(warned) == 1


def test_a_loaded_context_warns_in_a_new_build(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "a.context.safetensors"
    VectorStoreIndex.from_documents(corpus(), embed_model=fresh(context_path=path))
    with pytest.warns(ContextReusedWarning):
        VectorStoreIndex.from_documents(corpus(seed=1), embed_model=fresh(context_path=path))


def test_a_pipeline_makes_the_context_of_all_nodes(fresh: Fresh, tiny_folder: str) -> None:
    embedding, documents = fresh(), corpus()
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), embedding], disable_cache=True)
    nodes = pipeline.run(documents=documents)
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, [document.text for document in documents])
    VectorStoreIndex(nodes, embed_model=embedding)  # nothing is embedded anew, so nothing is warned of


async def test_an_async_pipeline_makes_the_context_of_all_nodes(fresh: Fresh, tiny_folder: str) -> None:
    embedding, documents = fresh(), corpus()
    nodes = await IngestionPipeline(transformations=[SentenceSplitter(), embedding]).arun(documents=documents)
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, [document.text for document in documents])
    assert all(node.embedding for node in nodes)


def test_a_pipeline_with_a_docstore_embeds_what_is_new(fresh: Fresh) -> None:
    embedding, store = fresh(), SimpleVectorStore()
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), embedding], docstore=SimpleDocumentStore(), vector_store=store
    )
    documents = corpus()
    pipeline.run(documents=documents)
    fingerprint = embedding.fingerprint
    assert len(pipeline.run(documents=[*documents, *corpus(3, seed=4)])) == 3
    assert embedding.fingerprint == fingerprint
    assert len(store.data.embedding_dict) == 83


@pytest.mark.parametrize("store", [SimpleVectorStore(), None])
def test_later_runs_of_a_pipeline_never_become_the_context(fresh: Fresh, store: SimpleVectorStore | None) -> None:
    strategy = "upserts" if store else "duplicates_only"
    kept = {"docstore": SimpleDocumentStore(), "vector_store": store, "docstore_strategy": strategy}
    IngestionPipeline(transformations=[SentenceSplitter(), fresh()], **kept).run(documents=corpus())
    if store is not None:
        store.clear()
    later = IngestionPipeline(transformations=[SentenceSplitter(), fresh()], **kept)
    with pytest.raises(ContextMissingError, match="earlier runs"):
        later.run(documents=corpus(70, seed=5))


def test_a_store_with_vectors_keeps_its_context(fresh: Fresh) -> None:
    store = SimpleVectorStore()
    context = StorageContext.from_defaults(vector_store=store)
    first, second, third = fresh(), fresh(), fresh()
    VectorStoreIndex.from_documents(corpus(), storage_context=context, embed_model=first)
    with pytest.warns(ContextReusedWarning):
        VectorStoreIndex.from_documents(corpus(seed=1), storage_context=context, embed_model=second)
    IngestionPipeline(transformations=[third], vector_store=store).run(documents=corpus(seed=2))
    assert first.fingerprint == second.fingerprint == third.fingerprint


def test_a_store_with_vectors_gets_no_second_context(fresh: Fresh) -> None:
    store = SimpleVectorStore()
    context = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex.from_documents(corpus(), storage_context=context, embed_model=MockEmbedding(embed_dim=16))
    with pytest.raises(ContextMissingError, match="vectors in the store already"):
        VectorStoreIndex.from_documents(corpus(seed=1), storage_context=context, embed_model=fresh())
    with pytest.raises(ContextMissingError, match="vectors in the store already"):
        IngestionPipeline(transformations=[fresh()], vector_store=store).run(documents=corpus(seed=1))


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize("use_async", [False, True])
def test_a_property_graph_has_one_context_for_texts_and_names(fresh: Fresh, tiny_folder: str, use_async: bool) -> None:
    embedding, documents = fresh(), corpus()
    index = PropertyGraphIndex.from_documents(
        documents,
        kg_extractors=[ImplicitPathExtractor()],
        embed_model=embedding,
        embed_kg_nodes=True,
        use_async=use_async,
    )
    assert embedding.fingerprint == expected_fingerprint(tiny_folder, [document.text for document in documents])
    read = SimplePropertyGraphStore(index.property_graph_store.graph)  # as from a file
    with pytest.raises(ContextMissingError, match="vectors in the store already"):
        PropertyGraphIndex.from_documents(
            corpus(seed=1),
            kg_extractors=[ImplicitPathExtractor()],
            embed_model=fresh(),
            storage_context=StorageContext.from_defaults(property_graph_store=read),
            property_graph_store=read,
            use_async=False,
        )


def test_two_threads_make_one_context(fresh: Fresh) -> None:
    embedding, texts = fresh(), sentences(70)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(embedding.get_text_embedding_batch, [texts] * 4))
    assert all(answer == answers[0] for answer in answers)


def test_auto_fit_can_be_off(fresh: Fresh) -> None:
    with pytest.raises(ContextMissingError, match="auto_fit=False"):
        VectorStoreIndex.from_documents(corpus(), embed_model=fresh(auto_fit=False))


def test_a_property_graph_embeds_in_the_context_of_its_transformation(fresh: Fresh) -> None:
    """It embeds all nodes again, as strings; that is the same build."""
    embedding = fresh()
    PropertyGraphIndex.from_documents(
        corpus(),
        transformations=[embedding],
        kg_extractors=[ImplicitPathExtractor()],
        embed_model=embedding,
        use_async=False,
    )
    assert embedding.inspect().texts_without_parent == 160


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_index_that_embeds_piece_by_piece_never_makes_the_context(fresh: Fresh) -> None:
    with pytest.raises(ContextMissingError, match="KnowledgeGraphIndex"):
        KnowledgeGraphIndex.from_documents(
            corpus(),
            kg_triplet_extract_fn=lambda text: [("money", "is in", word) for word in text.split()],
            include_embeddings=True,
            embed_model=fresh(),
            llm=MockLLM(),
        )


class Engine(CustomQueryEngine):
    """An application's part of the framework that builds an index."""

    embedding: CDEEmbedding

    def custom_query(self, query_str: str) -> str:
        index = VectorStoreIndex.from_documents(corpus(), transformations=[self.embedding], embed_model=self.embedding)
        return index.as_retriever(similarity_top_k=1).retrieve(query_str)[0].node_id


def test_a_part_of_the_framework_may_build_an_index(fresh: Fresh) -> None:
    assert str(Engine(embedding=fresh()).query("money"))


def test_what_comes_after_the_context_was_made_is_compared_with_it(fresh: Fresh, tiny_folder: str) -> None:
    def build(embedding: CDEEmbedding, seed: int) -> None:
        VectorStoreIndex.from_documents(corpus(seed=seed), embed_model=embedding)

    of_list = fresh()
    SummaryIndex.from_documents(corpus(), transformations=[of_list])
    explicit = CDEEmbedding.from_nodes(corpus(), model_name=tiny_folder)
    for embedding in (of_list, explicit):
        build(embedding, 0)
        with pytest.warns(ContextReusedWarning):
            build(embedding, 1)
    of_pipeline = fresh()
    for documents in (corpus(), corpus()):
        IngestionPipeline(transformations=[of_pipeline], disable_cache=True).run(documents=documents)
    with pytest.warns(ContextReusedWarning):
        IngestionPipeline(transformations=[of_pipeline]).run(documents=corpus(seed=1))
    with pytest.warns(ContextReusedWarning):
        build(CDEEmbedding.from_nodes(corpus(), model_name=tiny_folder), 1)


def test_a_part_of_a_large_corpus_is_known(tiny_folder: str) -> None:
    nodes = [TextNode(text=text) for text in sentences(600)]
    embedding = CDEEmbedding(model_name=tiny_folder, context_size=100)
    embedding.fit([node.text for node in nodes])
    VectorStoreIndex(nodes, embed_model=embedding, insert_batch_size=200)
    with pytest.warns(ContextReusedWarning):
        VectorStoreIndex([TextNode(text=text) for text in sentences(600, seed=1)], embed_model=embedding)


async def test_transformations_that_run_at_once_warn(fresh: Fresh) -> None:
    embedding = fresh()

    def build(seed: int) -> None:
        VectorStoreIndex.from_documents(corpus(seed=seed), transformations=[embedding], embed_model=embedding)

    with pytest.warns(ContextReusedWarning) as warned:
        await asyncio.gather(asyncio.to_thread(build, 0), asyncio.to_thread(build, 1))
    assert len(warned) == 1


async def test_indexes_that_are_built_at_once_share_a_context_with_a_warning(fresh: Fresh) -> None:
    """Whichever comes first makes the context; of the other it is said."""
    embedding = fresh()

    def build(seed: int) -> VectorStoreIndex:
        return VectorStoreIndex.from_documents(corpus(seed=seed), embed_model=embedding)

    with pytest.warns(ContextReusedWarning) as warned:
        one, two = await asyncio.gather(asyncio.to_thread(build, 0), asyncio.to_thread(build, 1))
    assert len(warned) == 1
    assert marks_on(one.docstore.docs.values()) == marks_on(two.docstore.docs.values()) == {embedding.fingerprint}
