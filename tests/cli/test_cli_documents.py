"""list, get, delete and inspect: documents with their passages, by name and by filter."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest


@pytest.fixture
def docs(run, tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/banks.md").write_text(
        "# Banks\n\nmoney\n\n## Loans\n\na loan\n\n## Rates\n\na rate of interest\n"
    )
    (tmp_path / "docs/rivers.md").write_text("# Rivers\n\na river\n")
    (tmp_path / "rows.jsonl").write_text('{"id": "7", "text": "a boat", "year": 2019}\n')
    run("index", tmp_path / "docs", tmp_path / "rows.jsonl", tmp_path / "p", "--max-characters", 20)
    return tmp_path / "p"


def listed(run, collection: Path) -> dict[str, int]:
    found = json.loads(run("list", collection, "--json").stdout)["documents"]
    return {each["name"]: each["passages"] for each in found}


def test_documents_are_listed_with_their_passages(run, docs: Path):
    found = listed(run, docs)
    assert list(found) == ["docs/banks.md", "docs/rivers.md", "7"]
    assert found["docs/banks.md"] > 1
    done = run("list", docs)
    shown = {"7": "a boat  [7]"}
    assert done.stdout.splitlines() == [f"{count:7,}  {shown.get(name, name)}" for name, count in found.items()]
    assert done.stderr == f"3 documents, {sum(found.values())} passages.\n"
    assert run("list", docs, "--where", '{"year": 2019}').stdout == "      1  a boat  [7]\n"
    assert "no passage has the field 'yaer'" in run("list", docs, "--where", '{"yaer": 2019}').stderr


def test_rows_without_ids_are_listed_by_title_or_words_with_file_and_row(run, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/rows.csv").write_text(f"title,text\nBoats,a boat\n,{'bank ' * 40}\n")
    (tmp_path / "tables/ids.jsonl").write_text('{"id": "7", "text": "a river"}\n')
    run("index", tmp_path / "tables", tmp_path / "p")
    lines = run("list", tmp_path / "p").stdout.splitlines()
    words = f"{' '.join(['bank'] * 16)}…"
    assert lines == [
        "      1  a river  [7]",
        "      1  Boats  [tables/rows.csv, row 2]",
        f"      1  {words}  [tables/rows.csv, row 3]",
    ]
    assert len(words) <= 80
    ids = [name for name in listed(run, tmp_path / "p") if len(name) == 32]
    assert "a boat" in run("get", tmp_path / "p", ids[0]).stdout


def test_a_file_of_rows_names_all_its_rows(run, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("# Rivers\n\na river\n")
    (tmp_path / "docs/rows.csv").write_text("id,text\n7,a boat\n8,a sail\n")
    (tmp_path / "docs/others.csv").write_text("id,text\n9,an oar\n")
    run("index", tmp_path / "docs", tmp_path / "p")
    found = json.loads(run("get", tmp_path / "p", "docs/rows.csv", "--json").stdout)["records"]
    assert [record["id"] for record in found] == ["7", "8"]
    by_source = run("list", tmp_path / "p", "--where", '{"source": "docs/rows.csv"}').stderr
    assert by_source.endswith(" Rows of tables have 'table.file' instead.\n")
    run("delete", tmp_path / "p", "docs/rows.csv")
    assert listed(run, tmp_path / "p").keys() == {"docs/page.md", "9"}


def test_passages_are_printed_by_id_and_by_document(run, docs: Path):
    found = json.loads(run("get", docs, "docs/rivers.md", "7", "docs/rivers.md#0", "--json").stdout)["records"]
    assert [record["id"] for record in found] == ["docs/rivers.md#0", "7"]
    rows = found[1]["metadata"]["table"]["file"]
    assert Path(rows).name == "rows.jsonl"
    metadata = {"year": 2019, "table": {"file": rows, "row": 1}}
    assert found[1] == {"id": "7", "text": "a boat", "title": "", "metadata": metadata}
    lines = ["[7]", "        year: 2019", f"        table: {metadata['table']}", "        a boat", ""]
    assert run("get", docs, "7").stdout == "\n".join(lines)
    assert "name 'docs/none.md', found none. cde-rag list" in run("get", docs, "docs/none.md", code=1).stderr


def test_a_document_is_deleted_with_its_passages(run, docs: Path):
    before = listed(run, docs)
    left = sum(before.values()) - before["docs/banks.md"]
    planned = run("delete", docs, "docs/banks.md", "--dry-run").stdout
    assert planned.endswith(f"{before['docs/banks.md']} of {sum(before.values())} passages would be deleted.\n")
    assert "Nothing was deleted" in run("delete", docs, "docs/banks.md", code=1).stderr  # more than half
    assert "found none" in run("delete", docs, "7", "docs/none.md", "--yes", code=1).stderr
    assert listed(run, docs) == before
    done = json.loads(run("delete", docs, "docs/banks.md", "--yes", "--json").stdout)
    assert done == {"documents": left, "deleted": before["docs/banks.md"]}
    assert "docs/banks.md" not in listed(run, docs)
    assert run("verify", docs).stdout.endswith("is intact.\n")


def test_passages_are_deleted_by_id_or_filter(run, docs: Path):
    before = listed(run, docs)
    run("delete", docs, "docs/banks.md#0")
    assert listed(run, docs)["docs/banks.md"] == before["docs/banks.md"] - 1
    assert "(1 deleted)" in run("delete", docs, "--where", '{"year": 2019}').stdout
    assert "(0 deleted)" in run("delete", docs, "--where", '{"year": 2019}').stdout
    for arguments in ([], ["7", "--where", '{"year": 2019}']):
        assert "give names or --where" in run("delete", docs, *arguments, code=2).stderr
    assert "{}" in run("delete", docs, "--where", '{"and": []}', code=1).stderr


def test_parents_are_documents(run, records: Path, tmp_path: Path):
    run("index", records, tmp_path / "p", "--parent-key", "book")
    assert listed(run, tmp_path / "p") == {f"b{number}": 5 for number in range(4)}
    run("delete", tmp_path / "p", "b2")
    assert listed(run, tmp_path / "p") == {"b0": 5, "b1": 5, "b3": 5}


def test_a_parent_may_be_a_number(run, tmp_path: Path):
    rows = [{"id": f"{n}", "text": f"a river {n}", "book": 7 if n < 2 else "7b"} for n in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("index", tmp_path / "a.jsonl", tmp_path / "p", "--parent-key", "book")
    assert listed(run, tmp_path / "p") == {"7": 2, "7b": 3}
    assert len(json.loads(run("get", tmp_path / "p", "7", "--json").stdout)["records"]) == 2


def test_inspect_shows_documents_size_and_last_change(run, docs: Path, tmp_path: Path):
    found = json.loads(run("inspect", docs, "--json").stdout)
    assert found["sources"] == 3
    assert found["disk_bytes"] == sum(path.stat().st_size for path in docs.rglob("*") if not path.name.endswith("-shm"))
    changed = datetime.fromisoformat(found["changed"])
    assert abs(datetime.now(timezone.utc) - changed) < timedelta(hours=1)
    shown = run("inspect", docs).stdout
    assert f"{'documents':<24}3\n" in shown
    assert "size on disk" in shown
    assert "last change" in shown
