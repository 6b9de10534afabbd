"""Vectors of two contexts never meet: each way to bring them together ends in an error that says what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import TextNode
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.embeddings.cde.copies import COLLECTION as COPIES
from llama_index.embeddings.cde.marks import marks_on
from llama_index_corpora import corpus

from cde_rag.errors import ContextMismatchError, ContextMissingError, ContextReusedWarning

Fresh = Callable[..., CDEEmbedding]


@pytest.fixture
def alone(folder: Path, cache_folder: Path) -> Path:
    """The persisted index, of which no copy of the context is left."""
    store = folder / "index_store.json"
    store.write_text(json.dumps({name: kept for name, kept in json.loads(store.read_text()).items() if name != COPIES}))
    shutil.rmtree(cache_folder)
    return folder


@pytest.fixture
def folder(fresh: Fresh, tmp_path: Path) -> Path:
    """A persisted index with its context."""
    embedding = fresh()
    index = VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    index.storage_context.persist(tmp_path)
    embedding.persist(tmp_path)
    return tmp_path


def reloaded(folder: Path, embedding: CDEEmbedding) -> VectorStoreIndex:
    storage = StorageContext.from_defaults(persist_dir=str(folder))
    index = load_index_from_storage(storage, embed_model=embedding)
    assert isinstance(index, VectorStoreIndex)
    return index


def test_a_reloaded_index_without_its_context_is_refused(fresh: Fresh, alone: Path) -> None:
    index = reloaded(alone, fresh())
    with pytest.raises(ContextMissingError, match="from_persist_dir"):
        index.as_retriever().retrieve("money")
    with pytest.raises(ContextMissingError, match="from_persist_dir"):
        index.insert(Document(text="money"))
    with pytest.raises(ContextMissingError, match="from_persist_dir"):
        index.refresh_ref_docs(corpus(3, seed=8))


async def test_a_reloaded_index_without_its_context_is_refused_async(fresh: Fresh, alone: Path) -> None:
    index = reloaded(alone, fresh())
    with pytest.raises(ContextMissingError, match="from_persist_dir"):
        await index.as_retriever().aretrieve("money")
    with pytest.raises(ContextMissingError, match="from_persist_dir"):
        await index.ainsert_nodes([TextNode(text="money")])


async def test_a_reloaded_index_with_another_context_is_refused(fresh: Fresh, folder: Path) -> None:
    other = fresh()
    other.fit([document.text for document in corpus(seed=1)])
    index = reloaded(folder, other)
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        index.as_retriever().retrieve("money")
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        await index.as_retriever().aretrieve("money")
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        index.insert(Document(text="money"))
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        await index.ainsert_nodes([TextNode(text="money")])


def test_a_reloaded_index_with_its_context_answers(folder: Path, tiny_folder: str) -> None:
    index = reloaded(folder, CDEEmbedding.from_persist_dir(folder, model_name=tiny_folder))
    assert index.as_retriever(similarity_top_k=3).retrieve("money")


def test_a_retriever_with_another_embedding_is_refused(fresh: Fresh) -> None:
    index = VectorStoreIndex.from_documents(corpus(), embed_model=fresh())
    other = fresh()
    other.fit([document.text for document in corpus(seed=1)])
    with pytest.raises(ContextMismatchError):
        index.as_retriever(embed_model=other).retrieve("money")


def test_the_mark_is_there_by_every_way_to_build(fresh: Fresh, own_loop: None) -> None:
    for use_async in (False, True):
        for step in (False, True):
            embedding = fresh()
            index = VectorStoreIndex.from_documents(
                corpus(),
                transformations=[embedding] if step else [lambda nodes, **_: nodes],
                embed_model=embedding,
                use_async=use_async,
            )
            assert marks_on(index.docstore.docs.values()) == {embedding.fingerprint}


def test_a_users_summary_stays(fresh: Fresh) -> None:
    embedding = fresh()
    index = VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    assert index.index_struct.summary is None
    index.summary = "Banks and rivers"
    index.insert(Document(text="money"))
    assert index.summary == "Banks and rivers"


def test_two_indexes_share_one_space_with_a_warning(fresh: Fresh) -> None:
    embedding = fresh()
    one = VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    with pytest.warns(ContextReusedWarning) as told:
        two = VectorStoreIndex.from_documents(corpus(seed=1), embed_model=embedding)
    assert [warning.filename for warning in told if warning.category is ContextReusedWarning] == [__file__]
    assert marks_on(one.docstore.docs.values()) == marks_on(two.docstore.docs.values())
