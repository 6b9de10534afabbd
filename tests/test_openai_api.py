"""An OpenAI-compatible API as an embedder: calls are cut, repeated and put in order, and an API that fails in
the middle costs nothing that was written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings_server import Server, running, vector
from intact import damages

from cde_rag.collection.collection import Collection
from cde_rag.embedders.openai_api import openai_embedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, ServiceError
from cde_rag.models.plain.fixed_texts import PROBES
from cde_rag.stores.faiss import FaissStore

TEXTS = [f"passage {i}" for i in range(20)]


@pytest.fixture
def server() -> Iterator[Server]:
    """Answers come last text first."""
    with running() as server:
        server.step = -1
        yield server


def test_vectors_are_those_of_the_api_in_order(server: Server) -> None:
    embedder = openai_embedder(
        "small", base_url=server.url, api_key="secret", mini_batch_size=8, prefixes={"query": "q: ", "document": ""}
    )
    server.calls.clear()
    expected = np.stack([vector(text) / np.linalg.norm(vector(text)) for text in TEXTS])
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), expected, atol=1e-6)
    assert [len(call["input"]) for call in server.calls] == [8, 8, 7]  # 20, and the fixed text in each
    assert server.keys == {"Bearer secret"}
    asked = vector("q: passage 3")
    np.testing.assert_allclose(embedder.embed_queries(["passage 3"])[0], asked / np.linalg.norm(asked), atol=1e-6)


def test_dimensions_are_asked_for(server: Server) -> None:
    embedder = openai_embedder("small", base_url=server.url, api_key="x", dimensions=5)
    assert embedder.embed_documents(TEXTS).shape == (20, 5)
    assert {call["dimensions"] for call in server.calls} == {5}
    for wrong, error in ((False, TypeError), (0, ValueError)):
        with pytest.raises(error, match="dimensions must be"):
            openai_embedder("small", base_url=server.url, api_key="x", dimensions=wrong)


def test_one_text_that_the_api_refuses_is_a_corpus_error(server: Server) -> None:
    """One of several is not known to be at fault, and fixed texts never are."""
    embedder = openai_embedder("small", base_url=server.url, api_key="x", prefixes={"query": "q: ", "document": "d: "})
    server.longest = 100
    for embed in (embedder.embed_documents, embedder.embed_queries):
        with pytest.raises(CorpusError, match=r"one of 203 characters that its API refuses\. Shorten it"):
            embed(["a" * 200])
        with pytest.raises(ServiceError, match=r"found: .*too many tokens"):
            embed(["a" * 200, "b"])
    server.longest = 1
    with pytest.raises(ServiceError, match="too many tokens"):
        openai_embedder("small", base_url=server.url, api_key="x", mini_batch_size=1)


def test_long_texts_go_in_calls_of_fewer(server: Server) -> None:
    """Three texts of 45,000 tokens by estimate: two fit into a call."""
    embedder = openai_embedder("small", base_url=server.url, api_key="x")
    server.calls.clear()
    texts = [f"{i} " + "word " * 36_000 for i in range(3)]
    embedder.embed_documents(texts)
    assert [len(call["input"]) for call in server.calls] == [2, 2]  # and the fixed text
    assert embedder.count_tokens(texts) == pytest.approx(135_000, rel=0.01)


@pytest.mark.parametrize("status", [429, 500])
def test_a_busy_api_is_asked_again(server: Server, status: int) -> None:
    embedder = openai_embedder("small", base_url=server.url, api_key="x", max_retries=3)
    server.calls.clear()
    server.fails, server.status = 3, status
    assert embedder.embed_documents(TEXTS).shape == (20, 8)
    assert len(server.calls) == 4


RAW: list[Any] = [
    {},
    [],
    {"data": None},
    {"data": [[0.5]]},
    {"data": [{"embedding": [0.5, 0.5]}, {"embedding": [0.5, 0.5]}, {"embedding": [0.5, 0.5]}]},  # without index
    {"data": [{"index": "a", "embedding": [1.0]}, {"index": None, "embedding": [1.0]}, {"index": 1, "embedding": [1]}]},
    {"data": [{"index": place} for place in range(3)]},
    {"data": [{"index": place, "embedding": [1.0, 2.0]} for place in (0, 0, 1)]},
    {"data": [{"index": place, "embedding": [1.0, 2.0]} for place in range(4)]},
    {"data": [{"index": place, "embedding": "AAAA"} for place in range(3)]},
]


def test_an_answer_of_another_form_is_an_error_in_words(server: Server) -> None:
    """Text 2 must not get the vector of text 1, and nothing is a traceback."""
    embedder = openai_embedder("small", base_url=server.url, api_key="x", max_retries=0)
    for server.raw in RAW:
        with pytest.raises(ModelError, match=r"expected"):
            embedder.embed_documents(TEXTS[:2])  # and the fixed text


def test_an_api_that_fails_in_the_middle_loses_nothing(server: Server, tmp_path: Path) -> None:
    """The second portion fails; the same call again embeds what lacks."""
    embedder = openai_embedder("small", base_url=server.url, api_key="x", max_retries=0)
    texts = [f"passage {i}" for i in range(1000)]
    plain = ArithmeticEmbedder.from_corpus([], model=embedder, corpus=False)
    papers = Collection.create(FaissStore(tmp_path / "papers"), plain)
    papers.add(texts[:512])
    server.fails = 1
    with pytest.raises(ModelError, match=r"too busy.* make the same call again, and it resumes"):
        papers.add(texts)
    assert papers.count() == 512
    server.calls.clear()
    papers.add(texts)
    assert sum(text != PROBES[0] for call in server.calls for text in call["input"]) == 488
    again = Collection.open(
        FaissStore(tmp_path / "papers"), model=openai_embedder("small", base_url=server.url, api_key="y")
    )
    assert again.search("passage 777")[0].text == "passage 777"
    stored = (tmp_path / "papers" / "collection.sqlite").read_bytes()
    assert server.url.encode() not in stored


@pytest.mark.parametrize("corpus", [False, True])
@pytest.mark.parametrize("answered", [0, 2, 4])
def test_an_api_that_fails_in_one_call_of_many(server: Server, tmp_path: Path, answered: int, *, corpus: bool) -> None:
    """Written records are searched at once, and stay; a second run requests the rest, and ends as one run."""
    texts = [f"passage {i}" for i in range(300)]
    embedder = openai_embedder("small", base_url=server.url, api_key="x", max_retries=0, mini_batch_size=50)
    mapped = ArithmeticEmbedder.from_corpus(texts[:100] if corpus else [], model=embedder, corpus=corpus)
    papers = Collection.create(FaissStore(tmp_path / "papers"), mapped)
    server.calls.clear()
    server.fails, server.until = 1, answered
    with pytest.raises(ModelError, match=r"too busy.* make the same call again"):
        papers.add(texts, ids=texts)
    assert len(server.calls) == answered + 1
    before = [text for call in server.calls[:answered] for text in call["input"] if text != PROBES[0]]
    written = papers.count()
    assert written == (128 if answered >= (1 if corpus else 3) else 0)  # a portion is written when all of it is there
    assert damages(papers) == []
    if written:
        assert papers.search(texts[0], 1)[0].id == texts[0]
    server.calls.clear()
    assert papers.add(texts, ids=texts).added == 300 - written
    asked = [text for call in server.calls for text in call["input"] if text != PROBES[0]]
    rest = texts[100 if corpus else 0 :]
    assert (before + asked)[: len(rest)] == rest  # each once: answers are kept
    assert len(before + asked) == len(rest) + 112  # queries of the calibration
    np.testing.assert_allclose(
        papers.store.vectors(texts, fingerprint=mapped.fingerprint), mapped.embed_documents(texts), atol=1e-6
    )
    assert damages(papers) == []


@pytest.mark.parametrize("arithmetic", [False, True])
def test_an_api_that_changes_its_model_behind_the_name(server: Server, tmp_path: Path, *, arithmetic: bool) -> None:
    """Another model of the same name and length is an error that says so; the old one still opens the collection."""

    def client(**options: Any) -> Any:
        return openai_embedder("small", base_url=server.url, api_key="x", max_retries=0, **options)

    made = ArithmeticEmbedder.from_corpus(TEXTS, model=client(), corpus=False) if arithmetic else client()
    papers = Collection.create(FaissStore(tmp_path / "papers"), made)
    papers.add(TEXTS, ids=TEXTS)
    server.weights = 1
    with pytest.raises(ContextMismatchError, match=r"'small' gives other vectors than when .* pin its version"):
        Collection.open(papers.store, model=client())
    with pytest.raises(ContextMismatchError, match="the function is 'small of 5 numbers', 5 numbers"):
        Collection.open(papers.store, model=client(dimensions=5))
    server.weights = 0
    again = Collection.open(papers.store, model=client())
    assert again.add([*TEXTS, "passage 20"], ids=[*TEXTS, "passage 20"]).added == 1
    assert again.verify() == []
    with pytest.raises(ModelError, match=r"function 'small', which no file holds; found model=None\. Give it"):
        Collection.open(papers.store)


def test_without_a_key_the_message_says_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match=r"Give api_key="):
        openai_embedder("small", base_url="http://127.0.0.1:9/v1")
