"""Models by name: a plain folder and what an API serves; a saved context comes back, and holds no address."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embeddings_server import Server, running
from langchain_core.documents import Document
from plain_model import write_transformer

from cde_rag import ContextualEmbedder
from cde_rag.errors import ContextMismatchError, ModelError
from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDEVectorStore

TEXTS = [f"river {number} and bank {number % 7}" for number in range(70)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-test")
    with running() as served:
        yield served


@pytest.mark.parametrize("kind", ["folder", "api"])
def test_a_store_has_the_vectors_of_the_named_model(kind: str, tmp_path: Path, server: Server) -> None:
    model = f"{server.url}#small" if kind == "api" else str(write_transformer(tmp_path / "model"))
    embeddings = CDEEmbeddings.from_documents([Document(text) for text in TEXTS], model=model)
    expected = ContextualEmbedder.from_corpus(TEXTS, model=model)
    assert embeddings.fingerprint == expected.fingerprint
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS[:2]), expected.embed_documents(TEXTS[:2]), atol=1e-6)
    place = tmp_path / "papers.context.safetensors"
    embeddings.save(place)
    assert server.url.encode() not in place.read_bytes()
    again = CDEEmbeddings.load(place, model=model if kind == "api" else None)
    assert again.embed_query(TEXTS[0]) == embeddings.embed_query(TEXTS[0])
    store = CDEVectorStore.from_documents(
        [Document(text) for text in TEXTS], embeddings, store=FaissStore(tmp_path / "papers"), parent_key=None
    )
    best = np.argmax(expected.embed_documents(TEXTS) @ expected.embed_queries(TEXTS[:1])[0])
    assert store.similarity_search(TEXTS[0], k=1)[0].page_content == TEXTS[best]


def test_an_api_is_to_be_named_again_and_rightly(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "papers.context.safetensors"
    CDEEmbeddings.from_texts(TEXTS, model=f"{server.url}#small").save(place)
    calls = len(server.calls)
    for wrong in (None, "cde-mini"):
        with pytest.raises(ModelError, match="a model that an API serves by its name"):
            CDEEmbeddings.load(place, model=wrong)
    assert len(server.calls) == calls
    with pytest.raises(ContextMismatchError):
        CDEEmbeddings.load(place, model=f"{server.url}#large").embed_query("a")
    with pytest.raises(ModelError, match="Expected a model's name, as in openai:"):
        CDEEmbeddings.from_texts(TEXTS, model=server.url)
