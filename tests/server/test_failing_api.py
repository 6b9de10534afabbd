"""A collection whose model an API serves: one that fails is a bad gateway, and its address is in the log alone."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embeddings_server import Server
from embeddings_server import running as api_running
from served import Running, running

from cde_rag.collection.collection import Collection
from cde_rag.embedders.openai_api import openai_embedder
from cde_rag.server.registry import Registry
from cde_rag.server.service import ServerOptions, Service
from cde_rag.server.token_batcher import TokenBatcher
from cde_rag.stores.faiss import FaissStore

KEY = "sk-of-the-operator"
LONG = " ".join(["a river"] * 50)


@pytest.fixture
def api() -> Iterator[Server]:
    with api_running() as api:
        yield api


@pytest.fixture
def server(api: Server, tmp_path: Path) -> Iterator[Running]:
    embedder = openai_embedder("small", base_url=api.url, api_key=KEY, max_retries=0)
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder)
    papers.add(["a heron", "a swift"])
    service = Service(Registry({"papers": papers}, TokenBatcher()), ServerOptions())
    with running(service) as url:
        yield Running(url, service, embedder)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/collections/papers/search", {"query": "heron", "by": "vectors"}),
        ("/v1/collections/papers/records", {"records": [{"text": "a crane"}]}),
        ("/v1/embeddings", {"model": "small@papers", "input": ["heron"], "input_type": "query"}),
        ("/v1/chat/completions", {"model": "papers", "messages": [{"role": "user", "content": "heron?"}]}),
    ],
)
def test_a_failing_api_is_a_bad_gateway(
    server: Running, api: Server, path: str, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for api.raw in (None, {"data": []}, {"data": [{"index": 0, "embedding": [0.0]}]}):
        api.fails = 0 if api.raw else 100
        with caplog.at_level(logging.ERROR, logger="cde_rag.server"):
            error = server.post(path, body, 502)["error"]
        assert (error["code"], error["type"]) == ("model_service", "server_error")
        assert not any(secret in str(error) for secret in ("127.0.0.1", str(api.server_port), KEY, "too busy"))
    assert api.url in caplog.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/collections/papers/search", {"query": LONG}),
        ("/v1/collections/papers/records", {"records": [{"text": LONG}]}),
        ("/v1/embeddings", {"model": "small@papers", "input": [LONG], "input_type": "document"}),
        ("/v1/chat/completions", {"model": "papers", "messages": [{"role": "user", "content": LONG}]}),
    ],
)
def test_a_text_that_the_api_refuses_is_the_clients(
    server: Running, api: Server, path: str, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    api.longest = 200
    error = server.post(path, body, 400)["error"]
    assert "found one of 399 characters that its API refuses. Shorten it, or split it." in error["message"]
    assert api.url not in error["message"]
    assert f"too many tokens for {api.url}" in caplog.text


def test_a_job_names_no_address_either(server: Running, api: Server) -> None:
    api.fails = 100
    with server.client() as client:
        sent = client.post("/v1/collections/papers/files", params={"filename": "birds.md"}, content=b"# A crane stands")
    job = sent.json()
    while job["status"] == "running":
        time.sleep(0.02)
        job = server.get(f"/v1/jobs/{job['id']}")
    assert job["status"] == "failed"
    assert "the server's log has the reason" in job["error"]
    assert "127.0.0.1" not in job["error"]
