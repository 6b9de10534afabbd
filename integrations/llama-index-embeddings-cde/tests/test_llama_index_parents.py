"""Where the embedding sees nodes, each is embedded given the nodes of its source document; strings have no parent."""

from collections.abc import Callable

import numpy as np
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.embeddings.cde import CDEEmbedding
from llama_index_corpora import corpus, sentences

from cde_rag import ContextualEmbedder

Fresh = Callable[..., CDEEmbedding]


def passages(*, parents: int = 16, of_each: int = 5) -> list[TextNode]:
    """Nodes of several source documents, those of one document in a row."""
    texts = sentences(parents * of_each)
    return [
        TextNode(
            text=text,
            metadata={"topic": "banks"},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"document {number // of_each}")},
        )
        for number, text in enumerate(texts)
    ]


def expected(folder: str, nodes: list[TextNode], *, with_parents: bool) -> np.ndarray:
    texts = [f"topic: banks\n\n{node.text}" for node in nodes]
    core = ContextualEmbedder.from_corpus(texts, model=folder)
    return core.embed_documents(texts, parents=[node.ref_doc_id for node in nodes] if with_parents else None)


def test_a_transformation_gives_each_node_its_siblings(fresh: Fresh, tiny_folder: str) -> None:
    embedding, nodes = fresh(), passages()
    embedding(nodes)
    found = np.array([node.embedding for node in nodes], dtype=np.float32)
    np.testing.assert_array_equal(found, expected(tiny_folder, nodes, with_parents=True))
    assert np.abs(found - expected(tiny_folder, nodes, with_parents=False)).max() > 1e-2


async def test_an_async_transformation_gives_each_node_its_siblings(fresh: Fresh, tiny_folder: str) -> None:
    embedding, nodes = fresh(), passages()
    await embedding.acall(nodes)
    found = np.array([node.embedding for node in nodes], dtype=np.float32)
    np.testing.assert_array_equal(found, expected(tiny_folder, nodes, with_parents=True))


def test_strings_have_no_parent_and_inspect_says_so(fresh: Fresh, tiny_folder: str) -> None:
    embedding, nodes = fresh(), passages()
    index = VectorStoreIndex(nodes, embed_model=embedding)
    found = np.array([index.vector_store.get(node.node_id) for node in nodes], dtype=np.float32)
    np.testing.assert_array_equal(found, expected(tiny_folder, nodes, with_parents=False))
    inspection = embedding.inspect()
    assert (inspection.texts_with_parent, inspection.texts_without_parent) == (0, 80)


def test_one_line_gives_a_build_its_parents(fresh: Fresh) -> None:
    embedding = fresh()
    essays = [Document(text=" ".join(sentences(5, seed=seed)), id_=f"essay {seed}") for seed in range(20)]
    splitter = TokenTextSplitter(chunk_size=10, chunk_overlap=0)
    index = VectorStoreIndex.from_documents(essays, transformations=[splitter, embedding], embed_model=embedding)
    inspection = embedding.inspect()
    assert inspection.texts_with_parent == len(index.docstore.docs) > 64
    assert inspection.texts_without_parent == 0
    index.insert(Document(text=" ".join(sentences(5, seed=99))))  # the index remembers its transformations
    assert embedding.inspect().texts_with_parent == len(index.docstore.docs)


def test_a_pipeline_gives_parents(fresh: Fresh) -> None:
    embedding = fresh()
    IngestionPipeline(transformations=[embedding]).run(nodes=passages())
    assert embedding.inspect().texts_with_parent == 80


def test_documents_that_were_not_split_have_no_parent(fresh: Fresh) -> None:
    embedding = fresh()
    embedding(corpus())
    assert embedding.inspect().texts_without_parent == 80


def test_a_node_without_content_gets_no_embedding(fresh: Fresh) -> None:
    nodes = [*passages(), TextNode(text=""), TextNode(text="  ")]
    fresh()(nodes)
    assert [node.embedding is None for node in nodes] == [False] * 80 + [True] * 2
