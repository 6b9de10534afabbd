"""Qdrant's REST API over the local mode of its client, in a process of its own: moves over HTTP, from several programs.

    python qdrant_rest.py     prints its address, and serves until its input ends

It stands in for a server, which no package here has: aliases, points and filters are those of Qdrant's own client; of
indexes, shards and replicas it knows nothing.
"""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel
from qdrant_client import QdrantClient, models

CLIENT, ONE = QdrantClient(":memory:"), threading.Lock()
PATH = re.compile(r"/collections/(?P<name>[^/?]+)(?P<rest>[^?]*)")


def answer(method: str, path: str, body: Any) -> Any:
    """Do what one request asks for."""
    if path.startswith("/aliases"):
        return CLIENT.get_aliases()
    if path.startswith("/collections/aliases"):
        operations = models.ChangeAliasesOperation.model_validate(body).actions
        return CLIENT.update_collection_aliases(operations)
    if (found := PATH.match(path)) is None:
        return CLIENT.get_collections()
    name, call = unquote(found["name"]), f"{method} {found['rest']}"
    match call:
        case "GET /exists":
            return {"exists": CLIENT.collection_exists(name)}
        case "GET ":
            return CLIENT.get_collection(name)
        case "GET /aliases":
            return CLIENT.get_collection_aliases(name)
        case "PUT ":
            asked = models.CreateCollection.model_validate(body)
            return CLIENT.create_collection(
                name, asked.vectors, sparse_vectors_config=asked.sparse_vectors, metadata=asked.metadata
            )
        case "PATCH ":
            return CLIENT.update_collection(name, metadata=body["metadata"])
        case "DELETE ":
            return CLIENT.delete_collection(name)
        case _:
            return of_points(name, call, body)


def of_points(name: str, call: str, body: Any) -> Any:
    match call:
        case "PUT /points":
            return CLIENT.upsert(name, models.PointsList.model_validate(body).points)
        case "POST /points":
            asked = models.PointRequest.model_validate(body)
            return CLIENT.retrieve(name, asked.ids, asked.with_payload or False, asked.with_vector or False)
        case "POST /points/scroll":
            scroll = models.ScrollRequest.model_validate(body)
            points, offset = CLIENT.scroll(
                name,
                scroll.filter,
                scroll.limit or 10,
                offset=scroll.offset,
                with_payload=scroll.with_payload or False,
                with_vectors=scroll.with_vector or False,
            )
            return models.ScrollResult(points=points, next_page_offset=offset)  # type: ignore[arg-type]
        case "POST /points/count":
            return CLIENT.count(name, models.CountRequest.model_validate(body).filter)
        case "POST /points/query":
            query = models.QueryRequest.model_validate(body)
            return CLIENT.query_points(
                name,
                query.query,
                using=query.using,
                query_filter=query.filter,
                limit=query.limit or 10,
                with_payload=query.with_payload or False,
                with_vectors=query.with_vector or False,
            )
        case "POST /points/delete":
            selector = models.PointIdsList if "points" in body else models.FilterSelector
            return CLIENT.delete(name, selector.model_validate(body))
        case "PUT /points/vectors":
            return CLIENT.update_vectors(name, models.UpdateVectors.model_validate(body).points)
        case _:
            raise NotImplementedError(call)


class Calls(BaseHTTPRequestHandler):
    """One call."""

    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, told = 200, "ok"
        result: Any = None
        try:
            with ONE:  # a call at a time, as the local mode wants it
                result = answer(self.command, self.path, json.loads(data or b"null"))
        except ValueError as error:
            status, told = (404 if "not found" in str(error) else 400), str(error)
        made = [each.model_dump(mode="json") for each in result] if isinstance(result, list) else result
        made = made.model_dump(mode="json") if isinstance(made, BaseModel) else made
        written = json.dumps({"result": made, "status": told if status == 200 else {"error": told}, "time": 0.0})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written.encode())))
        self.end_headers()
        self.wfile.write(written.encode())

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        del format, args


@contextmanager
def serving() -> Iterator[str]:
    """Start the process; yields its address."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdin is not None
        assert made.stdout is not None
        yield made.stdout.readline().strip()
        made.stdin.close()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
