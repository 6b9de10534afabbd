"""A server that is killed under load, and clients that hold their connections.

Nothing acknowledged is lost, a request is written whole or not at all, and others are answered.
"""

import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intact import damages
from served import JSON, records, texts
from tiny import tiny_network, tiny_tokenizer

from cde_rag import CDEModel, Collection, ContextualEmbedder
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.stores.faiss import FaissStore

CLIENTS, BATCH, DELETED = 4, 24, 3


@pytest.fixture
def papers(scratch: Path) -> Path:
    model = scratch / "model"
    checkpoints.write(model, tiny_network(), tiny_tokenizer())
    embedder = ContextualEmbedder.from_corpus(texts(100), model=CDEModel.from_pretrained(model), context_size=64)
    with Collection.create(FaissStore(scratch / "papers.faiss"), embedder, parent_key="book") as collection:
        collection.add_records(records(20))
    return scratch / "papers.faiss"


@contextmanager
def serving(papers: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, killed in the end, and its port."""
    command = ["-c", "from cde_rag.cli import app; app()", "serve", str(papers), "--port", "0", "--llm", "none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CDE_RAG_RUNTIME": "torch"}
    process = subprocess.Popen(
        [sys.executable, *command, "--model", str(papers.parent / "model")],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"running on http://127.0.0.1:(\d+)", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield process, int(found[1])
                return
        raise AssertionError("the server did not start")
    finally:
        process.kill()
        process.wait()
        with suppress(ValueError):
            process.stderr.close()


class Client:
    """Writes batches of records and deletes single ones until the server is gone."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.dice = name, random.Random(seed)
        self.sent: dict[str, list[dict[str, Any]]] = {}  # batches by name
        self.acknowledged: set[str] = set()
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        self.requests = 0

    def run(self, port: int) -> None:
        with suppress(OSError, http.client.HTTPException):
            for number in range(10_000):
                name = f"{self.name}-{number}"
                own, shared = {"book": name}, {"book": f"b{self.dice.randrange(3)}"}
                some = self.dice.sample(texts(200), BATCH)
                self.sent[name] = [
                    {"id": f"{name}-{i}", "text": text, "metadata": shared if i % 3 == 0 else own}
                    for i, text in enumerate(some)
                ]
                self._call(port, "POST", "records", {"records": self.sent[name]})
                self.acknowledged.add(name)
                gone = [record["id"] for record in self.dice.sample(self.sent[name], DELETED)]
                self.deleting.update(gone)
                self._call(port, "POST", "records/delete", {"ids": gone})
                self.deleted.update(gone)
                self._call(port, "POST", "search", {"query": "river bank"})

    def _call(self, port: int, method: str, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, f"/v1/collections/papers/{path}", json.dumps(body), JSON)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == 200, answer
        self.requests += 1
        return answer


@pytest.mark.slow
def test_a_server_that_is_killed_under_load_loses_nothing(
    papers: Path, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """Each request of records is there as a whole or not at all, also one that was not answered."""
    dice, clients = random.Random(seed), list[Client]()
    for life in range(times(1, 60)):
        own = [Client(f"{life}-{number}", dice.randrange(2**32)) for number in range(CLIENTS)]
        clients += own
        with serving(papers) as (process, port):
            threads = [threading.Thread(target=client.run, args=(port,)) for client in own]
            for thread in threads:
                thread.start()
            until = time.monotonic() + 60
            while sum(len(client.acknowledged) for client in own) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(dice.random())
            process.kill()
            for thread in threads:
                thread.join()
    partial = 0
    with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
        assert damages(collection) == []
        found = {record.id: record for record in collection.scroll()}
        for client in clients:
            for name, batch in client.sent.items():
                stays = [record for record in batch if record["id"] not in client.deleting]
                there = [record for record in stays if record["id"] in found]
                assert len(there) in (0, len(stays)), (name, seed)
                assert there or name not in client.acknowledged, (name, seed)
                assert all(found[record["id"]].text == record["text"] for record in there)
                partial += name not in client.acknowledged and bool(there)
            assert not client.deleted & found.keys()
        ids = sorted(found)
        stored = collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint)
        np.testing.assert_allclose(np.linalg.norm(stored, axis=1), 1, atol=1e-4)
    requests = sum(client.requests for client in clients)
    tell(f"{len(clients) // CLIENTS} kills under {requests} requests, {partial} unanswered ones written; nothing lost")


@pytest.mark.slow
def test_slow_clients_hold_up_nobody_and_leave_nothing(
    papers: Path, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """Heads and bodies that come byte by byte, answers that nobody reads, and connections that say nothing."""
    dice, many = random.Random(seed), times(60, 400)
    body = json.dumps({"query": "river bank", "k": 20}).encode()
    head = b"POST /v1/collections/papers/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    whole = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with serving(papers) as (process, port):
        search(port)
        before, slowest, answered = connections(process), 0.0, 0
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(many)]
        places = [dice.choice((0, dice.randrange(len(head)), len(whole) - dice.randrange(1, len(body)))) for _ in slow]
        for connection, place in zip(slow, places, strict=True):
            connection.sendall(whole[:place])
        unread = [socket.create_connection(("127.0.0.1", port)) for _ in range(many // 4)]
        for connection in unread:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            connection.sendall(whole * 20)
        until = time.monotonic() + times(3, 60)
        while time.monotonic() < until:
            for index, connection in enumerate(slow):
                if 0 < places[index] < len(whole) - 1:
                    with suppress(OSError):  # the server may have ended it
                        connection.sendall(whole[places[index] : places[index] + 1])
                        places[index] += 1
            began = time.monotonic()
            search(port)
            slowest, answered = max(slowest, time.monotonic() - began), answered + 1
        for connection in (*slow, *unread):
            connection.close()
        until = time.monotonic() + 30
        while connections(process) > before and time.monotonic() < until:
            time.sleep(0.05)
        assert connections(process) <= before
        search(port)
    assert slowest < 10, seed
    tell(f"{many} slow connections, {len(unread)} unread: {answered} searches, the slowest {1000 * slowest:.0f} ms")


def search(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/collections/papers/search", json.dumps({"query": "river"}), JSON)
    response = connection.getresponse()
    assert (response.status, len(json.loads(response.read())["hits"])) == (200, 10)
    connection.close()


def connections(process: "subprocess.Popen[str]") -> int:
    """Open sockets of a process; 0 where the system does not tell."""
    folder, found = Path(f"/proc/{process.pid}/fd"), 0
    for path in folder.iterdir() if folder.exists() else ():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += str(path.readlink()).startswith("socket:")
    return found
