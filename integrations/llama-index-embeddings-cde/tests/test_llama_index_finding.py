"""An embedding without a context finds that of the vectors: by marks on nodes, in copies next to them, in the cache."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import chromadb
import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.embeddings.cde.copies import COLLECTION
from llama_index.embeddings.cde.marks import marks_on
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index_corpora import corpus
from qdrant_client import QdrantClient

from cde_rag import CDEWarning, ContextualEmbedder
from cde_rag.context.cache import cached_path
from cde_rag.errors import ContextFormatError, ContextMismatchError, ContextMissingError

Fresh = Callable[..., CDEEmbedding]

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")


@pytest.fixture
def chroma(tmp_path: Path) -> Callable[[], ChromaVectorStore]:
    """Opens the store of one collection, each time anew."""
    client = chromadb.PersistentClient(path=str(tmp_path / "chroma"))
    return lambda: ChromaVectorStore(chroma_collection=client.get_or_create_collection("essays"))


Chroma = Callable[[], ChromaVectorStore]


def build(store: ChromaVectorStore | None, embedding: CDEEmbedding | MockEmbedding, seed: int = 0) -> VectorStoreIndex:
    storage = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex.from_documents(corpus(seed=seed), storage_context=storage, embed_model=embedding)


def opened(store: ChromaVectorStore | QdrantVectorStore, embedding: CDEEmbedding) -> VectorStoreIndex:
    return VectorStoreIndex.from_vector_store(store, embed_model=embedding)


def fitted(fresh: Fresh, seed: int) -> CDEEmbedding:
    return fresh().fit([document.text for document in corpus(seed=seed)])


def ids(index: VectorStoreIndex) -> list[str | None]:
    return [hit.node.ref_doc_id for hit in index.as_retriever(similarity_top_k=5).retrieve("a loan for the boat")]


def test_a_store_of_texts_is_opened_in_the_context_of_its_vectors(fresh: Fresh, chroma: Chroma) -> None:
    first, second, third = fresh(), fresh(), fresh(auto_fit=False)
    expected = ids(build(chroma(), first))
    assert ids(opened(chroma(), second)) == expected
    opened(chroma(), third).insert(Document(text="a loan for the boat", id_="new"))
    assert first.fingerprint == second.fingerprint == third.fingerprint
    assert "new" in ids(opened(chroma(), fresh()))


async def test_a_store_of_texts_is_opened_in_its_context_async(fresh: Fresh, chroma: Chroma) -> None:
    first, second, third = fresh(), fresh(), fresh()
    build(chroma(), first)
    assert await opened(chroma(), second).as_retriever().aretrieve("money")
    await opened(chroma(), third).ainsert_nodes([TextNode(text="a loan for the boat")])
    assert first.fingerprint == second.fingerprint == third.fingerprint
    with pytest.raises(ContextMismatchError):
        await opened(chroma(), fitted(fresh, 1)).as_retriever().aretrieve("money")
    with pytest.raises(ContextMismatchError):
        await IngestionPipeline(transformations=[fitted(fresh, 1)], vector_store=chroma()).arun(documents=corpus())


def test_an_embedder_of_the_core_fills_and_searches_a_store_of_texts(
    fresh: Fresh, chroma: Chroma, tiny_folder: str
) -> None:
    core = ContextualEmbedder.from_corpus([document.text for document in corpus()], model=tiny_folder)
    index = build(chroma(), CDEEmbedding.from_embedder(core))
    assert ids(opened(chroma(), fresh())) == ids(index)


def test_another_context_is_refused_by_a_store_of_texts(fresh: Fresh, chroma: Chroma) -> None:
    build(chroma(), fresh())
    other = fitted(fresh, 1)
    with pytest.raises(ContextMismatchError):
        opened(chroma(), other).as_retriever().retrieve("money")
    with pytest.raises(ContextMismatchError):
        opened(chroma(), other).insert(Document(text="money"))
    with pytest.raises(ContextMismatchError):
        IngestionPipeline(transformations=[other], vector_store=chroma()).run(documents=corpus(seed=1))
    with pytest.raises(ContextMismatchError):
        IngestionPipeline(transformations=[other], vector_store=chroma(), disable_cache=True).run(documents=corpus())
    with pytest.raises(ContextMismatchError):
        build(chroma(), other, seed=1)
    assert len(chroma().get_nodes(None)) == 80


def test_what_a_pipelines_cache_gives_is_of_the_context_of_a_store_of_texts(fresh: Fresh, chroma: Chroma) -> None:
    build(chroma(), fresh())
    cache, other = IngestionCache(), fitted(fresh, 1)
    IngestionPipeline(transformations=[other], cache=cache).run(documents=corpus(seed=1))
    with pytest.raises(ContextMismatchError):
        IngestionPipeline(transformations=[other], cache=cache, vector_store=chroma()).run(documents=corpus(seed=1))
    assert len(chroma().get_nodes(None)) == 80


def test_a_store_that_was_filled_anew_is_looked_at_again(fresh: Fresh, chroma: Chroma) -> None:
    store, one, other = chroma(), fitted(fresh, 0), fitted(fresh, 1)
    index = build(store, one)
    assert ids(index)
    store.delete_nodes([node.node_id for node in store.get_nodes(None)])
    build(store, other, seed=1)
    with pytest.raises(ContextMismatchError):
        ids(index)


def test_a_store_is_looked_at_before_the_first_query_only(
    fresh: Fresh, chroma: Chroma, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(chroma(), fresh())
    asked: list[VectorStoreQuery] = []
    query = ChromaVectorStore.query
    monkeypatch.setattr(ChromaVectorStore, "query", lambda *call, **rest: asked.append(call[1]) or query(*call, **rest))
    index = opened(chroma(), fresh())
    for count in (2, 3, 4):
        index.as_retriever().retrieve("money")
        assert len(asked) == count


def test_vectors_of_two_contexts_in_one_store_are_refused(fresh: Fresh, chroma: Chroma) -> None:
    for seed in (0, 1):  # by programs that do not ask the embedding
        nodes = IngestionPipeline(transformations=[fitted(fresh, seed)]).run(documents=corpus(8, seed=seed))
        chroma().add(list(nodes))
    with pytest.raises(ContextMismatchError, match="one context only"):
        opened(chroma(), fresh()).as_retriever().retrieve("money")
    with pytest.raises(ContextMismatchError):
        opened(chroma(), fitted(fresh, 0)).as_retriever().retrieve("money")


def test_a_store_of_other_vectors_is_warned_of(fresh: Fresh, chroma: Chroma) -> None:
    build(chroma(), MockEmbedding(embed_dim=16))
    with pytest.raises(ContextMissingError):
        opened(chroma(), fresh()).as_retriever().retrieve("money")
    with pytest.raises(ContextMissingError, match="vectors in the store already"):
        build(chroma(), fresh())
    index = opened(chroma(), fitted(fresh, 0))
    for _ in range(2):
        with pytest.warns(CDEWarning, match="build the index anew"):
            index.insert(Document(text="money"))  # which marks nothing
    with pytest.warns(CDEWarning, match="build the index anew"):
        index.as_retriever().retrieve("money")


def test_a_store_that_cannot_be_searched_says_so(fresh: Fresh) -> None:
    def store() -> QdrantVectorStore:
        return QdrantVectorStore("essays", client=client)

    client = QdrantClient(":memory:")
    with pytest.raises(ContextMissingError, match="cannot be searched"):
        opened(store(), fresh()).as_retriever().retrieve("money")
    with pytest.warns(CDEWarning, match="If it is new"):
        opened(store(), fitted(fresh, 0)).insert(Document(text="money"))
    with pytest.raises(ContextMismatchError):
        opened(store(), fitted(fresh, 1)).insert(Document(text="money"))


def test_a_mark_changes_nothing_else_about_a_node(fresh: Fresh) -> None:
    node, bare = (TextNode(text="money", metadata={"source": "bank"}, id_="a") for _ in range(2))
    build(None, fresh()).insert_nodes([node])
    assert node.excluded_embed_metadata_keys != bare.excluded_embed_metadata_keys
    assert (node.hash, node.metadata) == (bare.hash, bare.metadata)
    for mode in MetadataMode:
        assert node.get_content(metadata_mode=mode) == bare.get_content(metadata_mode=mode)


def test_a_mark_is_that_of_the_newest_vector(fresh: Fresh) -> None:
    nodes = [TextNode(text="money")]
    for seed in (0, 1):
        fitted(fresh, seed)(nodes)
    with pytest.raises(ContextMismatchError, match="embedded by another"):
        VectorStoreIndex(nodes, embed_model=fitted(fresh, 0))
    again = [TextNode.from_json(node.to_json()) for node in nodes]
    with pytest.raises(ContextMismatchError, match="embedded by another"):
        VectorStoreIndex(again, embed_model=fitted(fresh, 0))
    VectorStoreIndex(again, embed_model=fitted(fresh, 1))


def test_nodes_without_vectors_are_embedded_and_marked_anew(fresh: Fresh) -> None:
    index, other = build(None, fresh()), fitted(fresh, 1)
    nodes = list(index.docstore.docs.values())[:3]
    foreign = TextNode(text="money", embedding=[0.25] * 16)
    VectorStoreIndex([], embed_model=other).insert_nodes([*nodes, foreign])
    assert marks_on(nodes) == {other.fingerprint}
    assert marks_on([foreign]) == set()


def test_a_damaged_copy_in_the_cache_is_an_error_and_no_reason_for_another_context(
    fresh: Fresh, chroma: Chroma
) -> None:
    first, second = fresh(), fresh()
    build(chroma(), first)
    path = cached_path(str(first.fingerprint))
    path.write_bytes(path.read_bytes()[:-1])
    for call in (opened(chroma(), second).as_retriever().retrieve, opened(chroma(), second).insert):
        with pytest.raises(ContextFormatError, match=path.name):
            call(Document(text="money") if call.__name__ == "insert" else "money")
    with pytest.raises(ContextFormatError, match=path.name):
        build(chroma(), second)
    assert second.fingerprint is None


@pytest.fixture
def persisted(fresh: Fresh, tmp_path: Path, cache_folder: Path) -> Path:
    """A persisted index, on a machine with an empty cache."""
    build(None, fresh()).storage_context.persist(tmp_path)
    shutil.rmtree(cache_folder)
    return tmp_path


def loaded(folder: Path, embedding: CDEEmbedding) -> VectorStoreIndex:
    index = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(folder)), embed_model=embedding)
    assert isinstance(index, VectorStoreIndex)
    return index


def test_the_context_is_persisted_with_the_index(fresh: Fresh, persisted: Path) -> None:
    embedding = fresh()
    index = loaded(persisted, embedding)
    index.insert(Document(text="a loan for the boat", id_="new"))
    assert "new" in ids(index)
    assert cached_path(str(embedding.fingerprint)).exists()


@pytest.mark.parametrize("damage", ["", "AAAA", "no base64", None, "of another"])
def test_a_damaged_copy_in_the_index_is_an_error(fresh: Fresh, persisted: Path, damage: str | None) -> None:
    path, embedding, other = persisted / "index_store.json", fresh(), fitted(fresh, 1)
    store = json.loads(path.read_text())
    (fingerprint,) = store[COLLECTION]
    if damage == "of another":
        index = build(None, other, seed=1)
        index.storage_context.persist(persisted / "other")
        copies = json.loads((persisted / "other" / "index_store.json").read_text())[COLLECTION]
        store[COLLECTION][fingerprint] = copies[str(other.fingerprint)]
    else:
        store[COLLECTION][fingerprint]["context"] = damage
    path.write_text(json.dumps(store))
    with pytest.raises(ContextFormatError, match=r"index store|under its name"):
        loaded(persisted, embedding).as_retriever().retrieve("money")
    assert embedding.fingerprint is None


def test_one_embedding_serves_one_context(fresh: Fresh, persisted: Path) -> None:
    other = build(None, fresh(), seed=1)
    other.storage_context.persist(persisted / "other")
    embedding = fresh()
    assert ids(loaded(persisted, embedding))
    with pytest.raises(ContextMismatchError):
        ids(loaded(persisted / "other", embedding))


def test_without_a_writable_cache_a_build_warns_and_works(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(CDEWarning, match=r"not in the cache.*persist"):
        index = build(None, fresh())
    assert ids(index)
    index.storage_context.persist(tmp_path / "storage")
    with pytest.warns(CDEWarning, match="not in the cache"):
        assert ids(loaded(tmp_path / "storage", fresh())) == ids(index)
