"""Models by name: a plain folder and what an API serves, in every route; keys and addresses are stored nowhere."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from embeddings_server import Server, running
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import IndexNode, TextNode
from llama_index.embeddings.cde import CDEEmbedding
from llama_index_corpora import sentences
from plain_model import write_transformer

from cde_rag import ContextualEmbedder
from cde_rag.errors import ContextMismatchError, ModelError

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")  # the plain model reads 12 tokens
KEY = "secret-of-the-test"
TEXTS = sentences(70)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_transformer(tmp_path_factory.mktemp("named") / "model").resolve())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running() as served:
        yield served


@pytest.fixture(params=["folder", "api"])
def name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes the name, so that a server runs only where it is asked."""
    if request.param == "folder":
        return lambda: request.getfixturevalue("plain")
    return lambda: f"{request.getfixturevalue('server').url}#small"


def test_an_index_has_the_vectors_of_the_named_model_and_is_loaded_again(
    name: Callable[[], str], tmp_path: Path
) -> None:
    model = name()
    embedding = CDEEmbedding(model_name=model)
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embedding)
    expected = ContextualEmbedder.from_corpus(TEXTS, model=model)
    assert embedding.fingerprint == expected.fingerprint
    assert expected.context.identity.corpus_map
    np.testing.assert_allclose(embedding.get_text_embedding_batch(TEXTS[:3]), expected.embed_documents(TEXTS[:3]))
    np.testing.assert_allclose(embedding.get_query_embedding(TEXTS[0]), expected.embed_queries(TEXTS[:1])[0])
    found = index.as_retriever(similarity_top_k=3).retrieve(TEXTS[0])
    index.storage_context.persist(str(tmp_path))
    embedding.persist(tmp_path)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in stored
    assert b"http://" not in stored
    again = CDEEmbedding.from_persist_dir(tmp_path, model_name=model)
    loaded = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(tmp_path)), embed_model=again)
    hits = loaded.as_retriever(similarity_top_k=3).retrieve(TEXTS[0])
    assert [(hit.node_id, hit.score) for hit in hits] == [(hit.node_id, pytest.approx(hit.score)) for hit in found]


def test_a_plain_model_is_found_by_the_name_in_its_context(plain: str, tmp_path: Path) -> None:
    embedding = CDEEmbedding(model_name=plain).fit(TEXTS)
    embedding.save(tmp_path / "papers.context.safetensors")
    again = CDEEmbedding.load(tmp_path / "papers.context.safetensors")
    assert again.model_name == plain
    assert again.get_query_embedding(TEXTS[0]) == embedding.get_query_embedding(TEXTS[0])
    other = CDEEmbedding.load(tmp_path / "papers.context.safetensors", model_name="cde-mini-1")
    with pytest.raises(ContextMismatchError):
        other.get_query_embedding(TEXTS[0])


def test_an_api_is_to_be_named_again(server: Server, tmp_path: Path) -> None:
    CDEEmbedding(model_name=f"{server.url}#small").fit(TEXTS).save(tmp_path / "papers.context.safetensors")
    with pytest.raises(ModelError, match=r"by its address: CDEEmbedding\(model_name=…\)"):
        CDEEmbedding.load(tmp_path / "papers.context.safetensors")
    with pytest.raises(ContextMismatchError):
        CDEEmbedding.load(
            tmp_path / "papers.context.safetensors", model_name=f"{server.url}#large"
        ).get_query_embedding("a")
    with pytest.raises(ModelError, match="Expected a model's name, as in openai:"):
        CDEEmbedding(model_name=server.url).fit(TEXTS)
    with pytest.raises(TypeError, match="runs elsewhere"):
        CDEEmbedding(model_name=f"{server.url}#small", dtype="bfloat16").fit(TEXTS)
    with pytest.raises(ModelError, match="Expected a bundled model"):
        CDEEmbedding(model_name=str(tmp_path)).fit(TEXTS)


def test_long_nodes_are_read_in_parts_by_a_plain_model(plain: str) -> None:
    nodes = [TextNode(text=text, id_=str(number)) for number, text in enumerate(TEXTS)]
    long = TextNode(text=". ".join(sentences(6, seed=3)), id_="long")
    index = VectorStoreIndex([*nodes, long], embed_model=CDEEmbedding(model_name=plain))
    parts = [node for node in index.docstore.docs.values() if isinstance(node, IndexNode) and node.index_id == "long"]
    assert len(parts) > 2
    hits = index.as_retriever(similarity_top_k=100).retrieve(sentences(6, seed=3)[-1])
    assert {hit.node_id for hit in hits} == {node.node_id for node in (*nodes, long)}
    assert len(hits) == len(TEXTS) + 1


def test_an_empty_index_takes_documents_of_a_plain_model(plain: str) -> None:
    embedding = CDEEmbedding(model_name=plain)
    index = VectorStoreIndex([], embed_model=embedding)
    with pytest.warns(match="embedded in the context of no corpus"):
        index.insert_nodes([TextNode(text=TEXTS[0], id_="first")])
    (hit,) = index.as_retriever().retrieve(TEXTS[0])
    assert (hit.node_id, hit.score) == ("first", pytest.approx(1.0, abs=0.5))
