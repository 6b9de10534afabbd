"""`/v1/embeddings`: the vectors are those of the library, through the clients that people use, also when they share
batches; a request that could get a wrong vector is refused."""

import base64
import json
import random
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from served import MODEL, Running, make, running, texts

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import CorpusError
from cde_rag.server import embedding_routes
from cde_rag.server.error_responses import RequestError
from cde_rag.server.text_limits import TEXT_CHARACTERS
from cde_rag.server.token_batcher import TokenBatcher, token_counts

NEAR = {"rtol": 0, "atol": 1e-5}


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_vectors_are_those_of_the_library(server: Running, encoding_format: Any) -> None:
    given = texts(50)
    with client_of(server) as client:
        for role, embed in (
            ("query", server.embedder.embed_queries),
            ("document", server.embedder.embed_documents),
        ):
            answer = client.embeddings.create(
                model=MODEL, input=given, encoding_format=encoding_format, extra_body={"input_type": role}
            )
            found = [one.embedding for one in answer.data]
            if encoding_format == "base64":
                found = [np.frombuffer(base64.b64decode(one), "<f4") for one in found]
            np.testing.assert_allclose(found, embed(given), **NEAR)
            assert [one.index for one in answer.data] == list(range(50))
            assert answer.usage.prompt_tokens == server.embedder.count_tokens(given)


def test_the_models_suffix_is_a_role(server: Running) -> None:
    with client_of(server) as client:
        for role, embed in (("query", server.embedder.embed_queries), ("document", server.embedder.embed_documents)):
            answer = client.embeddings.create(model=f"{MODEL}:{role}", input="river bank")
            np.testing.assert_allclose(answer.data[0].embedding, embed(["river bank"])[0], **NEAR)
    short = server.post("/v1/embeddings", {"model": "papers:query", "input": ["river bank"]})
    assert short["model"] == MODEL  # the collection's name is enough


def test_a_request_without_a_role_is_refused(server: Running, tmp_path: Path) -> None:
    error = server.post("/v1/embeddings", {"model": MODEL, "input": "river"}, 400)["error"]
    assert error["code"] == "missing_role"
    assert f"{MODEL}:query" in error["message"]
    body = {"model": f"{MODEL}:query", "input": "river", "input_type": "document"}
    assert server.post("/v1/embeddings", body, 400)["error"]["param"] == "input_type"
    service, embedder = make(tmp_path / "other", default_role="document")
    with running(service) as url:
        body = {"model": MODEL, "input": "river"}
        found = httpx.post(f"{url}/v1/embeddings", json=body, trust_env=False).json()["data"][0]["embedding"]
    np.testing.assert_allclose(found, embedder.embed_documents(["river"])[0], **NEAR)


def test_first_dimensions_have_norm_one(server: Running) -> None:
    body = {"model": MODEL, "input": texts(5), "input_type": "query", "dimensions": 6}
    found = np.array([one["embedding"] for one in server.post("/v1/embeddings", body)["data"]])
    first = server.embedder.embed_queries(texts(5))[:, :6]
    np.testing.assert_allclose(found, first / np.linalg.norm(first, axis=1, keepdims=True), **NEAR)
    assert server.post("/v1/embeddings", body | {"dimensions": 17}, 400)["error"]["param"] == "dimensions"
    assert server.post("/v1/embeddings", body | {"dimensions": 0}, 400)["error"]["param"] == "dimensions"


def test_langchain_gets_the_librarys_vectors_or_is_told_its_option(server: Running) -> None:
    def embeddings(role: str, **options: Any) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(
            model=f"{MODEL}:{role}", base_url=f"{server.url}/v1", api_key="none", max_retries=0, **options
        )

    given = texts(7)
    found = embeddings("document", check_embedding_ctx_length=False).embed_documents(given)
    np.testing.assert_allclose(found, server.embedder.embed_documents(given), **NEAR)
    found = embeddings("query", check_embedding_ctx_length=False).embed_query("river bank")
    np.testing.assert_allclose(found, server.embedder.embed_queries(["river bank"])[0], **NEAR)


def test_llama_index_gets_the_librarys_vectors(server: Running) -> None:
    def embedding(role: str) -> Any:
        return OpenAILikeEmbedding(model_name=f"{MODEL}:{role}", api_base=f"{server.url}/v1", api_key="none")

    found = embedding("document").get_text_embedding_batch(texts(7))
    np.testing.assert_allclose(found, server.embedder.embed_documents(texts(7)), **NEAR)
    found = embedding("query").get_query_embedding("river bank")
    np.testing.assert_allclose(found, server.embedder.embed_queries(["river bank"])[0], **NEAR)


@pytest.mark.parametrize("ids", [[3, 4, 5], [[3, 4], [5]]])
def test_token_ids_are_refused_with_the_clients_option(server: Running, ids: Any) -> None:
    with client_of(server) as client, pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(model=f"{MODEL}:query", input=ids)


def test_as_many_texts_as_openai_takes(server: Running) -> None:
    given = texts(2048)
    body = {"model": MODEL, "input": given, "input_type": "document"}
    found = [one["embedding"] for one in server.post("/v1/embeddings", body)["data"]]
    np.testing.assert_allclose(found, server.embedder.embed_documents(given), **NEAR)
    error = server.post("/v1/embeddings", body | {"input": [*given, "river"]}, 400)["error"]
    assert "2049" in error["message"]


@pytest.mark.parametrize(
    ("clients", "seconds"), [(60, 1), pytest.param(200, 60, marks=pytest.mark.long, id="200 for a minute")]
)
def test_parallel_clients_get_their_own_vectors(server: Running, clients: int, seconds: float) -> None:
    """Queries and documents of different lengths in common batches, each vector compared."""
    given = texts(600)
    expected = {"query": server.embedder.embed_queries(given), "document": server.embedder.embed_documents(given)}
    batches: list[int] = []
    server.service.registry.batcher.on_batch = lambda count, _tokens, _seconds: batches.append(count)

    requests, end = list[int](), time.monotonic() + seconds

    def client(seed: int) -> int:
        rng, compared = random.Random(seed), 0
        with server.client() as connection:
            while not compared or time.monotonic() < end:
                role = rng.choice(["query", "document"])
                rows = rng.sample(range(len(given)), rng.choice([1, 1, 1, 3, 40]))
                body = {"model": MODEL, "input": [given[row] for row in rows], "input_type": role}
                response = connection.post("/v1/embeddings", json=body)
                assert response.status_code == 200, response.text
                found = [one["embedding"] for one in response.json()["data"]]
                np.testing.assert_allclose(found, expected[role][rows], **NEAR)
                compared += len(rows)
                requests.append(len(rows))
        return compared

    with ThreadPoolExecutor(clients) as pool:
        compared = sum(pool.map(client, range(clients)))
    assert sum(batches) == compared == sum(requests)
    assert clients <= len(requests)
    assert len(batches) < len(requests)  # requests shared them
    print(f"{len(requests)} requests, {compared} vectors, {len(batches)} batches")


def test_unknown_models_and_other_spaces(server: Running) -> None:
    with client_of(server) as client:
        with pytest.raises(openai.NotFoundError, match="tiny@papers"):
            client.embeddings.create(model="tiny@other:query", input="river")
        with pytest.raises(openai.ConflictError) as caught:
            client.embeddings.create(model=f"{MODEL}:query", input="river", extra_body={"fingerprint": "f" * 64})
        assert caught.value.response.headers["x-should-retry"] == "false"
        answer = client.embeddings.create(
            model=f"{MODEL}:query", input="river", extra_body={"fingerprint": server.embedder.fingerprint}
        )
        assert answer.model_dump()["fingerprint"] == server.embedder.fingerprint


def test_models_are_listed(server: Running) -> None:
    with client_of(server) as client:
        models = {model.id: model.model_dump() for model in client.models.list()}
        assert models.keys() == {"tiny@papers", "tiny@notes"}
        assert client.models.retrieve(MODEL).model_dump() == models[MODEL]
    assert models[MODEL]["fingerprint"] == server.embedder.fingerprint
    assert (models[MODEL]["dimensions"], models[MODEL]["max_input_tokens"]) == (16, 32)


@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_texts_beyond_the_limit_are_counted_or_refused(server: Running) -> None:
    body = {"model": MODEL, "input": ["river", "river " * 100], "input_type": "query"}
    assert server.post("/v1/embeddings", body)["usage"]["inputs_at_limit"] == 1
    error = server.post("/v1/embeddings", body | {"truncation": False}, 400)["error"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "1 to 2048"),
        ({"input": 3}, "token ids"),
        ({"input": {"text": "river"}}, "found dict"),
        ({"input": ["river", None]}, "NoneType at position 1"),
        ({"input": ["river", " "]}, "Text 1 is empty or blank"),
        ({"input": "\ud800"}, "Unicode"),
        ({"model": 3}, "model"),
        ({"late_chunking": True}, "found queries"),
        ({"late_chunking": "yes"}, "late_chunking"),
        ({"encoding_format": "ubinary"}, "encoding_format"),
        ({"dimensions": "6"}, "dimensions"),
        ({"dimensions": 6, "output_dimension": 5}, "two names"),
        ({"input_type": "passage"}, "input_type"),
        ({"input": ["river", "x" * (TEXT_CHARACTERS + 1)]}, "text 1: expected at most 200,000 characters"),
    ],
)
def test_bad_fields_are_named(unchanged: Running, change: Any, message: str) -> None:
    body = {"model": f"{MODEL}:query", "input": "river"} | change
    assert message in unchanged.post("/v1/embeddings", body, 400)["error"]["message"]


def test_a_request_has_a_bound_of_tokens_in_all(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_routes, "REQUEST_TOKENS", 100)
    with client_of(server) as client:
        tokens = client.embeddings.create(model=f"{MODEL}:document", input=texts(9)).usage.total_tokens
        assert tokens <= 100
        with pytest.raises(openai.BadRequestError, match="at most 100 tokens in a request") as caught:
            client.embeddings.create(model=f"{MODEL}:document", input=texts(60))
        assert caught.value.code == "max_tokens_per_request"
    for more in ({"late_chunking": True}, {}):
        path = "embeddings" if more else "contextualizedembeddings"
        body = {"model": f"{MODEL}:document", **({"input": texts(60)} if more else {"inputs": [texts(60)]}), **more}
        assert server.post(f"/v1/{path}", body, 400)["error"]["code"] == "max_tokens_per_request"


def test_null_is_a_field_left_out(server: Running) -> None:
    """LiteLLM sends "encoding_format": null."""
    body = {"model": f"{MODEL}:document", "input": ["river"]}
    names = set(embedding_routes.EmbeddingsRequest.model_fields) - body.keys()
    assert server.post("/v1/embeddings", body | dict.fromkeys(names)) == server.post("/v1/embeddings", body)
    body = {"model": f"{MODEL}:document", "inputs": [["river"]]}
    names = set(embedding_routes.ContextualizedRequest.model_fields) - body.keys()
    found = [server.post("/v1/contextualizedembeddings", one) for one in (body | dict.fromkeys(names), body)]
    assert found[0] == found[1]


def test_late_chunking_takes_the_list_as_one_document(server: Running) -> None:
    given = texts(9)
    body = {"model": MODEL, "input": given, "input_type": "document", "late_chunking": True}
    found = [one["embedding"] for one in server.post("/v1/embeddings", body)["data"]]
    np.testing.assert_allclose(found, server.embedder.embed_chunks([given])[0], **NEAR)
    assert np.abs(np.array(found) - server.embedder.embed_documents(given)).max() > 1e-3


def test_metrics_count_the_tokens_of_late_chunking(server: Running) -> None:
    body = {"model": MODEL, "input": texts(9), "input_type": "document", "late_chunking": True}
    tokens = server.post("/v1/embeddings", body)["usage"]["total_tokens"]
    with server.client() as client:
        counted = client.get("/metrics").text
    assert f"cde_rag_tokens_total {float(tokens)}" in counted
    assert "cde_rag_batch_texts_sum 9.0" in counted


def test_late_chunking_keeps_to_the_bound_of_pending_tokens(tmp_path: Path) -> None:
    service, embedder = make(tmp_path, pending_tokens=60)
    given = texts(30)
    body = {"model": MODEL, "input": given, "input_type": "document", "late_chunking": True}
    with running(service) as url:
        server = Running(url, service, embedder)
        assert server.post("/v1/embeddings", body, 413)["error"]["code"] == "request_too_large"
        few = {**body, "input": given[:2]}
        with service.registry.batcher.reserved(60):
            assert server.post("/v1/embeddings", few, 429)["error"]["code"] == "queue_full"
        server.post("/v1/embeddings", few)
        assert service.registry.batcher.pending == 0


def test_late_chunking_is_the_same_in_a_runtime_without_torch(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": MODEL, "input": texts(2), "input_type": "document", "late_chunking": True}
    expected = server.post("/v1/embeddings", body)["data"]
    monkeypatch.setattr(server.embedder.model, "runtime", "openvino")
    assert server.post("/v1/embeddings", body)["data"] == expected


class Gate(ContextualEmbedder):
    """Embeds once it may; notes the size of each batch, and fails for the text "fish"."""

    started, may_go = threading.Event(), threading.Event()
    sizes: list[int]

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.started.set()
        self.may_go.wait()
        self.sizes.append(len(texts))
        if "fish" in texts:
            raise CorpusError("fish")
        return super().embed_queries(texts)


@pytest.fixture
def gate(tiny_model: CDEModel) -> Gate:
    embedder = Gate(tiny_model, Context.null(tiny_model))
    embedder.started, embedder.may_go, embedder.sizes = threading.Event(), threading.Event(), []
    return embedder


def test_a_text_that_cannot_be_embedded_fails_its_own_call_alone(gate: Gate) -> None:
    batcher = TokenBatcher()
    first = batcher.submit(gate, "query", ["river"], [3])
    gate.started.wait()
    good = batcher.submit(gate, "query", ["boat", "loan"], [3, 3])
    bad = batcher.submit(gate, "query", ["fish"], [3])
    gate.may_go.set()
    assert first.result().vectors.shape == (1, 16)
    np.testing.assert_allclose(good.result().vectors, gate.embed_queries(["boat", "loan"]), **NEAR)
    with pytest.raises(CorpusError):
        bad.result()
    batcher.close()
    assert gate.sizes[:4] == [1, 3, 2, 1]  # together, and then each alone
    assert batcher.pending == 0


def test_a_long_call_does_not_keep_short_ones_waiting_nor_they_it(gate: Gate) -> None:
    """Short calls that come all the time, each once the one before has ended, and a long one of 40 batches."""
    batcher = TokenBatcher(batch_tokens=10)
    long = batcher.submit(gate, "query", ["river"] * 40, [10] * 40)
    gate.started.wait()
    waiting = [batcher.submit(gate, "query", ["bank"] * 2, [5, 5]) for _ in range(3)]
    batches: list[int] = []  # until each had its answer
    for call in waiting:
        call.add_done_callback(lambda _: batches.append(len(gate.sizes)))
    gate.may_go.set()
    for call in waiting:
        call.result()
    assert max(batches) <= 10  # where they were last in the queue of 40
    while not long.done():
        batcher.submit(gate, "query", ["bank"], [10]).result()
    assert len(gate.sizes) <= 2 * 40 + 10  # every other batch is the long call's
    batcher.close()
    assert batcher.pending == 0


def test_a_client_that_leaves_takes_its_texts_along(tmp_path: Path) -> None:
    """What waits to be embedded for it is not embedded."""
    service, _ = make(tmp_path, batch_tokens=50)
    batcher, may_go, batches = service.registry.batcher, threading.Event(), list[int]()

    def on_batch(count: int, _tokens: int, _seconds: float) -> None:
        batches.append(count)
        may_go.wait()

    body = json.dumps({"model": MODEL, "input": texts(500), "input_type": "query"}).encode()
    head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with running(service) as url:
        batcher.on_batch = on_batch
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            deadline = time.monotonic() + 30
            while not batches and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(0.5)  # the server sees that the client has left
        may_go.set()
        while batcher.pending and time.monotonic() < deadline:
            time.sleep(0.01)
    assert batcher.pending == 0
    assert 0 < len(batches) < 5


def test_batches_keep_to_the_budget_and_the_bound(gate: Gate) -> None:
    batcher = TokenBatcher(batch_tokens=10, pending_tokens=100)
    calls = [batcher.submit(gate, "query", ["river"] * 7, [3] * 7) for _ in range(4)]
    with pytest.raises(RequestError) as caught:
        batcher.submit(gate, "query", ["river"] * 6, [3] * 6)
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) >= 1
    with pytest.raises(RequestError) as caught:
        batcher.submit(gate, "query", ["river"], [101])
    assert caught.value.status == 413
    left = batcher.submit(gate, "query", ["river"], [11])
    left.cancel()
    gate.may_go.set()
    assert [call.result().vectors.shape for call in calls] == [(7, 16)] * 4
    long = batcher.submit(gate, "query", ["river"], [11])  # one text beyond the budget is a batch
    assert long.result().vectors.shape == (1, 16)
    batcher.close()
    assert max(gate.sizes) == 3
    assert sum(gate.sizes) == 29  # the call that was cancelled cost nothing
    assert batcher.pending == 0
    with pytest.raises(RequestError) as caught:
        batcher.submit(gate, "query", ["river"], [3])
    assert caught.value.status == 503


def test_a_full_queue_is_a_429_over_http(tmp_path: Path) -> None:
    service, _ = make(tmp_path, pending_tokens=600)
    may_go = threading.Event()
    with running(service) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": MODEL, "input": texts(30), "input_type": "query"}
        assert client.post("/v1/embeddings", json=body).status_code == 200
        service.registry.batcher.on_batch = lambda *_: may_go.wait()
        with ThreadPoolExecutor() as pool:
            running_now = pool.submit(client.post, "/v1/embeddings", json=body | {"input": ["river"]})
            running_now.result()
            waiting = [pool.submit(client.post, "/v1/embeddings", json=body) for _ in range(2)]
            while not service.registry.batcher.pending:
                time.sleep(0.01)
            refused = client.post("/v1/embeddings", json=body | {"input": texts(60)})
            may_go.set()
            assert refused.status_code in (413, 429)
            assert {each.result().status_code for each in waiting} <= {200, 429}


def test_counts_are_of_each_text(server: Running) -> None:
    given = texts(20)
    assert sum(token_counts(server.embedder, given)) == server.embedder.count_tokens(given)


class Panicking(ContextualEmbedder):
    """One that raises no Exception, as a Rust library panics, then makes vectors of a wrong length, then right ones."""

    calls = 0

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.calls += 1
        if self.calls == 1:
            raise SystemExit("panicked")
        return np.ones((len(texts), 3), np.float32) if self.calls == 2 else super().embed_queries(texts)


def test_an_error_of_any_kind_is_its_calls_alone(tiny_model: CDEModel) -> None:
    batcher, embedder = TokenBatcher(), Panicking(tiny_model, Context.null(tiny_model))
    for error in (SystemExit, Exception):
        with pytest.raises(error):
            batcher.submit(embedder, "query", ["river"], [1]).result(timeout=60)
    found = batcher.submit(embedder, "query", ["river"], [1]).result(timeout=60)
    batcher.close()
    assert (found.vectors.shape, batcher.pending) == ((1, embedder.dim), 0)
