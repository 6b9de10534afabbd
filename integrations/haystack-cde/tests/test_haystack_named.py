"""Models by name: a plain folder and what an API serves; the file of the context holds no address."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embeddings_server import Server, running
from haystack import Document
from haystack_integrations.components.embedders.cde import CDEDocumentEmbedder, CDETextEmbedder
from plain_model import write_transformer

from cde_rag import ContextualEmbedder
from cde_rag.errors import ModelError

TEXTS = [f"river {number} and bank {number % 7}" for number in range(70)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-test")
    with running() as served:
        yield served


@pytest.mark.parametrize("kind", ["folder", "api"])
def test_vectors_are_those_of_the_named_model(kind: str, tmp_path: Path, server: Server) -> None:
    model = f"{server.url}#small" if kind == "api" else str(write_transformer(tmp_path / "model"))
    place = str(tmp_path / "papers.context.safetensors")
    found = CDEDocumentEmbedder(place, model=model).run([Document(content=text) for text in TEXTS])
    expected = ContextualEmbedder.from_corpus(TEXTS, model=model)
    assert found["meta"]["fingerprint"] == expected.fingerprint
    vectors = [document.embedding for document in found["documents"]]
    np.testing.assert_allclose(vectors, expected.embed_documents(TEXTS), atol=1e-6)
    assert server.url.encode() not in Path(place).read_bytes()
    named = model if kind == "api" else None
    later = CDEDocumentEmbedder(place, model=named).run([Document(content=TEXTS[3])])["documents"]
    np.testing.assert_allclose(later[0].embedding, vectors[3], atol=1e-6)
    query = CDETextEmbedder(place, model=named).run(TEXTS[0])["embedding"]
    np.testing.assert_allclose(query, expected.embed_queries(TEXTS[:1])[0], atol=1e-6)


def test_an_api_is_to_be_named_again(server: Server, tmp_path: Path) -> None:
    place = str(tmp_path / "papers.context.safetensors")
    CDEDocumentEmbedder(place, model=f"{server.url}#small").run([Document(content=text) for text in TEXTS])
    with pytest.raises(ModelError, match="no file holds"):
        CDETextEmbedder(place).run("a river")
    with pytest.raises(ModelError, match="Expected a model's name, as in openai:"):
        CDETextEmbedder(place, model=server.url).run("a river")
