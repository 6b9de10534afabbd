"""--tenant: each command works on the collection of one, and to forget whose, or to name one in vain, is an error."""

import json
from pathlib import Path

import pytest

COMMANDS = [
    ["search", "river"], ["count"], ["inspect"], ["verify"], ["recontextualize"], ["rollback"],
    ["drift", "--probes", "3"], ["audit"], ["upgrade"],
]  # fmt: skip


@pytest.fixture(params=["papers.faiss", "papers.qdrant"])
def place(request: pytest.FixtureRequest, run, records: Path, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    run("index", records, path, "--tenant", "acme", "--parent-key", "book")
    (tmp_path / "other.jsonl").write_text(json.dumps({"id": "r1", "text": "credit of globex", "book": "b"}))
    run("index", tmp_path / "other.jsonl", path, "--tenant", "../globex")
    return path


def test_each_has_its_own(run, place: Path, tmp_path: Path, records: Path) -> None:
    found = json.loads(run("inspect", place, "--tenant", "acme", "--json").stdout)
    expected = {"documents": 20, "tenant": "acme", "common_context": True, "parent_key": "book", "context_size": 0}
    assert expected.items() <= found.items()
    hits = json.loads(run("search", place, "credit", "--tenant", "../globex", "--json").stdout)["hits"]
    origin = {"file": str(tmp_path / "other.jsonl"), "row": 1}
    expected = {"book": "b", "table": origin, "tenant": "../globex"}
    assert [(hit["id"], hit["metadata"]) for hit in hits] == [("r1", expected)]
    run("recontextualize", place, "--tenant", "acme", "--context-size", "5")
    assert json.loads(run("inspect", place, "--tenant", "acme", "--json").stdout)["common_context"] is False
    assert json.loads(run("inspect", place, "--tenant", "../globex", "--json").stdout)["generation"] == 1
    assert json.loads(run("index", records, place, "--tenant", "acme", "--json").stdout)["unchanged"] == 20
    run("rollback", place, "--tenant", "acme")
    for tenant in ("acme", "../globex"):
        assert run("verify", place, "--tenant", tenant).stdout.endswith("is intact.\n")
    assert {path.name for path in tmp_path.iterdir()} == {place.name, "records.jsonl", "other.jsonl"}


@pytest.mark.parametrize("command", [*COMMANDS, ["index"]], ids=lambda command: command[0])
def test_a_tenant_has_to_be_named_where_there_are_some_and_only_there(
    run, records: Path, tmp_path: Path, command: list[str]
) -> None:
    name, *rest = command

    def tried(path: Path, *more: str) -> str:
        arguments = [records, path] if name == "index" else [path, *rest]
        return run(name, *arguments, *more, code=1).stderr

    run("index", records, tmp_path / "papers.faiss", "--tenant", "acme")
    assert "Error: Expected one tenant to be named" in tried(tmp_path / "papers.faiss")
    if name != "index":
        assert "found none of this name" in tried(tmp_path / "papers.faiss", "--tenant", "ACME")
    assert "name of a tenant" in tried(tmp_path / "papers.faiss", "--tenant", " ")
    run("index", records, tmp_path / "plain.faiss")
    assert "Leave --tenant out" in tried(tmp_path / "plain.faiss", "--tenant", "acme")


def test_a_refused_file_makes_no_tenants(run, tmp_path: Path) -> None:
    """They would keep its parent key."""
    rows = [{"id": "1", "text": "credit", "book": "b", "price": 1}, {"id": "2", "text": "river", "price": 1.5}]
    bad = tmp_path / "records.jsonl"
    bad.write_text("\n".join(map(json.dumps, rows)))
    run("index", bad, tmp_path / "papers.faiss", "--tenant", "acme", "--parent-key", "price", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]
    run("index", bad, tmp_path / "papers.faiss", "--tenant", "acme", "--parent-key", "book")
