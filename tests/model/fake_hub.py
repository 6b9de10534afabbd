"""As much of the hub as its own client needs: repositories of one commit each, in folders, behind HTTP."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Serves `root/<owner>/<name>/`; the commit is a digest of the repository's name and files.

    Attributes:
        asked: Method and path of every request.
        private: Token that is needed for each private repository.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.private: dict[str, str] = {}
        self.sizes: dict[str, int] = {}  # that the listing claims, against the truth
        self.sent: dict[str, bytes] = {}  # what is sent of a file, instead of all of it
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def commit(self, repository: str) -> str:
        files = [self.root / repository / name for name in self.names(repository)]
        return hashlib.sha1(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()

    def names(self, repository: str) -> list[str]:
        folder = self.root / repository
        return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.asked.append(f"{request.command} {path}")
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        repository = "/".join(parts[:2])
        token = self.private.get(repository)
        if not (self.root / repository).is_dir():
            self.refuse(request, "RepoNotFound", 401)
        elif token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            self.refuse(request, "GatedRepo", 403)
        elif len(parts) > 3 and parts[3] not in ("main", self.commit(repository)):
            self.refuse(request, "RevisionNotFound", 404)
        elif path.startswith("/api/") and parts[2:3] == ["tree"]:
            self.tree(request, repository)
        elif path.startswith("/api/"):
            self.listing(request, repository)
        else:
            self.file(request, repository, "/".join(parts[4:]))

    def refuse(self, request: BaseHTTPRequestHandler, code: str, status: int) -> None:
        request.send_response(status)
        request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def listing(self, request: BaseHTTPRequestHandler, repository: str) -> None:
        siblings = [self.sibling(repository, name) for name in self.names(repository)]
        self.json(request, {"id": repository, "sha": self.commit(repository), "siblings": siblings})

    def tree(self, request: BaseHTTPRequestHandler, repository: str) -> None:
        sizes = {name: (self.root / repository / name).stat().st_size for name in self.names(repository)}
        entries = [{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in sizes.items()]
        self.json(request, entries)

    def json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        body = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def sibling(self, repository: str, name: str) -> dict[str, object]:
        path = self.root / repository / name
        size = self.sizes.get(name, path.stat().st_size)
        if path.suffix != ".safetensors":
            return {"rfilename": name, "size": size}
        lfs = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": size, "pointerSize": 134}
        return {"rfilename": name, "size": size, "lfs": lfs}

    def file(self, request: BaseHTTPRequestHandler, repository: str, name: str) -> None:
        path = self.root / repository / name
        if not path.is_file():
            return self.refuse(request, "EntryNotFound", 404)
        body = path.read_bytes()
        request.send_response(200)
        request.send_header("X-Repo-Commit", self.commit(repository))
        request.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(self.sent.get(name, body))
        return None
