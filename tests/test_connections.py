"""No command and no package of ours opens a connection that nobody asked for: neither by itself nor by what it imports.

Everything runs in processes of its own, without the variables that switch telemetry off. Python's audit events of their
sockets are noted, and where strace is installed also the system calls of what is no Python. The loopback address and
sockets of the file system are allowed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag.models.one_way import checkpoint as checkpoints

ROOT = Path(__file__).resolve().parents[1]
GUARD = """
import ipaddress, os, sys

def local(host):
    host = host.decode() if isinstance(host, bytes) else host
    try:
        return host in (None, "", "localhost", os.uname().nodename) or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        hosts = [address[0]] if isinstance(address, tuple) else []
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        hosts = [arguments[0]]
    else:
        return
    for host in hosts:
        if not local(host):
            with open(os.environ["CDE_RAG_TEST_CALLS"], "a") as calls:
                calls.write(f"{event} {host} {sys.argv}\\n")

sys.addaudithook(watch)
"""
SWITCHES = re.compile(
    r"RAY_|HF_|TRANSFORMERS_|HAYSTACK_|ANONYMIZED_|DO_NOT_TRACK|POSTHOG|ORT_|CI$|XDG_|CDE_RAG_RUNTIME"
)
IMPORTS = """
import importlib, pkgutil

for name in ("cde_rag", "cde_rag_training", *{found}):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(module.name)
for name in ("openai", "ray.data", "datasets", "chromadb", "lancedb", "qdrant_client", "mcp", "peft",
             "opentelemetry.trace", "tensorboard", "psycopg_pool", "pyarrow", "pandas", "bm25s"):
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        importlib.import_module(name)
"""
LOADS = """
import sys
from pathlib import Path

from typer.testing import CliRunner

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.cli import app
from cde_rag.embedders.as_sentence_transformer import sentence_transformer

folder = Path(sys.argv[1])
texts = [f"Note {number} about a river and its bank." for number in range(70)]
embedder = ContextualEmbedder.from_corpus(texts, model="cde-mini")  # by its bundled name
for runtime in ("torch", "openvino", "onnx"):
    model = CDEModel.from_pretrained("cde-mini", runtime=runtime, device="cpu")
    ContextualEmbedder(model, Context.null(model)).embed_queries(["river"])
sentence_transformer(embedder).encode_query("river")
PlainEmbedder(str(folder / "plain"), options=EmbedderOptions(device="cpu")).embed_queries(["river"])
with Collection.from_texts(texts, store=folder / "edge.qdrant") as collection:
    collection.search("river")
rows = embedder.embed_documents(texts)
import chromadb, lancedb

client = chromadb.PersistentClient(str(folder / "chroma"))
made = client.create_collection("notes", embedding_function=None)
made.add([str(number) for number in range(70)], embeddings=rows, documents=texts)
table = [{"vector": row.tolist(), "text": text} for row, text in zip(rows, texts)]
lancedb.connect(str(folder / "lance")).create_table("notes", table)
embedder.context.save(folder / "a.context.safetensors")
for target in (f"chroma:{folder / 'chroma'}#notes", f"lancedb:{folder / 'lance'}#notes"):
    context = str(folder / "a.context.safetensors")
    result = CliRunner().invoke(app, ["audit", target, "--model", "cde-mini", "--context", context])
    assert result.exit_code == 0, result.output
"""
COMMANDS = """
import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from cde_rag.cli import app
from cde_rag.evaluation import demo_corpus
from cde_rag.models.runtimes import runtime_choice

runtime_choice.SECONDS, runtime_choice.CALLS = 0.01, 1
folder, model = Path(sys.argv[1]), sys.argv[2]
demo_corpus.FOLDER = folder / "asked"  # one page in place of the documentation
demo_corpus.FOLDER.mkdir()
page = {"path": "boats.md", "text": "# Boats\\n\\nA boat has two oars."}
quote = {"page": "boats.md", "quote": "two oars"}
(demo_corpus.FOLDER / "pages.jsonl").write_text(json.dumps(page))
(demo_corpus.FOLDER / "questions.jsonl").write_text(json.dumps({"question": "how many oars?", "answers": [quote]}))
docs, judged = str(folder / "docs.faiss"), str(folder / "judged")
own = ["--model", model]
commands = [
    ["--version"],
    ["doctor"],
    ["index", str(folder / "notes"), str(folder / "bundled.faiss")],  # the model by its bundled name
    ["index", str(folder / "judged/corpus.jsonl"), docs, *own],
    ["index", str(folder / "judged/corpus.jsonl"), str(folder / "docs.qdrant"), *own],
    ["search", docs, "river bank", *own],
    ["search", str(folder / "docs.qdrant"), "river bank", *own],
    ["count", docs],
    ["inspect", docs],
    ["verify", docs],
    ["reindex", docs],
    ["audit", docs, *own],
    ["drift", docs, *own],
    ["recontextualize", docs, "--workers", "1", *own],
    ["rollback", docs, *own],
    ["export", docs, str(folder / "docs.parquet")],
    ["import", str(folder / "docs.parquet"), str(folder / "again.faiss")],
    ["backup", docs, str(folder / "backup")],
    ["restore", str(folder / "backup"), str(folder / "restored.faiss")],
    ["tune", docs, judged, "--dry-run", *own],
    ["evaluate", judged, "--system", "own", "--system", "bm25", *own],
    ["demo"],
]
for command in commands:
    result = CliRunner().invoke(app, command)
    if result.exit_code not in (0, 3) and command[0] != "rollback":  # the new context is the old one
        print(command, result.exit_code, result.output[-600:], repr(result.exception), file=sys.stderr)
        sys.exit(1)
"""
RAY = """
import sys
from pathlib import Path

if sys.argv[3] == "imported":
    import ray  # what Ray reads at its import, it has read
from cde_rag.distributed import RayPool
from cde_rag.cli import app

app(["recontextualize", str(Path(sys.argv[1]) / "docs.faiss"), "--ray", "local", "--workers", "1",
     "--model", sys.argv[2]], standalone_mode=False)
"""


class Watched:
    """Runs Python in a process whose sockets are watched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "guard").mkdir()
        (folder / "guard/sitecustomize.py").write_text(GUARD)
        self._calls, self._trace = folder / "calls", folder / "trace"
        kept = {key: value for key, value in os.environ.items() if not SWITCHES.match(key)}
        home = {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
        paths = os.pathsep.join(filter(None, [str(folder / "guard"), os.environ.get("PYTHONPATH", "")]))
        self.environment = {**kept, **home, "PYTHONPATH": paths, "CDE_RAG_TEST_CALLS": str(self._calls)}
        (folder / "home").mkdir()

    def command(self, program: str, *arguments: object) -> list[str]:
        traced = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-s", "9"]
        before = [*traced, "-o", str(self._trace)] if shutil.which("strace") else []
        return [*before, sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]

    def run(self, program: str, *arguments: object) -> None:
        """Run a program, and fail where it reached anything but this machine."""
        done = subprocess.run(
            self.command(program, *arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        self.check()

    def check(self) -> None:
        """Fail where a connection was noted."""
        events = self._calls.read_text().splitlines() if self._calls.exists() else []
        traced = self._trace.read_text(errors="replace").splitlines() if self._trace.exists() else []
        assert events + [line for line in traced if _leaves(line)] == []


def _leaves(line: str) -> bool:
    """Return True for a system call that reaches another machine, or a resolver of names."""
    address = re.search(r'inet_addr\("([\d.]+)"\)|inet_pton\(AF_INET6, "([^"]+)"', line)
    if address is None:
        return False
    host = (address[1] or address[2]).removeprefix("::ffff:")
    return not (host.startswith("127.") or host == "::1") or "htons(53)" in line


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    return tmp_path / "model"


def write_corpus(folder: Path) -> None:
    """Records with judged queries, and notes."""
    (folder / "judged/qrels").mkdir(parents=True)
    (folder / "notes").mkdir()
    rows = [
        {"_id": f"d{number}", "title": "", "text": f"{WORDS[number % 17]} {WORDS[number * 5 % 17]} name{number}"}
        for number in range(80)
    ]
    queries = [{"_id": f"q{number}", "text": f"{WORDS[number * 3 % 17]} of name{number}"} for number in range(60)]
    for name, each in (("corpus", rows), ("queries", queries)):
        (folder / f"judged/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    qrels = "".join(f"q{number}\td{number}\t1\n" for number in range(60))
    (folder / "judged/qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    for number in range(3):
        (folder / f"notes/{number}.md").write_text(f"# Note {number}\n\nSwifts sleep on the wing, {number} hours.\n")


def test_the_watch_sees_what_leaves(watched: Watched) -> None:
    for program in (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('192.0.2.1', 9))",
        "import socket\ntry: socket.getaddrinfo('metadata.invalid', 80)\nexcept OSError: pass",
    ):
        with pytest.raises(AssertionError, match=r"socket\."):
            watched.run(program)
        (watched.folder / "calls").unlink()
    if shutil.which("strace"):
        with pytest.raises(AssertionError, match=r"192\.0\.2\.1"):  # what Python does not see
            watched.run("import ctypes, struct; libc = ctypes.CDLL(None); s = libc.socket(2, 2, 0); "
                        "libc.connect(s, struct.pack('=HH4s8x', 2, 0x0900, bytes((192, 0, 2, 1))), 16)")  # fmt: skip


@pytest.mark.long  # the commands import most of it
def test_no_import_opens_a_connection(watched: Watched) -> None:
    names = ("langchain_cde", "llama_index.embeddings.cde", "llama_index.vector_stores.cde",
             "haystack_integrations.components.embedders.cde", "haystack_integrations.components.retrievers.cde",
             "haystack_integrations.document_stores.cde")  # fmt: skip
    watched.run(IMPORTS.replace("{found}", repr([name for name in names if _is_there(name)])))


@pytest.mark.long
def test_no_model_and_no_reader_of_other_stores_opens_a_connection(watched: Watched) -> None:
    for module in ("chromadb", "lancedb", "qdrant_edge", "openvino", "onnxruntime"):
        pytest.importorskip(module)
    from plain_model import write_transformer

    write_transformer(watched.folder / "plain")
    watched.run(LOADS, watched.folder)


def test_no_command_opens_a_connection(watched: Watched, model: Path) -> None:
    for module in ("qdrant_edge", "pyarrow", "bm25s"):
        pytest.importorskip(module)
    write_corpus(watched.folder)
    watched.run(COMMANDS, watched.folder, model)


@pytest.mark.parametrize("before", ["imported", pytest.param("not imported", marks=pytest.mark.long)])
def test_a_cluster_of_ray_reaches_nothing_but_this_machine(watched: Watched, model: Path, before: str) -> None:
    pytest.importorskip("ray")
    from cde_rag import Collection

    Collection.from_texts([f"{WORDS[n % 17]} name{n}" for n in range(80)], store=watched.folder / "docs.faiss",
                          model=str(model)).close()  # fmt: skip
    watched.run(RAY, watched.folder, model, before)


def test_no_server_opens_a_connection(watched: Watched, model: Path) -> None:
    pytest.importorskip("uvicorn")
    from cde_rag import Collection

    Collection.from_texts([f"{WORDS[n % 17]} name{n}" for n in range(80)], store=watched.folder / "docs.faiss",
                          model=str(model)).close()  # fmt: skip
    program = "import sys; from cde_rag.cli import app; app(sys.argv[1:])"
    command = watched.command(program, "serve", "docs.faiss", "--port", 0, "--model", model)
    with subprocess.Popen(
        command, cwd=watched.folder, env=watched.environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"running on (http://\S+)", line)))
        for path in ("/", "/v1/models", "/health"):
            with urlopen(url + path) as answer:
                assert answer.status == 200
        os.kill(_server(process.pid), signal.SIGINT)
        process.stderr.read()
    watched.check()
    if _is_there("mcp"):
        watched.run(f"import sys; sys.stdin = open('/dev/null'); {program.partition(';')[2]}", "mcp", "docs.faiss",
                    "--model", model)  # fmt: skip


def _server(process: int) -> int:
    """Return the process that serves: strace's child, if strace started it."""
    children = Path(f"/proc/{process}/task/{process}/children")
    found = children.read_text().split() if shutil.which("strace") else []
    return int(found[0]) if found else process


def _is_there(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
