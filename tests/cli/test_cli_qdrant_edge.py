"""A collection in Qdrant Edge: its name says so when it is made, and what is in the folder from then on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cde_rag.stores.qdrant_edge import QdrantEdgeStore


@pytest.fixture
def collection(run, records: Path, tmp_path: Path) -> Path:
    run("index", records, tmp_path / "papers.qdrant", "--parent-key", "book")
    return tmp_path / "papers.qdrant"


def test_every_command_opens_it(run, records: Path, collection: Path):
    assert (collection / "cde.json").exists()
    found = json.loads(run("inspect", collection, "--json").stdout)
    assert {"documents": 20, "parent_key": "book", "generation": 1}.items() <= found.items()
    hits = json.loads(run("search", collection, "river", "--where", '{"year": {"gte": 2010}}', "--json").stdout)["hits"]
    assert len(hits) == 10
    run("recontextualize", collection, "--seed", "1", "--context-size", "7")
    assert json.loads(run("inspect", collection, "--json").stdout)["generation"] == 2
    assert json.loads(run("index", records, collection, "--json").stdout)["unchanged"] == 20
    run("rollback", collection)
    assert json.loads(run("inspect", collection, "--json").stdout)["generation"] == 1
    assert run("verify", collection).stdout == f"{collection} is intact.\n"


def test_another_name_changes_nothing(run, collection: Path, tmp_path: Path):
    collection.rename(tmp_path / "renamed")
    assert json.loads(run("inspect", tmp_path / "renamed", "--json").stdout)["documents"] == 20


def test_damage_is_found_before_the_engine_reads_it(run, collection: Path):
    path = next(path for path in collection.rglob("segment.json"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "segment.json" in run("verify", collection, code=1).stdout
    assert "segment.json" in run("search", collection, "river", code=1).stderr


def test_another_process_is_told(run, collection: Path):
    store = QdrantEdgeStore(collection)
    assert store.count() == 20
    command = [sys.executable, "-c", "from cde_rag.cli import app; app()", "verify", str(collection)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "another process has this store open" in done.stderr
    store.close()
