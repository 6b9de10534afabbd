"""Walk of `cde-rag reembed open-webui:FOLDER` with the real Open WebUI, which is started, used and stopped.

The application runs in an environment of its own, since its pins are others than ours:
python -m venv APP && APP/bin/pip install open-webui. It is used by its HTTP API alone: one user, two knowledge bases,
Markdown files and memories. Then its folder is moved to a model of another length, with the application running; the
printed setting is made; it goes on with an upload, a rollback, a restart, a second switch and a release. Each step
prints a line, and the program ends with 1 if one of them failed. The models are folders that both sides load. Run with:
python -m lab.benchmarks.open_webui APP/bin/open-webui --old FOLDER --new FOLDER [--folder FOLDER].
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

FILES = {
    "otters.md": "# Otters\n\nSea otters sleep on their backs.\nThey wrap themselves in kelp, and do not drift.\n"
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
READ = """
import json, sys, chromadb
parts = ["documents", "metadatas", "embeddings"]
found = {}
for each in chromadb.PersistentClient(sys.argv[1]).list_collections():
    page = each.get(include=parts)
    values = page["ids"], page["documents"], page["metadatas"], page["embeddings"].tolist()
    found[each.name] = sorted(zip(*values), key=lambda row: row[0])
print(json.dumps(found))
"""
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
            for _ in range(3600):  # some minutes on a slow machine
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


class Walk:
    """Steps of the walk, each of which prints a line.

    Args:
        application: Open WebUI, which runs.
        folders: Folders of the old and the new model.
    """

    def __init__(self, application: OpenWebUI, folders: tuple[Path, Path]) -> None:
        self.application, (self.old, self.new) = application, (str(folder) for folder in folders)
        self.bases: list[str] = []
        self.failed = 0

    def step(self, name: str, *, held: bool) -> None:
        """Print a step, and count it if it failed."""
        print(f"{'yes' if held else 'NO '}  {name}", flush=True)
        self.failed += not held

    def cde_rag(self, *arguments: str) -> str:
        """Run a command on the application's folder, and return what it prints."""
        command, rest = arguments[0], arguments[1:]
        line = ["cde-rag", command, f"open-webui:{self.application.folder}", *rest]
        found = subprocess.run(line, capture_output=True, text=True, check=False)
        if found.returncode:
            raise SystemExit(f"{' '.join(line)}: {found.stdout}{found.stderr}")
        return found.stdout

    def fill(self) -> None:
        """Make the user, two knowledge bases, their files, memories and a note."""
        application = self.application
        application.sign_up()
        self.bases = [application.knowledge("Nature", "Animals and the sea"), application.knowledge("Crafts", "")]
        for place, (name, text) in enumerate(FILES.items()):
            application.upload(name, text, self.bases[place % 2])
        application.upload("loose.md", "# Loose\n\nNo knowledge base has this file.\n", None)
        for memory in MEMORIES:
            application.call("POST", "memories/add", json={"content": memory})
        application.call("POST", "retrieval/process/text", json={"name": "note", "content": "A note\nabout herons."})

    def answers(self) -> bool:
        """Return True if its search has the right text first for each question, and its memories, too."""
        found = {word: self.application.query(self.bases, question) for question, word in QUESTIONS.items()}
        pets = self.application.call("POST", "memories/query", json={"content": "dog", "k": 1})["documents"]
        return all(texts and word.lower() in texts[0].lower() for word, texts in found.items()) and "Bruno" in str(pets)

    def finds(self, word: str) -> bool:
        """Return True if its search has a word in the first text."""
        return word in (self.application.query(self.bases[:1], word) or [""])[0]


def rows(folder: Path) -> dict[str, list[Any]]:
    """Return ids, texts, metadata and vectors of all collections, read by another process: this one might keep some."""
    found = subprocess.run(
        [sys.executable, "-c", READ, str(folder / "vector_db")], capture_output=True, text=True, check=True
    )
    return json.loads(found.stdout)


def forward(walk: Walk) -> None:
    """Fill the application, and move it to the new model, with a reader and writes between the steps."""
    application = walk.application
    walk.fill()
    walk.step("its search answers by the old model", held=walk.answers())
    walk.step("the old model made all vectors", held="100.0 %" in walk.cde_rag("audit", "--model", walk.old))
    plan = walk.cde_rag("reembed", "--model", walk.new, "--from", walk.old, "--dry-run")
    walk.step("the plan names the setting", held=f"(now {walk.old})" in plan)
    walk.cde_rag("reembed", "--model", walk.new)
    walk.step("it answers after the copy", held=walk.answers())
    application.upload("herons.md", "# Herons\n\nA heron stands still in shallow water.\n", walk.bases[0])
    line = walk.cde_rag("reembed", "--model", walk.new, "--yes")
    walk.step("no collection is left by the switch", held="made meanwhile" not in line)
    application.take(walk.new)
    walk.step("it answers by the new model, without a restart", held=walk.answers() and walk.finds("heron"))
    application.upload("cranes.md", "# Cranes\n\nA crane dances in spring.\n", walk.bases[0])
    walk.step("it finds a file that was uploaded since", held=walk.finds("crane"))


def back(walk: Walk, before: dict[str, list[Any]]) -> None:
    """Return to the old model, and compare the rows."""
    print(walk.cde_rag("rollback", "--from", walk.old).strip())
    walk.application.take(walk.old)
    walk.step("it answers by the old model, without a restart", held=walk.answers())
    print(f"     it finds a row that was brought back, without a restart: {walk.finds('crane')}")
    after = rows(walk.application.folder)
    same = all({row[0]: row for row in after[name]}[each[0]] == each for name in before for each in before[name])
    walk.step("ids, texts, metadata and vectors of before are the same", held=same)


def main() -> int:
    """Walk, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="open-webui of its environment")
    parser.add_argument("--old", type=Path, required=True, help="folder of a SentenceTransformer")
    parser.add_argument("--new", type=Path, required=True, help="folder of another one")
    parser.add_argument("--folder", type=Path, help="new folder that is kept, with the log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (options.folder or Path(made) / "walk").absolute() / "data"
        folder.mkdir(parents=True)
        old, new = options.old.absolute(), options.new.absolute()
        application = OpenWebUI(options.program, folder, {"RAG_EMBEDDING_MODEL": str(old)})
        walk = Walk(application, (old, new))
        with application.running():
            forward(walk)
            before = {name.removesuffix("-cde-old"): each for name, each in rows(folder).items() if "-cde-old" in name}
            back(walk, before)
        with application.running():
            walk.step(
                "it answers after a restart, and finds what was brought", held=walk.answers() and walk.finds("crane")
            )
            walk.cde_rag("reembed", "--model", walk.new, "--yes")
            application.take(walk.new)
            walk.cde_rag("release")
            walk.step("it answers after a second switch and a release", held=walk.answers() and walk.finds("crane"))
            left = [name for name in rows(folder) if "-cde-" in name]
            walk.step("nothing of the move is left", held=not left)
        with application.running():
            kept = application.model()["RAG_EMBEDDING_MODEL"] == walk.new
            walk.step("its setting wins over RAG_EMBEDDING_MODEL, the old one", held=kept and walk.answers())
    return min(walk.failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
