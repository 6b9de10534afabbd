"""A server on this machine with OpenAI's API of embeddings, which fails and changes its model when a test says so."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np


class Server(ThreadingHTTPServer):
    """An API on this machine: the vector of a text is drawn by its bytes.

    Attributes:
        calls: What was asked, in order, failed calls included.
        keys: Keys that came with the calls.
        fails: How many calls are going to fail, and with which status.
        until: How many calls are going to be answered before that.
        weights: Number of the model behind the name; another one has other vectors.
        step: Order of the answers: -1 for the last text first.
        raw: Answer in place of vectors, if any.
        longest: Most characters of a text; a longer one is refused with status 400.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Calls)
        self.calls: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.fails, self.status, self.until, self.weights, self.step = 0, 500, 0, 0, 1
        self.raw: Any = None
        self.longest = 1_000_000

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
        if self.path != "/v1/embeddings" or (self.server.fails and not self.server.until):
            self.server.fails -= 1
            self._answer(self.server.status, {"error": {"message": "too busy"}})
            return
        if max(map(len, asked["input"])) > self.server.longest:
            self._answer(400, {"error": {"message": f"too many tokens for {self.server.url}"}})
            return
        if self.server.raw is not None:
            self._answer(200, self.server.raw)
            return
        self.server.until = max(self.server.until - 1, 0)
        dim, weights = asked.get("dimensions", 8), self.server.weights
        rows = [
            {"object": "embedding", "index": place, "embedding": vector(text, dim, weights).tolist()}
            for place, text in enumerate(asked["input"])
        ]
        data = rows[:: self.server.step]
        self._answer(200, {"object": "list", "data": data, "model": asked["model"], "usage": {"total_tokens": 1}})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def vector(text: str, dim: int = 8, weights: int = 0) -> np.ndarray:
    return np.random.default_rng([weights, *text.encode()]).normal(size=dim)


@contextmanager
def running() -> Iterator[Server]:
    """Serve in a thread until the context is left."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
