"""A language model's address: a real HTTP server on this machine that streams what a test wants, as OpenAI does."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeLLM:
    """Answers of the stub, and its requests."""

    pieces: list[str] = field(default_factory=lambda: ["Rivers ", "have banks [1]", "."])
    answer: Callable[[dict[str, Any]], str] | None = None  # of a request's body, in place of the pieces
    failures: list[int] = field(default_factory=list)  # status codes of the next requests, before `status`
    raw: list[str] | None = None  # these events in place of the pieces
    finish: str | None = "stop"  # of the last event; None for an answer that breaks off: no such event and no [DONE]
    promised: int | None = None  # bytes that the head promises; with more than come, the connection is cut
    usage: dict[str, Any] | None = None  # tokens, told where they are asked for
    status: int = 200
    message: str = "no room"
    retry_after: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)  # answers wait for it after their first piece
    cut: threading.Event = field(default_factory=threading.Event)  # set once a client has left amid an answer
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()


@contextmanager
def fake_llm() -> Iterator[FakeLLM]:  # noqa: C901 (a handler of many lines)
    fake = FakeLLM()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": "fake-1", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            fake.asked.append(body)
            fake.keys.append(self.headers["authorization"])
            status = fake.failures.pop(0) if fake.failures else fake.status
            if status != 200:
                self._send(status, {"error": {"message": fake.message, "type": "server_error"}})
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            if fake.promised is not None:
                self.send_header("content-length", str(fake.promised))
            self.end_headers()
            if fake.raw is not None:
                self.wfile.write("".join(f"data: {event}\n\n" for event in [*fake.raw, "[DONE]"]).encode())
                return
            try:
                for number, piece in enumerate([fake.answer(body)] if fake.answer else fake.pieces):
                    self._event({"delta": {"content": piece}, "finish_reason": None})
                    if number == 0:
                        while not fake.gate.wait(0.05):
                            self.wfile.write(b": waiting\n\n")  # fails once the client has left
                if fake.finish is None:
                    return
                self._event({"delta": {}, "finish_reason": fake.finish})
                if body.get("stream_options") == {"include_usage": True} and fake.usage is not None:
                    self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': fake.usage})}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                fake.cut.set()

        def _event(self, choice: dict[str, Any]) -> None:
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake-1"}
            self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [{'index': 0, **choice}]})}\n\n".encode())
            self.wfile.flush()

        def _send(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            if fake.retry_after is not None:
                self.send_header("retry-after", fake.retry_after)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
