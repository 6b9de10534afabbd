"""Users' own embeddings of LlamaIndex: context by arithmetic in every route, and no vector of another model."""

import json
import pickle  # noqa: TID251 - what LlamaIndex does with transformations for its worker processes
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import chromadb
import numpy as np
import openai
import pytest
from embeddings_server import Server, running
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.embeddings.cde.own_model import function_of
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index_corpora import corpus, sentences
from plain_model import write_transformer
from qdrant_client import QdrantClient
from test_llama_index_parents import passages

from cde_rag import EmbedderOptions, PlainEmbedder
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.errors import ContextMismatchError, ModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),  # its model reads 12 tokens
]

TEXTS = [document.text for document in corpus()]


@cache
def plain(folder: str) -> ContextualEmbedder:
    return PlainEmbedder(folder, options=EmbedderOptions(device="cpu"))


class Own(BaseEmbedding):
    """A small SentenceTransformer as an embedding of LlamaIndex, with its prompt for queries."""

    folder: str

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return plain(self.folder).embed_passages(texts, None).vectors.tolist()

    def _get_query_embedding(self, query: str) -> Embedding:
        return plain(self.folder).embed_queries([query])[0].tolist()

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return self._get_query_embedding(query)


class Changed(Own):
    """Another model behind the same name."""

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return [vector[::-1] for vector in super()._get_text_embeddings(texts)]


Changed.__name__ = "Own"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_transformer(tmp_path_factory.mktemp("own") / "model"))


@pytest.fixture
def own(folder: str) -> Own:
    return Own(folder=folder, model_name="own-1")


@pytest.fixture
def core(folder: str) -> ContextualEmbedder:
    """The core's arithmetic over the same model."""
    return ArithmeticEmbedder.from_corpus(TEXTS, model=plain(folder))


def by_documents(embedding: CDEEmbedding, store: BasePydanticVectorStore) -> None:
    storage = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex.from_documents(corpus(), storage_context=storage, embed_model=embedding)


def by_transformation(embedding: CDEEmbedding, store: BasePydanticVectorStore) -> None:
    storage = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex.from_documents(
        corpus(), storage_context=storage, transformations=[embedding], embed_model=embedding
    )


def by_inserts(embedding: CDEEmbedding, store: BasePydanticVectorStore) -> None:
    first, *others = corpus()
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding.fit(TEXTS))
    index.insert(first)
    index.insert_nodes(others)


def by_pipeline(embedding: CDEEmbedding, store: BasePydanticVectorStore) -> None:
    IngestionPipeline(transformations=[embedding], vector_store=store).run(documents=corpus())


Chroma = Callable[[], ChromaVectorStore]


@pytest.fixture
def chroma(tmp_path: Path) -> Chroma:
    """Opens the store of one collection, each time anew."""
    client = chromadb.PersistentClient(path=str(tmp_path / "chroma"))
    return lambda: ChromaVectorStore(chroma_collection=client.get_or_create_collection("essays"))


@pytest.mark.parametrize("fill", [by_documents, by_transformation, by_inserts, by_pipeline])
def test_every_route_has_the_cores_vectors_and_scores(
    own: Own, core: ContextualEmbedder, chroma: Chroma, fill: Callable[..., None]
) -> None:
    fill(CDEEmbedding(model=own), chroma())
    held = chroma().client.get(include=["documents", "embeddings"])
    found = dict(zip(held["documents"], held["embeddings"], strict=True))
    vectors = core.embed_documents(TEXTS)
    assert np.abs(vectors - plain(own.folder).embed_documents(TEXTS)).max() > 1e-2
    np.testing.assert_allclose([found[text] for text in TEXTS], vectors, atol=1e-5)
    retriever = VectorStoreIndex.from_vector_store(chroma(), embed_model=CDEEmbedding(model=own)).as_retriever(
        similarity_top_k=5
    )
    scores = vectors @ core.embed_queries(["a loan for the boat"])[0]
    expected = [TEXTS[place] for place in np.argsort(-scores)[:5]]
    assert [hit.text for hit in retriever.retrieve("a loan for the boat")] == expected


async def test_async_routes_have_the_same_vectors(own: Own, core: ContextualEmbedder) -> None:
    embedding = CDEEmbedding(model=own)
    nodes = await IngestionPipeline(transformations=[embedding]).arun(documents=corpus())
    np.testing.assert_allclose([node.embedding for node in nodes], core.embed_documents(TEXTS), atol=1e-5)
    query = await embedding.aget_query_embedding("money")
    np.testing.assert_allclose(query, core.embed_queries(["money"])[0], atol=1e-5)


Opened = Callable[[CDEEmbedding], VectorStoreIndex]


@pytest.fixture(params=["simple", "chroma", "qdrant"])
def opened(request: pytest.FixtureRequest, own: Own, chroma: Chroma, tmp_path: Path) -> Opened:
    """Opens an index of `corpus()` that was built with the own model."""
    client = QdrantClient(":memory:")
    stores = {"simple": SimpleVectorStore, "chroma": chroma, "qdrant": lambda: QdrantVectorStore("e", client=client)}
    store = stores[request.param]
    storage = StorageContext.from_defaults(vector_store=store())
    index = VectorStoreIndex.from_documents(corpus(), storage_context=storage, embed_model=CDEEmbedding(model=own))
    index.storage_context.persist(tmp_path / "storage")

    def reopen(embedding: CDEEmbedding) -> VectorStoreIndex:
        if request.param != "simple":
            return VectorStoreIndex.from_vector_store(store(), embed_model=embedding)
        storage = StorageContext.from_defaults(persist_dir=str(tmp_path / "storage"))
        index = load_index_from_storage(storage, embed_model=embedding)
        assert isinstance(index, VectorStoreIndex)
        return index

    return reopen


def test_a_built_index_is_opened_with_the_model_and_nothing_else(
    opened: Opened, own: Own, core: ContextualEmbedder
) -> None:
    index = opened(CDEEmbedding(model=own))
    index.insert(Document(text="a loan for the boat", id_="new"))
    hits = index.as_retriever(similarity_top_k=3).retrieve("a loan for the boat")
    texts = [*TEXTS, "a loan for the boat"]
    scores = core.embed_documents(texts) @ core.embed_queries(["a loan for the boat"])[0]
    assert [hit.text for hit in hits] == [texts[place] for place in np.argsort(-scores)[:3]]


@pytest.mark.parametrize("step", ["query", "insert"])
def test_a_built_index_takes_no_other_model(
    opened: Opened, own: Own, fresh: Callable[..., CDEEmbedding], step: str
) -> None:
    def use(embedding: CDEEmbedding) -> None:
        index = opened(embedding)
        if step == "query":
            index.as_retriever().retrieve("money")
        else:
            index.insert(Document(text="money"))

    changed = Changed(folder=own.folder, model_name="own-1")
    with pytest.raises(ContextMismatchError, match=r"'Own\(own-1\)' gives other vectors than when .* pin its version"):
        use(CDEEmbedding(model=changed))
    with pytest.raises(ContextMismatchError, match=r"made with 'Own\(own-1\)'.* function is 'Own\(own-2\)'"):
        use(CDEEmbedding(model=Own(folder=own.folder, model_name="own-2")))
    with pytest.raises(ContextMismatchError):
        use(CDEEmbedding(model=own).fit(TEXTS[:70]))
    with pytest.raises(ModelError, match=r"your own embedding 'Own\(own-1\)'.*CDEEmbedding\(model=…\)"):
        use(fresh())


def test_vectors_of_a_bundled_model_are_not_taken_over(fresh: Callable[..., CDEEmbedding], own: Own) -> None:
    index = VectorStoreIndex.from_documents(corpus(), embed_model=fresh())
    with pytest.raises(ContextMismatchError, match=r"with the model 'tiny', .* leave model out"):
        index.as_retriever(embed_model=CDEEmbedding(model=own)).retrieve("money")


def nodes_of(vectors: list[BaseNode]) -> np.ndarray:
    return np.array([node.embedding for node in vectors], dtype=np.float32)


def test_siblings_have_the_weight_that_the_context_says(own: Own, tmp_path: Path) -> None:
    nodes = passages()
    texts, parents = [node.get_content("embed") for node in nodes], [node.ref_doc_id for node in nodes]
    embedding, again = CDEEmbedding(model=own), CDEEmbedding(model=own)
    embedding.bind(ArithmeticEmbedder.from_corpus(texts, model=function_of(own), weight=0.3))
    index = VectorStoreIndex(nodes, transformations=[embedding], embed_model=embedding)
    index.storage_context.persist(tmp_path)
    storage = StorageContext.from_defaults(persist_dir=str(tmp_path))
    load_index_from_storage(storage, embed_model=again).as_retriever().retrieve("money")
    core = ArithmeticEmbedder.from_corpus(texts, model=plain(own.folder), weight=0.3)
    for each in (embedding, again):
        found = nodes_of(each(passages()))
        np.testing.assert_allclose(found, core.embed_documents(texts, parents=parents), atol=1e-5)
        assert each.inspect().texts_with_parent == len(nodes)


def test_without_a_weight_a_transformation_reads_no_siblings(own: Own) -> None:
    embedding = CDEEmbedding(model=own)
    nodes = list(embedding(passages()))
    alone = embedding.get_text_embedding_batch([node.get_content("embed") for node in nodes])
    np.testing.assert_allclose(nodes_of(nodes), alone, atol=1e-6)
    assert embedding.inspect().texts_with_parent == 0


def test_a_context_goes_to_files_dictionaries_and_workers(own: Own, tmp_path: Path) -> None:
    path = tmp_path / "essays.context.safetensors"
    embedding = CDEEmbedding.from_documents(corpus(), model=own, transformations=[], context_size=20, seed=3)
    assert embedding.inspect().context_documents_seen == 80
    embedding.save(path)
    copies = (
        CDEEmbedding(model=own, context_path=path),
        CDEEmbedding.load(path, model=own),
        CDEEmbedding.from_dict(embedding.to_dict(), model=own),
        pickle.loads(pickle.dumps(embedding)),
    )
    for again in copies:
        assert again.fingerprint == embedding.fingerprint
        assert again.get_text_embedding("money") == embedding.get_text_embedding("money")
        assert again.get_query_embedding("money") == embedding.get_query_embedding("money")
    with pytest.raises(ModelError, match=r"CDEEmbedding\(model=…\)"):
        CDEEmbedding.load(path)


def test_the_sample_is_of_the_seed_and_size(own: Own) -> None:
    def fingerprint(size: int, seed: int) -> str | None:
        return CDEEmbedding(model=own, context_size=size, seed=seed).fit(TEXTS).fingerprint

    assert fingerprint(20, 0) == fingerprint(20, 0)
    assert len({fingerprint(20, 0), fingerprint(20, 1), fingerprint(30, 0)}) == 3


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_the_same_few_documents_are_no_other_corpus(own: Own) -> None:
    embedding = CDEEmbedding(model=own)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            VectorStoreIndex.from_documents(corpus(8), embed_model=embedding)
    assert "ContextReusedWarning" not in {each.category.__name__ for each in told}


@pytest.mark.parametrize("field", [{"windows": True}, {"device": "cpu"}, {"dtype": "float32"}, {"model_name": "other"}])
def test_fields_of_bundled_models_are_refused(own: Own, field: dict[str, str | bool]) -> None:
    with pytest.raises(TypeError, match=rf"Own\(own-1\) reads texts in its own way: leave {next(iter(field))} out"):
        CDEEmbedding(model=own, **field)  # pyright: ignore[reportArgumentType]


def test_a_cache_that_would_hide_a_changed_model_is_refused(own: Own) -> None:
    cached = Own(folder=own.folder, model_name="own-1", embeddings_cache=SimpleKVStore())
    with pytest.raises(TypeError, match=r"CDEEmbedding\(model=…, embeddings_cache=…\)"):
        CDEEmbedding(model=cached).fit(TEXTS)
    here = CDEEmbedding(model=own, embeddings_cache=SimpleKVStore()).fit(TEXTS)
    assert here.get_text_embedding("money") != here.get_query_embedding("money") == here.get_query_embedding("money")


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def client(server: Server) -> OpenAIEmbedding:
    return OpenAIEmbedding(
        model="text-embedding-3-small", api_base=server.url, api_key="secret", max_retries=1, reuse_client=False
    )


QUERY = """
import json, sys
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.embeddings.openai import OpenAIEmbedding

folder, url = sys.argv[1:]
model = OpenAIEmbedding(model="text-embedding-3-small", api_base=url, api_key="other", max_retries=1)
storage = StorageContext.from_defaults(persist_dir=folder)
index = load_index_from_storage(storage, embed_model=CDEEmbedding(model=model))
print(json.dumps([[hit.node_id, hit.score] for hit in index.as_retriever(similarity_top_k=5).retrieve("money")]))
"""


@pytest.mark.slow
def test_an_index_of_an_api_is_searched_by_another_process(server: Server, tmp_path: Path) -> None:
    index = VectorStoreIndex.from_documents(corpus(), embed_model=CDEEmbedding(model=client(server)))
    index.storage_context.persist(tmp_path)
    hits = index.as_retriever(similarity_top_k=5).retrieve("money")

    def other() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", QUERY, str(tmp_path), server.url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    answer = other()
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == [[hit.node_id, pytest.approx(hit.score)] for hit in hits]
    server.weights = 1
    answer = other()
    assert "'OpenAIEmbedding(text-embedding-3-small)' gives other vectors than when" in answer.stderr
    for written in tmp_path.iterdir():
        assert not {b"secret", server.url.encode()} & set(written.read_bytes().split(b'"'))


def test_each_text_is_sent_once(server: Server) -> None:
    embedding = CDEEmbedding(model=client(server))
    VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    sent = [text for call in server.calls for text in call["input"]]
    assert sorted(text for text in sent if text in TEXTS) == sorted(TEXTS)
    assert len(sent) == 80 + 16 + 1  # the fixed texts that the model is known by; one again in the call for documents
    assert "model" not in embedding.to_dict()
    assert not any("secret" in form for form in (repr(embedding), embedding.to_json(), str(embedding.to_payload())))


@pytest.mark.parametrize("answered", [0, 3, 10])
def test_a_build_that_an_api_broke_is_repeated_in_the_same_context(server: Server, answered: int) -> None:
    """The API fails in the probe, in the sample of the corpus, or in the rest."""
    embedding = CDEEmbedding(model=client(server), context_size=64)
    server.fails, server.until = 10**6, answered
    texts = [TextNode(text=text) for text in sentences(400)]
    with pytest.raises(openai.InternalServerError, match="too busy"):
        VectorStoreIndex(texts, embed_model=embedding)
    server.fails = 0
    index = VectorStoreIndex(texts, embed_model=embedding)
    whole = CDEEmbedding(model=client(server), context_size=64).fit([node.text for node in texts])
    assert embedding.fingerprint == whole.fingerprint
    found = [index.vector_store.get(node.node_id) for node in texts]
    np.testing.assert_allclose(found, whole.get_text_embedding_batch([node.text for node in texts]), atol=1e-6)
