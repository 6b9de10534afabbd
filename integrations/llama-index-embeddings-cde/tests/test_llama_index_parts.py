"""Nodes that are longer than the model reads: found by their best part, in every store and after loading."""

from collections.abc import Callable
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import IndexNode, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index_corpora import corpus, sentences
from qdrant_client import QdrantClient

from cde_rag.errors import ContextMismatchError, SmallContextWarning, TruncationError

Fresh = Callable[..., CDEEmbedding]
LONG = 8  # sentences of eight words each; the tiny model reads 32 tokens


@pytest.fixture
def nodes() -> list[TextNode]:
    """Seventy short nodes, and two long ones of one document between them."""
    short = [TextNode(text=text, id_=f"short {number}") for number, text in enumerate(sentences(70))]
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="book")}
    long = [
        TextNode(
            text=". ".join(sentences(LONG, seed=seed)), id_=f"long {seed}", metadata={"n": seed}, relationships=source
        )
        for seed in (1, 2)
    ]
    return [*short[:30], long[0], *short[30:], long[1]]


def best(index: VectorStoreIndex, query: str, count: int = 200) -> dict[str, float]:
    """Ids and scores of hits; each node comes once."""
    hits = index.as_retriever(similarity_top_k=count).retrieve(query)
    assert len({hit.node_id for hit in hits}) == len(hits)
    return {hit.node_id: hit.score or 0.0 for hit in hits}


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize("use_async", [False, True])
def test_a_node_has_the_score_of_its_best_part(fresh: Fresh, nodes: list[TextNode], use_async: bool) -> None:
    embedding = fresh()
    index = VectorStoreIndex(nodes, embed_model=embedding, use_async=use_async)
    parts = [node for node in index.docstore.docs.values() if isinstance(node, IndexNode)]
    assert {part.index_id for part in parts} == {"long 1", "long 2"}
    assert {part.ref_doc_id for part in parts} == {"book"}
    words = " ".join(part.text for part in parts if part.index_id == "long 1").replace(".", "")
    assert set(sentences(LONG, seed=1)[-1].split()) <= set(words.split())
    query = embedding.get_query_embedding("money in the bank")
    vectors = {part.node_id: embedding.get_text_embedding(part.get_content(MetadataMode.EMBED)) for part in parts}
    found = best(index, "money in the bank")
    assert set(found) == {node.node_id for node in nodes}
    for name in ("long 1", "long 2"):
        scores = [float(np.dot(vectors[part.node_id], query)) for part in parts if part.index_id == name]
        assert len(scores) > 1
        assert found[name] == pytest.approx(max(scores), abs=1e-5)
    whole = next(h.node for h in index.as_retriever(similarity_top_k=200).retrieve("money") if h.node_id == "long 1")
    assert whole.get_content() == nodes[30].text
    assert whole.metadata == {"n": 1}


def test_parts_change_no_context(fresh: Fresh, nodes: list[TextNode]) -> None:
    embedding = fresh()
    VectorStoreIndex(nodes, embed_model=embedding)
    texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
    assert embedding.fingerprint == fresh().fit(texts).fingerprint


def test_parts_are_persisted_inserted_and_deleted(fresh: Fresh, nodes: list[TextNode], tmp_path: Path) -> None:
    index = VectorStoreIndex(nodes, embed_model=fresh())
    expected = best(index, "the river")
    index.storage_context.persist(str(tmp_path))
    again = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(tmp_path)), embed_model=fresh())
    assert best(again, "the river") == pytest.approx(expected, abs=1e-6)
    again.insert_nodes([TextNode(text=". ".join(sentences(LONG, seed=3)), id_="new")])
    assert set(best(again, "the river")) == {*expected, "new"}
    again.delete_ref_doc("book", delete_from_docstore=True)
    assert set(best(again, "the river")) == {*expected, "new"} - {"long 1", "long 2"}
    other = fresh().fit(sentences(80, seed=9))
    with pytest.raises(ContextMismatchError):
        best(load_index_from_storage(again.storage_context, embed_model=other), "the river")


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_a_store_that_keeps_texts_gives_back_whole_nodes(fresh: Fresh, nodes: list[TextNode]) -> None:
    nodes = [node.model_copy(update={"id_": str(uuid5(NAMESPACE_OID, node.node_id))}) for node in nodes]  # Qdrant's ids
    client = QdrantClient(":memory:")
    store = QdrantVectorStore("papers", client=client)
    VectorStoreIndex(nodes, storage_context=StorageContext.from_defaults(vector_store=store), embed_model=fresh())
    opened = VectorStoreIndex.from_vector_store(QdrantVectorStore("papers", client=client), embed_model=fresh())
    simple = VectorStoreIndex(nodes, embed_model=fresh())
    assert best(opened, "the river") == pytest.approx(best(simple, "the river"), abs=1e-5)
    client.close()


def test_a_transformation_gives_parts_in_the_place_of_their_node(fresh: Fresh, nodes: list[TextNode]) -> None:
    store, embedding = SimpleVectorStore(), fresh()
    made = IngestionPipeline(transformations=[embedding], vector_store=store).run(nodes=nodes)
    ids = [node.index_id if isinstance(node, IndexNode) else node.node_id for node in made]
    assert list(dict.fromkeys(ids)) == [node.node_id for node in nodes]
    assert set(store.data.embedding_dict) == {node.node_id for node in made}
    assert embedding.inspect().texts_with_parent == ids.count("long 1") + ids.count("long 2") > 4


def test_nodes_are_read_in_windows_where_asked_for(fresh: Fresh, nodes: list[TextNode]) -> None:
    index = VectorStoreIndex(nodes, embed_model=fresh(windows=True))
    assert not any(isinstance(node, IndexNode) for node in index.docstore.docs.values())


def test_metadata_that_leave_no_room_are_refused(fresh: Fresh) -> None:
    nodes = [TextNode(text=text, metadata={"note": "money " * 60}) for text in sentences(70)]
    with pytest.raises(TruncationError, match="would not be read"):
        VectorStoreIndex(nodes, embed_model=fresh())


def test_an_empty_index_takes_documents_and_finds_nothing_before(fresh: Fresh, tmp_path: Path) -> None:
    embedding = fresh()
    index = VectorStoreIndex([], embed_model=embedding)
    assert index.as_retriever().retrieve("money") == []
    assert embedding.fingerprint is None
    first, *others = corpus(5)
    with pytest.warns(SmallContextWarning, match=r"VectorStoreIndex\(list\(index\.docstore\.docs\.values\(\)\), embed"):
        index.insert(first)
    for document in others:
        index.insert(document)  # and no further warning, which would be an error here
    assert embedding.inspect().context_source == "null"
    assert len(best(index, "money")) == 5
    index.storage_context.persist(str(tmp_path))
    again = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(tmp_path)), embed_model=fresh())
    again.insert(corpus(1, seed=7)[0])
    assert len(best(again, "money")) == 6
    with pytest.warns(SmallContextWarning):
        moved = VectorStoreIndex(list(again.docstore.docs.values()), embed_model=fresh())
    assert len(best(moved, "money")) == 6
