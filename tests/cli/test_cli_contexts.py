"""recontextualize and rollback from the command line."""

import json
from pathlib import Path

import pytest

from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.SmallContextWarning")


@pytest.fixture
def collection(run, records: Path, tmp_path: Path) -> Path:
    run("index", records, tmp_path / "books", "--context-size", 8, "--no-progress")
    return tmp_path / "books"


def fingerprint(run, collection: Path) -> str:
    return json.loads(run("inspect", collection, "--json").stdout)["fingerprint"]


def test_there_and_back(run, collection: Path):
    before = fingerprint(run, collection)
    report = json.loads(run("recontextualize", collection, "--seed", 1, "--context-size", 8, "--json").stdout)
    assert report.items() >= {"documents": 20, "embedded": 20, "generation": 2}.items()
    assert report["fingerprint"] == fingerprint(run, collection) != before
    assert len(json.loads(run("search", collection, "river", "--json").stdout)["hits"]) == 10
    assert "generation" in run("rollback", collection).stdout
    assert fingerprint(run, collection) == before
    run("verify", collection)


def test_a_dry_run_changes_nothing(run, collection: Path):
    cost = json.loads(run("recontextualize", collection, "--dry-run", "--json").stdout)
    assert cost.keys() == {"documents", "tokens", "seconds", "vector_bytes"}
    assert cost["documents"] == 20
    assert "seconds" in run("recontextualize", collection, "--dry-run").stdout
    assert len(FaissStore(collection).generations()) == 1


def test_mistakes(run, collection: Path, tmp_path: Path):
    assert "nothing to roll back to" in run("rollback", collection, code=1).stderr
    assert "random and clusters" in run("recontextualize", collection, "--strategy", "best", code=2).stderr
    assert "cde-rag index" in run("recontextualize", tmp_path / "none", code=1).stderr
    with FaissStore(collection).lease():
        assert "another at work" in run("recontextualize", collection, "--seed", 1, code=1).stderr
