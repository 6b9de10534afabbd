"""A server over two collections of the tiny model, on a free port of this machine."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, Context, ContextualEmbedder, Record
from cde_rag.server.http_app import create_app
from cde_rag.server.registry import Registry
from cde_rag.server.service import ServerOptions, Service
from cde_rag.server.token_batcher import TokenBatcher
from cde_rag.server.uvicorn_server import BoundedConnection
from cde_rag.stores.faiss import FaissStore

JSON = {"content-type": "application/json"}
MODEL = "tiny@papers"


def texts(count: int, *, start: int = 0) -> list[str]:
    """Different texts of two to nine of the model's words."""
    width = len(WORDS)
    return [
        " ".join([WORDS[i % width], WORDS[i // width % width], *(WORDS[(i + j) % width] for j in range(i % 8))])
        for i in range(start, start + count)
    ]


def records(count: int) -> list[Record]:
    """Four passages of each book."""
    return [
        Record(f"r{i}", text, WORDS[i % len(WORDS)], {"book": f"b{i // 4}", "year": 2000 + i})
        for i, text in enumerate(texts(count))
    ]


@dataclass
class Running:
    url: str
    service: Service
    embedder: ContextualEmbedder

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False, **options)

    def post(self, path: str, body: Any, code: int = 200, **options: Any) -> Any:
        with self.client() as client:
            response = client.post(path, content=json.dumps(body), headers=JSON, **options)
        assert response.status_code == code, response.text
        return response.json()

    def get(self, path: str, code: int = 200, **options: Any) -> Any:
        with self.client() as client:
            response = client.get(path, **options)
        assert response.status_code == code, response.text
        return response.json()


@contextmanager
def running(service: Service, tenants: Mapping[str, Service] | None = None) -> Iterator[str]:
    """Serve in a thread; yields the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = create_app(service, tenants)
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedConnection, access_log=False, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def make(folder: Path, **options: Any) -> tuple[Service, ContextualEmbedder]:
    """Two collections, "papers" in a context and with parents, "notes" in the null context."""
    model = tiny_cde_model()
    embedder = ContextualEmbedder.from_corpus(texts(100), model=model, context_size=64)
    papers = Collection.create(FaissStore(folder / "papers.faiss"), embedder, parent_key="book")
    papers.add_records(records(40))
    notes = Collection.create(FaissStore(folder / "notes.faiss"), ContextualEmbedder(model, Context.null(model)))
    batcher = TokenBatcher(**{key: options.pop(key) for key in ("batch_tokens", "pending_tokens") if key in options})
    registry = Registry({"papers": papers, "notes": notes}, batcher)
    return Service(registry, ServerOptions(**options)), embedder
