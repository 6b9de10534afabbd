"""Contexts over HTTP: chunks with their siblings as Voyage's clients send them, contexts made from documents, and moves
of a collection to another context as jobs."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import voyageai
from intact import damages
from served import MODEL, Running, make, records, running, texts

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.server.error_responses import RequestError
from cde_rag.server.jobs import Jobs

NEAR = {"rtol": 0, "atol": 1e-5}
DOCUMENTS = [texts(5), texts(1, start=50), texts(30, start=60)]


def test_chunks_get_each_other_as_siblings(server: Running) -> None:
    client = voyageai.Client(api_key="none", base_url=f"{server.url}/v1")  # pyright: ignore[reportPrivateImportUsage]
    found = client.contextualized_embed(DOCUMENTS, model=MODEL, input_type="document")
    parents = [str(place) for place, document in enumerate(DOCUMENTS) for _ in document]
    chunks = [chunk for document in DOCUMENTS for chunk in document]
    expected = server.embedder.embed_documents(chunks, parents=parents)
    np.testing.assert_allclose([one for result in found.results for one in result.embeddings], expected, **NEAR)
    assert [len(result.embeddings) for result in found.results] == [5, 1, 30]
    assert found.total_tokens == server.embedder.count_tokens(chunks)
    alone = server.embedder.embed_documents(chunks)
    assert np.abs(alone - expected).max() > 0.01
    queries = client.contextualized_embed([["river bank"]], model=MODEL, input_type="query", output_dimension=6)
    first = server.embedder.embed_queries(["river bank"])[0, :6]
    np.testing.assert_allclose(queries.results[0].embeddings[0], first / np.linalg.norm(first), **NEAR)
    plain = client.embed(texts(3), model=MODEL, input_type="document")
    np.testing.assert_allclose(plain.embeddings, server.embedder.embed_documents(texts(3)), **NEAR)


def test_perplexitys_names_of_the_fields_give_the_same_vectors(server: Running) -> None:
    url, given = f"{server.url}/v1/contextualizedembeddings", {"model": f"{MODEL}:document"}
    voyage = httpx.post(url, json={**given, "inputs": DOCUMENTS, "output_dimension": 6}).json()
    fields = {**given, "input": DOCUMENTS, "dimensions": 6}
    numbers = httpx.post(url, json={**fields, "encoding_format": "float"}).json()
    assert numbers == voyage
    found = httpx.post(url, json={**fields, "encoding_format": "base64"}).json()
    assert [len(document["data"]) for document in found["data"]] == [5, 1, 30]
    for document, expected in zip(found["data"], voyage["data"], strict=True):
        vectors = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in document["data"]]
        np.testing.assert_allclose(vectors, [one["embedding"] for one in expected["data"]], **NEAR)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": ["river"]}, "list of documents"),
        ({"inputs": [[]]}, "list of documents"),
        ({"inputs": []}, "1 to 2048"),
        ({"inputs": [[3, 4]]}, "token ids"),
        ({"inputs": [["river", " "]]}, "Text 1 is empty"),
        ({"inputs": [["river", "bank"]], "input_type": "query"}, "a query is one text"),
        ({"output_dtype": "int8"}, "output_dtype"),
        ({"enable_auto_chunking": True}, "enable_auto_chunking"),
        ({"input": [["river"]]}, "found both"),
        ({"inputs": None}, "found none"),
        ({"inputs": None, "input": [["river"]]}, "Send encoding_format float"),
        ({"inputs": None, "input": [["river"]], "encoding_format": "base64_int8"}, "Send encoding_format float"),
        ({"inputs": None, "input": [["river"]], "encoding_format": "base64_binary"}, "Send encoding_format float"),
        ({"dimensions": 4, "output_dimension": 6}, "two names of one number"),
        ({"model": "nobody"}, "nobody"),
    ],
)
def test_bad_documents_are_named(unchanged: Running, change: Any, message: str) -> None:
    body = {"model": MODEL, "inputs": [["river", "bank"]], "input_type": "document"} | change
    code = 404 if "model" in change else 400
    assert message in unchanged.post("/v1/contextualizedembeddings", body, code)["error"]["message"]


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[Running]:
    service, embedder = make(tmp_path, contexts=tmp_path)
    with running(service) as url:
        yield Running(url, service, embedder)


def lines(given: list[str]) -> Iterator[bytes]:
    yield from (json.dumps({"text": text}).encode() + b"\n" for text in given)


def test_a_context_is_made_fetched_and_deleted(maker: Running, tmp_path: Path) -> None:
    given = texts(200, start=300)
    with maker.client() as client:
        made = client.post(
            "/v1/contexts", params={"name": "other", "context_size": 64, "seed": 3}, content=lines(given)
        )
        assert made.status_code == 201, made.text
        expected = ContextualEmbedder.from_corpus(given, model=maker.embedder.model, context_size=64, seed=3)
        assert made.json()["fingerprint"] == expected.fingerprint
        content = client.get("/v1/contexts/other/file").content
        assert Context.from_bytes(content, where="the answer").fingerprint == expected.fingerprint
        body = {"model": "tiny@other:query", "input": "river"}
        found = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
        np.testing.assert_allclose(found, expected.embed_queries(["river"])[0], **NEAR)
        assert Context.load(tmp_path / "other.context.safetensors").fingerprint == expected.fingerprint
        assert {one["name"] for one in client.get("/v1/contexts").json()["data"]} == {"papers", "notes", "other"}
        taken = client.post("/v1/contexts", params={"name": "other"}, content=lines(given))
        assert (taken.status_code, taken.headers["x-should-retry"]) == (409, "false")
        assert client.delete("/v1/contexts/other").json()["deleted"]
        assert client.post("/v1/embeddings", json=body).status_code == 404
        assert client.delete("/v1/contexts/papers").status_code == 404
    assert not (tmp_path / "other.context.safetensors").exists()


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
@pytest.mark.parametrize(
    ("params", "content", "message"),
    [
        ({"name": "new"}, b'{"text": "river"}\n{"txt": "bank"}\n', "Line 2"),
        ({"name": "new"}, b'{"text": "river"}\n{', "Line 2"),
        ({"name": "new"}, b'{"text": "river"}\n{"text": "bank", "text": "sea"}', "the key 'text' stands twice"),
        ({"name": "new"}, b'{"text": "river"}\n{"text": "bank", "title": 5}\n', "Line 2"),
        ({"name": "new"}, b"", "no text"),
        ({"name": "../new"}, b'{"text": "river"}\n', "name"),
        ({"name": "new", "model": "nobody"}, b'{"text": "river"}\n', "nobody"),
        ({"name": "new", "strategy": "all"}, b'{"text": "river"}\n', "strategy"),
    ],
)
def test_what_makes_no_context_is_named(
    maker: Running, tmp_path: Path, params: Any, content: bytes, message: str
) -> None:
    before = sorted(tmp_path.rglob("*.safetensors"))
    with maker.client() as client:
        response = client.post("/v1/contexts", params=params, content=content)
    assert response.status_code in (400, 404)
    assert message in response.json()["error"]["message"]
    assert sorted(tmp_path.rglob("*.safetensors")) == before


def test_a_line_beyond_the_bound_is_not_read_into_memory(tmp_path: Path) -> None:
    service, _ = make(tmp_path, contexts=tmp_path, max_body_bytes=5_000)
    sent = list[int]()

    def long() -> Iterator[bytes]:
        yield from lines(texts(64))
        for _ in range(200):
            sent.append(1)
            yield b" " * 1_000

    with running(service) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        refused = client.post("/v1/contexts", params={"name": "other"}, content=long())
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
        assert refused.json()["error"]["message"].startswith("Line 65 has more than 5,000 bytes.")
        query = {"name": "other", "context_size": 64}
        assert client.post("/v1/contexts", params=query, content=lines(texts(200))).status_code == 201


def test_without_a_folder_no_context_is_made(server: Running) -> None:
    with server.client() as client:
        response = client.post("/v1/contexts", params={"name": "new"}, content=lines(texts(3)))
    assert "--contexts" in response.json()["error"]["message"]


def ended(server: Running, job: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while (found := server.get(f"/v1/jobs/{job}"))["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_collection_moves_while_it_is_searched_and_comes_back(tmp_path: Path) -> None:
    service, embedder = make(tmp_path)
    papers = service.registry.collection("papers").collection
    papers.add_records(records(400))
    with running(service) as url:
        server = Running(url, service, embedder)
        stop, failures = threading.Event(), list[str]()

        def search() -> None:
            with server.client() as client:
                while not stop.is_set():
                    response = client.post("/v1/collections/papers/search", json={"query": "river bank"})
                    if response.status_code != 200:
                        failures.append(response.text)

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        body = {"seed": 7, "context_size": 64}
        job = server.post("/v1/collections/papers/recontextualize", body, 202)
        moved = ended(server, job["id"])
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert (moved["status"], moved["done"], moved["result"]["embedded"]) == ("succeeded", 400, 400)
        new = server.get("/v1/models/papers")["fingerprint"]
        assert new == moved["result"]["fingerprint"] != embedder.fingerprint
        pinned = {"model": f"{MODEL}:query", "input": "river", "fingerprint": embedder.fingerprint}
        assert server.post("/v1/embeddings", pinned, 409)["error"]["code"] == "fingerprint_mismatch"
        back = server.post("/v1/collections/papers/rollback", {}, 202)
        assert ended(server, back["id"])["result"]["fingerprint"] == embedder.fingerprint
        server.post("/v1/embeddings", pinned)
        assert [one["kind"] for one in server.get("/v1/jobs")["data"]] == ["recontextualize", "rollback"]
        nothing = server.post("/v1/collections/notes/rollback", {}, 202)
        failed = ended(server, nothing["id"])
        assert (failed["status"], failed["error"].startswith("Expected a generation before")) == ("failed", True)


def test_a_canary_keeps_the_collection_where_it_is(server: Running) -> None:
    body = {"seed": 7, "context_size": 32, "canary": [{"query": "river", "ids": ["nobody"]}]}
    job = ended(server, server.post("/v1/collections/papers/recontextualize", body, 202)["id"])
    assert (job["status"], "river" in job["error"]) == ("failed", True)
    assert server.get("/v1/collections/papers")["fingerprint"] == server.embedder.fingerprint
    server.post("/v1/collections/papers/recontextualize", body | {"canary": []}, 400)


def test_a_job_is_cancelled_at_its_next_write_and_resumed() -> None:
    """The run writes until it is cancelled; one job at a time for a collection."""
    from cde_rag.indexing.upsert import Progress

    jobs, written = Jobs(), list[int]()

    def run(on_progress: Any) -> dict[str, Any]:
        while True:
            written.append(1)
            on_progress(Progress(len(written), None, 1.0))
            time.sleep(0.001)

    job = jobs.start("recontextualize", "papers", run)
    with pytest.raises(RequestError) as caught:
        jobs.start("rollback", "papers", run)
    assert caught.value.status == 409
    other = jobs.start("rollback", "notes", run)
    jobs.cancel(job.id)
    while job.status == "running":
        time.sleep(0.001)
    assert (job.status, other.status) == ("cancelled", "running")
    jobs.close()
    assert other.status == "cancelled"
    assert jobs.start("rollback", "papers", lambda _: {}).collection == "papers"
    jobs.close()


def test_a_job_that_panicked_has_ended() -> None:
    """The panic of a Rust library is no Exception; the collection would have no other job until the next start."""

    def run(_: Any) -> dict[str, Any]:
        raise SystemExit("panicked")

    jobs = Jobs()
    job = jobs.start("upload", "papers", run)
    jobs.close()
    assert job.status == "failed"
    assert job.error is not None


def test_a_move_is_cancelled_within_its_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, embedder = make(tmp_path)
    papers = service.registry.collection("papers").collection
    papers.add_records(records(900))
    started, passages = threading.Event(), ContextualEmbedder.embed_passages

    def slow(self: ContextualEmbedder, texts: Any, siblings: Any, *, progress: bool = False) -> Any:
        started.set()
        time.sleep(len(texts) / 100)
        return passages(self, texts, siblings, progress=progress)

    with running(service) as url:
        server = Running(url, service, embedder)
        monkeypatch.setattr(ContextualEmbedder, "embed_passages", slow)
        job = server.post("/v1/collections/papers/recontextualize", {"seed": 7, "context_size": 64}, 202)
        assert started.wait(60)
        server.post(f"/v1/jobs/{job['id']}/cancel", {})
        found = ended(server, job["id"])
        monkeypatch.undo()
        assert (found["status"], found["done"], found["total"]) == ("cancelled", 128, 900)
        assert server.get("/v1/collections/papers")["fingerprint"] == embedder.fingerprint


def test_metrics_count_and_hold_no_texts(server: Running) -> None:
    body = {"model": MODEL, "input": ["river secret", "bank"], "input_type": "query"}
    tokens = server.post("/v1/embeddings", body)["usage"]["total_tokens"]
    server.post("/v1/embeddings", body | {"model": "nobody"}, 404)
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    assert 'cde_rag_requests_total{route="/v1/embeddings",status="200"} 1.0' in text
    assert 'cde_rag_requests_total{route="/v1/embeddings",status="404"} 1.0' in text
    assert f"cde_rag_tokens_total {float(tokens)}" in text
    assert "cde_rag_batch_texts_sum 2.0" in text
    assert "cde_rag_pending_tokens 0.0" in text
    assert "secret" not in text


def test_a_collection_that_cannot_be_left_is_intact(server: Running) -> None:
    """Records added over HTTP have the vectors that the library gives them, siblings included."""
    given = [{"id": f"n{i}", "text": text, "metadata": {"book": f"n{i // 3}"}} for i, text in enumerate(texts(9))]
    server.post("/v1/collections/papers/records", {"records": given})
    papers: Collection = server.service.registry.collection("papers").collection
    parents = [f"n{i // 3}" for i in range(9)]
    expected = server.embedder.embed_documents(texts(9), parents=parents)
    found = papers.store.vectors([f"n{i}" for i in range(9)], fingerprint=server.embedder.fingerprint)
    np.testing.assert_allclose(found, expected, **NEAR)
    assert damages(papers) == []


def test_of_two_deletions_of_a_context_one_is_answered_with_404(
    maker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, unlink = threading.Barrier(2), Path.unlink

    def both(path: Path, missing_ok: bool = False) -> None:
        if path.name == "other.context.safetensors":
            gate.wait(30)
        unlink(path, missing_ok)

    with maker.client() as client:
        client.post("/v1/contexts", params={"name": "other", "context_size": 64}, content=lines(texts(64)))
        monkeypatch.setattr(Path, "unlink", both)
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(lambda _: client.delete("/v1/contexts/other").status_code, range(2))
            assert sorted(found) == [200, 404]


def test_a_stop_waits_for_jobs_that_write_alone() -> None:
    """Drift takes minutes on a large collection, cannot be cancelled, and changes nothing."""
    jobs, gate, ended = Jobs(), threading.Event(), threading.Event()

    def reads(_: object) -> dict[str, Any]:
        gate.wait(60)
        return {}

    def writes(_: object) -> dict[str, Any]:
        time.sleep(0.2)
        ended.set()
        return {}

    jobs.start("drift", "papers", reads)
    jobs.start("upload", "notes", writes)
    started = time.monotonic()
    jobs.close()
    assert ended.is_set()
    assert time.monotonic() - started < 30
    gate.set()
