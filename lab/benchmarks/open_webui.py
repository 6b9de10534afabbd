"""Walk of `cde-rag reembed open-webui:FOLDER` with the real Open WebUI, which is started, asked and stopped.

The application runs in an environment of its own, since its pins are others than ours:
python -m venv APP && APP/bin/pip install open-webui. It is used by its HTTP API alone: one user, two knowledge bases,
Markdown files and memories. Then its folder is moved to a model of another length, with the application running; the
printed setting is made; it goes on with an upload, a restart, a rollback and a move to a model that an API serves.
Each step prints a line, and the program ends with 1 if one of them failed. Run with: python -m
lab.benchmarks.open_webui APP/bin/open-webui --model FOLDER [--keep FOLDER].
"""

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

FILES = {
    "otters.md": "# Otters\n\nSea otters sleep on their backs.\nThey wrap themselves in kelp, so that they do not drift.\n"
    "\n## Food\n\nAn otter opens clams with a stone, which it keeps in a pouch under its arm.\n",
    "bread.md": "# Sourdough\n\nA sourdough starter is flour and water.\nFeed it each day, and bake when it doubles.\n",
    "bridges.md": "# Bridges\n\nA suspension bridge hangs its deck from cables.\nTwo towers carry their weight.\n",
    "chess.md": "# Chess\n\nCastling moves king and rook at once.\nIt is not allowed while the king is in check.\n",
    "tides.md": "# Tides\n\nThe moon pulls the sea.\nSpring tides come when sun and moon are in one line.\n",
    "violins.md": "# Violins\n\nA luthier carves the top of spruce.\nThe back and ribs of a violin are of maple.\n",
}
QUESTIONS = {
    "How do otters stay in place while they rest?": "kelp",
    "What do I need to make a starter for bread?": "sourdough",
    "When may the king not castle?": "Castling",
    "Why is the sea higher at full moon?": "moon",
    "Which wood is the back of a violin made of?": "maple",
}
MEMORIES = ["I play the violin on Sundays.", "My dog is called Bruno,\nand he is afraid of boats."]


class OpenWebUI:
    """The application, as one user of its API sees it.

    Args:
        program: Its command line program.
        folder: Its data folder.
        environment: More of its environment.
    """

    def __init__(self, program: Path, folder: Path, environment: dict[str, str]) -> None:
        self._program, self.folder, self._environment = program, folder, environment
        self._secret, self._token = secrets.token_hex(16), ""
        self._client = httpx.Client(timeout=300)
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the application, and stop it at the end."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = os.environ | self._environment
        settings |= {"DATA_DIR": str(self.folder), "WEBUI_SECRET_KEY": self._secret, "OFFLINE_MODE": "true"}
        settings |= {"HF_HUB_OFFLINE": "1", "ENABLE_OLLAMA_API": "false", "ENABLE_OPENAI_API": "false"}
        settings.pop("PYTHONPATH", None)
        command = [str(self._program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        with (self.folder.parent / "open-webui.log").open("ab") as log:
            process = subprocess.Popen(command, env=settings, stdout=log, stderr=log, cwd=self.folder.parent)
        self._client.base_url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                if process.poll() is not None:
                    raise SystemExit(f"open-webui ended with {process.returncode}: see {log.name}")
                try:
                    if self._client.get("/health").is_success:
                        break
                except httpx.TransportError:
                    time.sleep(0.5)
            yield
        finally:
            process.terminate()
            process.wait(60)

    def call(self, method: str, path: str, **content: Any) -> Any:
        """Call its API as the user."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        answer = self._client.request(method, f"/api/v1/{path}", headers=headers, **content)
        if not answer.is_success:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text:.500}")
        return answer.json()

    def sign_up(self) -> None:
        """Make the first user, an administrator."""
        user = {"name": "one", "email": "one@example.com", "password": "a long password 1"}
        self._token = self.call("POST", "auths/signup", json=user)["token"]

    def knowledge(self, name: str, description: str) -> str:
        """Make a knowledge base, and return its id."""
        return self.call("POST", "knowledge/create", json={"name": name, "description": description})["id"]

    def upload(self, name: str, text: str, knowledge: str | None) -> str:
        """Upload a file, add it to a knowledge base, and return its id."""
        files = {"file": (name, text.encode(), "text/markdown")}
        options = {"process": "true", "process_in_background": "false"}
        id_ = self.call("POST", "files/", files=files, params=options)["id"]
        if knowledge is not None:
            self.call("POST", f"knowledge/{knowledge}/file/add", json={"file_id": id_})
        return id_

    def query(self, names: list[str], question: str) -> list[str]:
        """Return the texts that its search finds, best first."""
        found = self.call(
            "POST", "retrieval/query/collection", json={"collection_names": names, "query": question, "k": 3}
        )
        return found["documents"][0]

    def model(self) -> dict[str, Any]:
        """Return its settings of the embedding model."""
        return self.call("GET", "retrieval/embedding")

    def take(self, model: str, *, url: str | None = None) -> None:
        """Set another embedding model, as the button of its page of settings does."""
        config = {"RAG_EMBEDDING_ENGINE": "" if url is None else "openai", "RAG_EMBEDDING_MODEL": model}
        if url is not None:
            config["openai_config"] = {"url": url, "key": "any"}
        self.call("POST", "retrieval/embedding/update", json=config)


if __name__ == "__main__":
    import code
    app = OpenWebUI(Path("/tmp/ow-venv/bin/open-webui"), Path("/tmp/ow/data"), {"RAG_EMBEDDING_MODEL": sys.argv[1]})
    code.interact(local=globals())
