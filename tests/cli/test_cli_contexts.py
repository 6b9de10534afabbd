"""recontextualize and rollback from the command line."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag.cli import app
from cde_rag.models.files import model_files
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")


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


def test_the_context_that_it_has_is_said_to_be_so(run, collection: Path):
    before = fingerprint(run, collection)
    again = run("recontextualize", collection, "--context-size", 8)
    assert "Nothing to do: the passages that were sampled are the context that it has." in again.stderr
    assert fingerprint(run, collection) == before
    assert "Nothing to do" not in run("recontextualize", collection, "--context-size", 8, "--seed", 1).stderr


def test_to_another_bundled_model_and_back(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both are found by their names, so that no later command has to name one."""
    monkeypatch.setattr(model_files, "BUNDLED", tmp_path)
    for seed, name in enumerate(("old", "new")):
        network = tiny_network(seed=seed)
        network.config = replace(network.config, name=name)
        checkpoints.write(tmp_path / name, network, tiny_tokenizer())
    papers = tmp_path / "papers"

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def told() -> tuple[str, str]:
        return json.loads(run("inspect", papers, "--json"))["model"], run("search", papers, "river", "--json")

    run("index", records, papers, "--context-size", 8, "--no-progress", "--model", "old")
    before = told()
    assert before[0] == "old"
    run("recontextualize", papers, "--to-model", "new", "--context-size", 8)
    assert told()[0] == "new"
    run("rollback", papers)
    assert told() == before


def test_a_dry_run_changes_nothing(run, collection: Path):
    cost = json.loads(run("recontextualize", collection, "--dry-run", "--json").stdout)
    assert cost.keys() == {"documents", "tokens", "seconds", "vector_bytes", "gain", "interval"}
    assert cost["documents"] == 20
    assert cost["interval"][0] <= cost["gain"] <= cost["interval"][1]
    shown = run("recontextualize", collection, "--dry-run").stdout
    assert re.search(r"^time +about 0:\d\d$", shown, re.MULTILINE)
    assert re.search(r"^vectors +0\.0 MB$", shown, re.MULTILINE)
    assert f"{cost['gain']:+.3f} NDCG@10" in shown
    assert len(FaissStore(collection).generations()) == 1


def test_a_dry_run_says_that_there_is_nothing_to_do(run, collection: Path):
    same = ("recontextualize", collection, "--context-size", 8)
    assert run(*same, "--dry-run").stdout.startswith("Nothing to do: the sample would be the 8 passages")
    nothing = json.loads(run(*same, "--dry-run", "--json").stdout)
    assert nothing.pop("interval") == [0, 0]
    assert set(nothing.values()) == {0}
    assert "takes about" not in run(*same).stderr
    for other in (("--seed", 1), ("--windows",), ("--strategy", "clusters")):
        assert json.loads(run(*same, "--dry-run", "--json", *other).stdout)["documents"] == 20


def test_a_context_of_all_passages_is_the_same_again(run, records: Path, tmp_path: Path):
    run("index", records, tmp_path / "small", "--no-progress")
    for options in ((), ("--seed", 1), ("--strategy", "clusters")):
        assert "Nothing to do" in run("recontextualize", tmp_path / "small", "--dry-run", *options).stdout
        assert "Nothing to gain" in run("drift", tmp_path / "small", *options).stdout


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_canary_queries_may_begin_with_a_byte_order_mark(run, collection: Path, tmp_path: Path, encoding: str):
    line = json.dumps({"query": "a line\u2028separator", "ids": ["r1"]}, ensure_ascii=False)
    (tmp_path / "known.jsonl").write_text(f"{line}\n", encoding=encoding)
    command = ("recontextualize", collection, "--seed", 1, "--canary", tmp_path / "known.jsonl", "--may-lose", 1)
    assert run(*command, "--json").stdout
    (tmp_path / "known.jsonl").write_text("Größe", encoding="latin-1")
    assert "known.jsonl, line 1: not UTF-8: byte 0xf6" in run(*command, code=1).stderr


def test_mistakes(run, collection: Path, tmp_path: Path):
    assert "nothing to roll back to" in run("rollback", collection, code=1).stderr
    assert "random and clusters" in run("recontextualize", collection, "--strategy", "best", code=2).stderr
    assert "cde-rag index" in run("recontextualize", tmp_path / "none", code=1).stderr
    assert "bundled model" in run("recontextualize", collection, "--to-model", "none", code=1).stderr
    with FaissStore(collection).lease():
        assert "another run holds the lease" in run("recontextualize", collection, "--seed", 1, code=1).stderr
