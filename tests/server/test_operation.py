"""The server as a process: keys, bounds, bad requests, logs without texts, a stop that loses nothing, and kill -9."""

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from intact import damages
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served import JSON, MODEL, Running, make, records, running, texts
from tiny import tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag import CDEError, CDEModel, Collection, ContextualEmbedder
from cde_rag.cli import app
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.server import uvicorn_server
from cde_rag.server.access import ApiKeys, check_bind, check_host
from cde_rag.server.error_responses import RequestError
from cde_rag.stores.faiss import FaissStore

SECRET = "a river that nobody may read of"


class Process:
    """A server in a process of its own, with what it printed."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-c", "from cde_rag.cli import app; app()", "serve", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError("".join(self.lines))
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()))
        self.reader.start()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextmanager
def process(*arguments: object, **environment: str) -> Iterator[Process]:
    started = Process(*arguments, **environment)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


@pytest.fixture
def papers(tmp_path: Path, model: Path) -> Path:
    embedder = ContextualEmbedder.from_corpus(texts(100), model=CDEModel.from_pretrained(model), context_size=64)
    path = tmp_path / "papers.faiss"
    with Collection.create(FaissStore(path), embedder, parent_key="book") as collection:
        collection.add_records(records(20))
    return path


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_acknowledged(papers: Path, model: Path) -> None:
    """Clients add and delete while the server is killed, three times; what was answered is there afterwards.

    A delete that was sent and not answered may have been committed or not: its record is in neither set.
    """
    added, sent, deleted = {f"r{i}" for i in range(20)}, set[str](), set[str]()

    def write(url: str, life: int, number: int) -> None:
        with suppress(httpx.HTTPError), httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
            for i in range(10_000):
                id_ = f"{life}-{number}-{i}"
                record = {"id": id_, "text": "river bank", "metadata": {"book": f"b{i % 7}"}}
                assert client.post("/v1/collections/papers/records", json={"records": [record]}).status_code == 200
                added.add(id_)
                if i % 5 == 4:
                    sent.add(id_)
                    client.delete("/v1/collections/papers/records", params={"id": id_}).raise_for_status()
                    deleted.add(id_)

    for life in range(3):
        with process(papers, "--model", model) as server:
            before = len(added)
            threads = [threading.Thread(target=write, args=(server.url, life, number)) for number in range(4)]
            for thread in threads:
                thread.start()
            while len(added) < before + 20:
                time.sleep(0.01)
            server.end(signal.SIGKILL)
            for thread in threads:
                thread.join()
        with Collection.open(FaissStore(papers), model=model) as collection:
            assert damages(collection) == []
            found = {record.id for record in collection.scroll()}
            assert added - sent - found == set()
            assert deleted & found == set()
            assert collection.store.vectors(
                sorted(found), fingerprint=collection.embedder.fingerprint
            ).size == 16 * len(found)


def test_a_stop_answers_what_is_in_flight(papers: Path, model: Path) -> None:
    with process(papers, "--model", model) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        body = {"model": MODEL, "input": texts(2048), "input_type": "document"}
        answers: list[int] = []

        def embed() -> None:
            answers.append(len(client.post("/v1/embeddings", json=body, timeout=60).json()["data"]))

        thread = threading.Thread(target=embed)
        thread.start()
        time.sleep(0.5)  # the request has arrived, or will be refused and fail the test
        assert server.end(signal.SIGTERM) in (0, -signal.SIGTERM)
        thread.join()
    assert answers == [2048]


def test_logs_have_routes_and_no_texts(papers: Path, model: Path) -> None:
    key = "0123456789"
    with (
        process(papers, "--model", model, CDE_RAG_API_KEY=key) as server,
        httpx.Client(base_url=server.url, trust_env=False, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        record = {"id": SECRET, "text": SECRET, "metadata": {"book": SECRET}}
        client.post("/v1/collections/papers/records", json={"records": [record]}).raise_for_status()
        client.get("/v1/collections/papers/records", params={"id": SECRET}).raise_for_status()
        client.post("/v1/collections/papers/search", json={"query": SECRET}).raise_for_status()
        client.post("/v1/collections/papers/search", json={"query": SECRET, "where": {"x": {SECRET: 1}}})
        client.get(f"/v1/{SECRET}")
        server.end(signal.SIGTERM)
    lines = server.lines[next(place for place, line in enumerate(server.lines) if line.startswith("{")) :]
    logged = [json.loads(line) for line in lines]  # every line from the first of the server on, uvicorn's too
    assert any("running on" in line["message"] for line in logged if "message" in line)
    assert [(line["route"], line["status"]) for line in logged if "route" in line] == [
        ("/v1/collections/{name}/records", 200),
        ("/v1/collections/{name}/records", 200),
        ("/v1/collections/{name}/search", 200),
        ("/v1/collections/{name}/search", 400),
        ("other", 404),
    ]
    assert "nobody" not in "".join(server.lines)
    assert key not in "".join(server.lines)


def test_keys(tmp_path: Path) -> None:
    service, _ = make(tmp_path, keys=ApiKeys(["first", "second"]))
    with running(service) as url, httpx.Client(base_url=url, trust_env=False) as client:
        for given in (None, "Bearer third", "first", "", "Basic first", "Bearer", "Bearer first second"):
            response = client.get("/v1/models", headers={} if given is None else {"Authorization": given})
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        for key in ("first", "second"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200


def test_other_machines_need_a_key() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(CDEError, match="API key"):
            check_bind(host, ApiKeys())
        check_bind(host, ApiKeys(["key"]))
    for host in ("127.0.0.1", "localhost", "::1", "127.8.0.1"):
        check_bind(host, ApiKeys())
    with pytest.raises(CDEError, match="blank"):
        ApiKeys(["key", " "])


def test_without_a_key_only_localhost_is_answered() -> None:
    for header in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        check_host(header, ApiKeys())
    for header in ("evil.example", "evil.example:8000", "", "127.0.0.1.evil.example", "[::1"):
        with pytest.raises(RequestError, match="localhost"):
            check_host(header, ApiKeys())
        check_host(header, ApiKeys(["key"]))


def test_a_name_that_was_bound_to_this_machine_is_refused_over_http(server: Running, tmp_path: Path) -> None:
    """DNS rebinding: a page's own name leads to this server, with no key in its way."""
    evil = {"host": "evil.example", "origin": "http://evil.example"}
    with server.client() as client:
        for path in ("/", "/v1/models", "/health"):
            response = client.get(path, headers=evil)
            assert (response.status_code, response.json()["error"]["code"]) == (421, "wrong_host")
    service, _ = make(tmp_path / "with a key", keys=ApiKeys(["key"]))
    with running(service) as url:
        given = {**evil, "authorization": "Bearer key"}
        assert httpx.get(f"{url}/v1/models", headers=given, trust_env=False).status_code == 200


def test_a_body_above_the_bound_is_413(tmp_path: Path) -> None:
    service, _ = make(tmp_path, max_body_bytes=2_000)
    body = json.dumps({"model": MODEL, "input": ["river " * 1000], "input_type": "query"}).encode()

    def pieces() -> Iterator[bytes]:  # without Content-Length
        yield from (body[start : start + 100] for start in range(0, len(body), 100))

    with running(service) as url, httpx.Client(base_url=url, trust_env=False) as client:
        for content in (body, pieces()):
            response = client.post("/v1/embeddings", content=content, headers=JSON)
            assert (response.status_code, response.json()["error"]["type"]) == (413, "invalid_request_error")
        assert client.get("/health").status_code == 200


def test_head_is_get_without_its_body(server: Running) -> None:
    with server.client() as client:
        for path in ("/health", "/ready", "/", "/page.js", "/v1/models", "/v1/collections/papers", "/v1/nothing"):
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (get.status_code, b"")
            same = ("content-type", "content-length")
            assert [head.headers[name] for name in same] == [get.headers[name] for name in same]
        assert client.head("/v1/embeddings").status_code == 405


@pytest.mark.parametrize("encoding", ["gzip", "br", "x", "gzip, identity"])
def test_an_encoded_body_is_told_to_be_sent_as_it_is(unchanged: Running, encoding: str) -> None:
    content = gzip.compress(json.dumps({"model": MODEL, "input": "river", "input_type": "query"}).encode())
    with unchanged.client() as client:
        response = client.post("/v1/embeddings", content=content, headers={**JSON, "content-encoding": encoding})
        assert (response.status_code, response.headers["accept-encoding"]) == (415, "identity")
        assert response.json()["error"]["code"] == "unsupported_content_encoding"
        plain = client.post(
            "/v1/collections/papers/search", json={"query": "river"}, headers={"content-encoding": "identity"}
        )
        assert plain.status_code == 200


def test_more_requests_than_the_bound_are_429(tmp_path: Path) -> None:
    service, _ = make(tmp_path, max_requests=0)
    with running(service) as url:
        response = httpx.get(f"{url}/v1/models", trust_env=False)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_value"),
        (b"[]", "invalid_value"),
        (b"null", "invalid_value"),
        (b"\xff\xfe", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"model": "\xff"}', "invalid_json"),
        (b'{"dimensions": ' + b"9" * 5_000 + b"}", "invalid_json"),
        (b'{"model": "tiny@papers", "input": "river", "input_type": NaN}', "invalid_value"),
    ],
)
def test_a_body_that_is_no_request_is_400(unchanged: Running, content: bytes, code: str) -> None:
    with unchanged.client() as client:
        response = client.post("/v1/embeddings", content=content, headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"model": "\xff"}', "not UTF-8 at byte 11"),
        (b'{"dimensions": ' + b"9" * 5_000 + b"}", "too many digits"),
    ],
)
def test_json_that_cannot_be_read_is_told_why(unchanged: Running, content: bytes, message: str) -> None:
    with unchanged.client() as client:
        for path in ("/v1/embeddings", "/v1/collections/papers/search"):
            error = client.post(path, content=content, headers=JSON).json()["error"]
            assert message in error["message"]


def test_a_form_of_another_site_is_no_request(server: Running) -> None:
    """A page can post text/plain anywhere without a preflight request."""
    record: Any = json.dumps({"records": [{"text": "river"}]})
    with server.client() as client:
        response = client.post("/v1/collections/notes/records", content=record, headers={"content-type": "text/plain"})
    assert response.status_code == 400
    assert server.get("/v1/collections/notes")["documents"] == 0


def test_a_page_of_another_site_gets_no_answer(server: Running) -> None:
    host = server.url.removeprefix("http://")
    with server.client() as client:
        for origin, status in (("https://evil.example", 403), ("null", 403), (f"http://{host}", 202)):
            response = client.post("/v1/collections/notes/rollback", headers={"origin": origin})
            assert response.status_code == status


def test_slow_clients_hold_up_nobody(server: Running) -> None:
    """They send a byte now and then, or leave in the middle of a body."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"model": MODEL, "input": ["river"], "input_type": "query"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    slow = [socket.create_connection((host, int(port))) for _ in range(50)]
    for connection in slow:
        connection.sendall(head.encode() + body[:5])
    for number in range(5, len(body)):
        for connection in slow[:25]:
            connection.sendall(body[number : number + 1])
        if number % 20 == 0:
            server.post("/v1/embeddings", {"model": MODEL, "input": ["bank"], "input_type": "query"})
    for connection in slow[25:]:
        connection.close()
    for connection in slow[:25]:
        with connection, connection.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"200"
            assert json.loads(answer.read().partition(b"\r\n\r\n")[2])["usage"]["prompt_tokens"] > 0


@pytest.mark.long
def test_requests_that_never_come_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads and bodies that stop, at first or after another request; what comes slowly is answered."""
    monkeypatch.setattr(uvicorn_server, "HEAD_S", 1.0)
    monkeypatch.setattr(uvicorn_server, "SILENT_S", 1.0)
    service, _ = make(tmp_path)
    head = b"POST /v1/collections/papers/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = b'{"query": "river"}'
    whole = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with running(service) as url, closing(httpx.Client(base_url=url, trust_env=False)) as client:
        client.post("/v1/collections/papers/search", json={"query": "river"})
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for sent in (b"", head, whole + head, whole[:-1]):
            with socket.create_connection(address) as connection, connection.makefile("rb") as answer:
                connection.settimeout(30)
                connection.sendall(sent)
                assert (answer.read() != b"") == (sent == whole + head)  # to the end of the connection
        with socket.create_connection(address) as connection, connection.makefile("rb") as answer:
            connection.settimeout(30)
            for part in (whole[:30], whole[30:-5], whole[-5:]):  # in all, longer than either bound
                connection.sendall(part)
                time.sleep(0.6)
            assert answer.readline().split()[1] == b"200"


def test_a_body_of_ten_megabytes_is_answered(server: Running) -> None:
    long = ["river bank " * 455 + text for text in texts(2048)]
    body = {"model": MODEL, "input": long, "input_type": "document", "encoding_format": "base64"}
    assert len(json.dumps(body)) > 10_000_000
    answer = server.post("/v1/embeddings", body)
    assert len(answer["data"]) == 2048
    assert answer["usage"]["inputs_at_limit"] == 2048


def test_a_request_is_a_span_around_its_search(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    server.post("/v1/collections/papers/search", {"query": SECRET, "k": 2, "by": "vectors"})
    server.get("/v1/collections/nobody", 404)
    spans = {
        (span.name, span.attributes["http.route"]): span
        for span in exporter.get_finished_spans()
        if "http.route" in span.attributes
    }
    search = next(span for span in exporter.get_finished_spans() if span.name == "cde_rag.search")
    request = spans["cde_rag.request", "/v1/collections/{name}/search"]
    assert request.attributes["http.response.status_code"] == 200
    assert search.parent.span_id == request.context.span_id
    assert spans["cde_rag.request", "/v1/collections/{name}"].attributes["http.response.status_code"] == 404
    assert SECRET not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_connections_that_are_cut_leave_no_work(server: Running) -> None:
    body = {"model": MODEL, "input": texts(2048), "input_type": "document"}
    for _ in range(5):
        with server.client() as client, suppress(httpx.ReadTimeout):
            client.post("/v1/embeddings", json=body, timeout=0.05)
    deadline = time.monotonic() + 60
    while server.service.registry.batcher.pending and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.service.registry.batcher.pending == 0
    assert server.get("/ready")["status"] == "ready"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.faiss"], "expected a collection, found none"),
        (["papers", "papers"], "named 'papers'"),
        (["a b=papers"], "expected a name of letters"),
        (["papers", "--host", "0.0.0.0"], "no API key"),
        (["papers", "--api-key", " "], "blank"),
        (["papers", "--api-key-file", "comments.txt"], "holds no API key"),
        (["papers", "--api-key-file", "blanks.txt"], "blanks.txt:2: expected one key without blanks"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(papers: Path, model: Path, arguments: list[str], message: str) -> None:
    (papers.parent / "comments.txt").write_text("# of all\n\n")
    (papers.parent / "blanks.txt").write_text("# of all\none two\n")
    given = [word.replace("papers", str(papers)) for word in arguments]
    given = [str(papers.parent / word) if word.endswith(".txt") else word for word in given]
    result = CliRunner().invoke(app, ["serve", *given, "--model", str(model), "--port", "0"])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["", "papers="])
def test_a_password_in_an_address_that_is_refused_is_not_shown(papers: Path, model: Path, name: str) -> None:
    given = [f"papers={papers}", f"{name}postgresql://me:secret@host"]
    result = CliRunner().invoke(app, ["serve", *given, "--model", str(model), "--port", "0"])
    assert result.exit_code == 1
    assert "NAME=PATH" in result.output
    assert "secret" not in result.output


def test_a_port_that_is_taken_is_found_before_the_model_is_loaded(papers: Path) -> None:
    taken = uvicorn_server.BoundSockets("127.0.0.1", 0)
    port = str(taken.port)
    result = CliRunner().invoke(app, ["serve", str(papers), "--port", port, "--model", "no such model"])
    taken.close()
    assert result.exit_code == 1
    assert f"Error: Port {port} of 127.0.0.1 cannot be bound: " in result.stderr
    assert "--port 0 takes a free one" in result.stderr


def test_addresses_that_the_machine_has_not_are_left_out_and_all_others_have_one_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as ::1, which containers name localhost, too, where IPv6 is off."""
    (own, *_) = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)
    there = [own] if sys.platform != "linux" else [own, (*own[:4], ("127.0.0.2", 0))]
    documentation = (*own[:4], ("192.0.2.1", 0))  # RFC 5737: nobody has it
    monkeypatch.setattr(uvicorn_server.socket, "getaddrinfo", lambda *_, **__: [documentation, *there])
    bound = uvicorn_server.BoundSockets("localhost", 0)
    assert [each.getsockname() for each in bound.sockets] == [(each[4][0], bound.port) for each in there]
    assert bound.port > 0
    bound.close()
    monkeypatch.setattr(uvicorn_server.socket, "getaddrinfo", lambda *_, **__: [documentation])
    with pytest.raises(CDEError, match="Port 0 of localhost cannot be bound: "):
        uvicorn_server.BoundSockets("localhost", 0)


def test_a_terminal_gets_the_address_in_one_line_and_requests_as_text(papers: Path, model: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from cde_rag.cli import app; app()", "serve", str(papers), "--model", str(model)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([*command, "--port", "0"], stderr=theirs, env=environment)
    os.close(theirs)
    shown = ""
    try:
        while not (found := re.search(r"^Open (http://127\.0\.0\.1:\d+) \(Ctrl-C stops\)\r?$", shown, re.MULTILINE)):
            shown += os.read(ours, 4096).decode()
        httpx.get(f"{found[1]}/v1/models", trust_env=False).raise_for_status()
        while "/v1/models" not in shown:
            shown += os.read(ours, 4096).decode()
    finally:
        started.terminate()
        started.wait(60)
        os.close(ours)
    assert re.search(r"^GET /v1/models  200  [\d.]+ ms\r?$", shown, re.MULTILINE)
    assert "{" not in shown


def test_a_connection_outlives_an_internal_error(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer promises to keep the connection, and so the next request in it is answered, too."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(server.service.registry, "models", broken)
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=60)
    with closing(connection):
        connection.connect()
        connection.auto_open = 0  # a second connection would hide that the first was cut
        for path, status in (("/v1/models", 500), ("/v1/jobs", 200), ("/v1/models", 500), ("/v1/jobs", 200)):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == status
            time.sleep(0.2)


def test_a_client_that_leaves_amid_its_body_is_no_internal_error(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="cde_rag.server")
    port = int(server.url.rpartition(":")[2])
    for path in ("/v1/collections/papers/files?filename=a.md", "/v1/contexts?name=a"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nriver"
            connection.sendall(head.encode())
    deadline = time.monotonic() + 30
    while len(caplog.records) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    found = {json.loads(record.getMessage())["route"]: json.loads(record.getMessage()) for record in caplog.records}
    assert found["/v1/collections/{name}/files"]["status"] == 499


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings?dimensions=4"),
        ("POST", "/v1/contexts?name=new&sed=4"),
        ("GET", "/v1/vector_stores?before=papers"),
        ("GET", "/v1/collections/papers/records?ids=r1&id=r2"),
    ],
)
def test_a_parameter_of_the_address_that_is_not_understood_is_refused(
    unchanged: Running, method: str, path: str
) -> None:
    body = {"model": MODEL, "input": "river", "input_type": "query"}
    with unchanged.client() as client:
        response = client.request(method, path, json=body if method == "POST" else None)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unknown_field")
        assert client.get("/?collection=papers&q=river").status_code == 200


def test_a_body_that_is_not_said_to_be_json_is_told_the_header(server: Running) -> None:
    """curl -d sends a form's content type where none is given."""
    with server.client() as client:
        for headers in ({"content-type": "application/x-www-form-urlencoded"}, {}):
            response = client.post("/v1/collections/papers/search", content=b'{"query": "river"}', headers=headers)
            assert response.status_code == 400
            assert "Content-Type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["rollback", "drift", "embed-pending"])
def test_fields_of_a_job_that_has_none_are_refused(unchanged: Running, path: str) -> None:
    found = unchanged.post(f"/v1/collections/papers/{path}", {"generation": 1}, 400)
    assert found["error"]["code"] == "unknown_field"
