"""An OpenAI-compatible API as an embedder: calls are cut, repeated and put in order, and an API that fails in
the middle costs nothing that was written."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cde_rag.collection.collection import Collection
from cde_rag.embedders.arithmetic import ArithmeticEmbedder
from cde_rag.embedders.openai_api import openai_embedder
from cde_rag.errors import ModelError
from cde_rag.stores.faiss import FaissStore

TEXTS = [f"passage {i}" for i in range(20)]


class Server(ThreadingHTTPServer):
    """An API on this machine: the vector of a text is drawn by its bytes; answers come last text first.

    Attributes:
        calls: What was asked, in order, failed calls included.
        keys: Keys that came with the calls.
        fails: How many calls are going to fail, and with which status.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Calls)
        self.calls: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.fails, self.status = 0, 500

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Calls(BaseHTTPRequestHandler):
    """One call."""

    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(asked)
        self.server.keys.add(self.headers["Authorization"])
        if self.path != "/v1/embeddings" or self.server.fails:
            self.server.fails -= 1
            self._answer(self.server.status, {"error": {"message": "too busy"}})
            return
        dim = asked.get("dimensions", 8)
        rows = [
            {"object": "embedding", "index": place, "embedding": vector(text, dim).tolist()}
            for place, text in enumerate(asked["input"])
        ]
        self._answer(200, {"object": "list", "data": rows[::-1], "model": asked["model"], "usage": {"total_tokens": 1}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def vector(text: str, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(list(text.encode())).normal(size=dim)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_vectors_are_those_of_the_api_in_order(server: Server) -> None:
    embedder = openai_embedder(
        "small", base_url=server.url, api_key="secret", mini_batch_size=8, prefixes={"query": "q: ", "document": ""}
    )
    server.calls.clear()
    expected = np.stack([vector(text) / np.linalg.norm(vector(text)) for text in TEXTS])
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), expected, atol=1e-6)
    assert [len(call["input"]) for call in server.calls] == [8, 8, 4]
    assert server.keys == {"Bearer secret"}
    asked = vector("q: passage 3")
    np.testing.assert_allclose(embedder.embed_queries(["passage 3"])[0], asked / np.linalg.norm(asked), atol=1e-6)


def test_dimensions_are_asked_for(server: Server) -> None:
    embedder = openai_embedder("small", base_url=server.url, api_key="x", dimensions=5)
    assert embedder.embed_documents(TEXTS).shape == (20, 5)
    assert {call["dimensions"] for call in server.calls} == {5}


def test_long_texts_go_in_calls_of_fewer(server: Server) -> None:
    """Three texts of 45,000 tokens by estimate: two fit into a call."""
    embedder = openai_embedder("small", base_url=server.url, api_key="x")
    server.calls.clear()
    texts = [f"{i} " + "word " * 36_000 for i in range(3)]
    embedder.embed_documents(texts)
    assert [len(call["input"]) for call in server.calls] == [2, 1]
    assert embedder.count_tokens(texts) == pytest.approx(135_000, rel=0.01)


@pytest.mark.parametrize("status", [429, 500])
def test_a_busy_api_is_asked_again(server: Server, status: int) -> None:
    embedder = openai_embedder("small", base_url=server.url, api_key="x", max_retries=3)
    server.calls.clear()
    server.fails, server.status = 3, status
    assert embedder.embed_documents(TEXTS).shape == (20, 8)
    assert len(server.calls) == 4


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
    assert sum(len(call["input"]) for call in server.calls) == 488
    again = Collection.open(
        FaissStore(tmp_path / "papers"), model=openai_embedder("small", base_url=server.url, api_key="y")
    )
    assert again.search("passage 777")[0].text == "passage 777"
    stored = (tmp_path / "papers" / "collection.sqlite").read_bytes()
    assert server.url.encode() not in stored


def test_without_a_key_the_message_says_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match=r"Give api_key="):
        openai_embedder("small", base_url="http://127.0.0.1:9/v1")
