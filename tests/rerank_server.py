"""A server on this machine with the APIs of rerankers, which fails when a test says so."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stand(ThreadingHTTPServer):
    """A server of all three forms, which scores a text by its length.

    Attributes:
        calls: Path, key and body of each call.
        status: Status of the answers.
        raw: Answer in place of scores, if any.
        pause_s: Seconds before an answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Call)
        self.calls: list[tuple[str, str | None, dict[str, Any]]] = []
        self.status, self.raw, self.pause_s = 200, None, 0.0
        self.raw: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Call(BaseHTTPRequestHandler):
    """One call."""

    server: Stand

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, self.headers["Authorization"], asked))
        time.sleep(self.server.pause_s)
        is_tei = "texts" in asked
        texts = asked["texts"] if is_tei else asked["documents"]
        score = "score" if is_tei else "relevance_score"
        rows = [{"index": place, score: len(text) / 100} for place, text in enumerate(texts)]
        rows.sort(key=lambda row: -row[score])
        answer = rows if is_tei else {"id": "1", "results": rows, "meta": {}}
        data = json.dumps(answer if self.server.raw is None else self.server.raw).encode()
        self.send_response(self.server.status)
        self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Stand]:
    """Serve in a thread."""
    with Stand() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
