"""A persisted index that cde-rag reembed moved is opened and written to by the embedding of the new context."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.embeddings.cde import CDEEmbedding
from llama_index_corpora import corpus, sentences

from cde_rag import ContextualEmbedder
from cde_rag.adoption.reembedding import reembedding
from cde_rag.errors import ContextMismatchError

Fresh = Callable[..., CDEEmbedding]
FILE = "default__vector_store.json"


def opened(folder: Path, embedding: CDEEmbedding) -> VectorStoreIndex:
    storage = StorageContext.from_defaults(persist_dir=str(folder))
    index: Any = load_index_from_storage(storage, embed_model=embedding)
    return index


@pytest.mark.parametrize("made_by", ["cde", "another model"])
@pytest.mark.filterwarnings("error")
def test_a_moved_index_names_its_context_and_is_never_warned_of(
    made_by: str, fresh: Fresh, tiny_folder: str, tmp_path: Path
) -> None:
    folder = tmp_path / "storage"
    documents = [Document(text=each.text, id_=each.id_, metadata={"n": n}) for n, each in enumerate(corpus())]
    before = fresh() if made_by == "cde" else MockEmbedding(embed_dim=8)
    VectorStoreIndex.from_documents(documents, embed_model=before).storage_context.persist(folder)
    content = (folder / FILE).read_bytes()
    new = ContextualEmbedder.from_corpus(sentences(80, seed=5), model=tiny_folder, context_size=16)
    with reembedding(f"llamaindex:{folder}") as move:
        move.switch(new)
        file = move.journal.context_file(new.fingerprint)
        assert (
            move.line(new) == f'Settings.embed_model = CDEEmbedding.load("{file}")  # from llama_index.embeddings.cde'
        )
        move.rollback()
        assert (folder / FILE).read_bytes() == content
        move.switch(new)
    embedding = CDEEmbedding.load(file, model_name=tiny_folder)
    index = opened(folder, embedding)
    filters = MetadataFilters(filters=[MetadataFilter(key="n", value=7)])  # which LlamaIndex reads next to the mark
    (hit,) = index.as_retriever(similarity_top_k=3, filters=filters).retrieve("a river bank")
    assert hit.node.metadata == {"n": 7}
    index.insert(Document(text="a boat on the delta", id_="late", metadata={"n": 80}))
    index.storage_context.persist(folder)
    again = opened(folder, fresh())  # finds the context, which the insert stored with the index
    hits = again.as_retriever(similarity_top_k=81).retrieve("a boat on the delta")
    assert len(hits) == 81
    assert {hit.node.metadata["n"] for hit in hits} == set(range(81))
    other = fresh()
    other.fit(sentences(80, seed=6))
    with pytest.raises(ContextMismatchError, match=r"CDEEmbedding\(\)"):
        opened(folder, other).as_retriever().retrieve("a river bank")
