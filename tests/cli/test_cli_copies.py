"""export, import, backup and restore: a collection in another store or place, without its model."""

import json
from pathlib import Path

import pytest

from cde_rag.errors import StoreError
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.kinds import check_there


@pytest.fixture
def collection(run, records: Path, tmp_path: Path) -> Path:
    run("index", records, tmp_path / "papers.faiss", "--parent-key", "book")
    return tmp_path / "papers.faiss"


def test_a_collection_moves_to_another_store(run, records: Path, collection: Path, tmp_path: Path):
    file, copy = tmp_path / "new" / "papers.parquet", tmp_path / "papers.qdrant"
    assert run("export", collection, file).stdout == f"{file}: 20 passages\n"
    assert json.loads(run("import", file, copy, "--json").stdout)["documents"] == 20
    assert (copy / "cde.json").exists()
    found, expected = (json.loads(run("search", one, "river", "--json").stdout)["hits"] for one in (copy, collection))
    assert [hit["id"] for hit in found] == [hit["id"] for hit in expected]
    assert json.loads(run("index", records, copy, "--json").stdout)["unchanged"] == 20


def test_what_is_there_is_not_written_over(run, collection: Path, tmp_path: Path):
    file = tmp_path / "papers.parquet"
    run("export", collection, file)
    assert "expected no file, found one" in run("export", collection, file, code=1).stderr
    for name in ("birds.jsonl", "birds.csv.gz", "birds.JSON", "birds.txt"):
        refused = run("export", collection, file.with_name(name), code=1).stderr
        assert "an export is a Parquet file" in refused
        assert not file.with_name(name).exists()
    assert "Name it birds.parquet" in refused
    said = run("import", file, collection, code=1).stderr
    assert f"found one in {collection}. Import into a new one" in said  # the path as written, and no Python
    file.write_bytes(file.read_bytes()[:-1])
    assert "expected an intact export" in run("import", file, tmp_path / "copy", code=1).stderr
    assert not (tmp_path / "copy").exists()


def test_a_backup_is_restored(run, collection: Path, tmp_path: Path):
    backup, copy = tmp_path / "new" / "backup", tmp_path / "copy.faiss"
    assert run("backup", collection, backup).stdout == f"{backup}: 20 passages\n"
    made = json.loads(run("restore", backup, copy, "--json").stdout)
    assert made["fingerprint"] == json.loads(run("inspect", copy, "--json").stdout)["fingerprint"]
    assert run("search", copy, "river", "--json").stdout == run("search", collection, "river", "--json").stdout
    assert f"found one in {collection}. Restore into a new one" in run("restore", backup, collection, code=1).stderr


def test_what_another_command_reads_is_named(run, collection: Path, tmp_path: Path):
    backup, file, new = tmp_path / "backup", tmp_path / "papers.parquet", tmp_path / "new.faiss"
    run("backup", collection, backup)
    run("export", collection, file)
    assert "cde-rag restore reads backups" in run("import", backup, new, code=1).stderr
    assert "cde-rag import reads files of cde-rag export" in run("restore", file, new, code=1).stderr
    assert "Name the folder that cde-rag backup made" in run("restore", collection, new, code=1).stderr
    assert not new.exists()


def test_an_error_names_no_password(tmp_path: Path):
    missing = FaissStore(tmp_path / "missing")
    with pytest.raises(StoreError, match="expected a collection, found none") as raised:
        check_there("postgresql://me:S3cret@host/app/papers?sslpassword=S3cret", missing)
    assert "postgresql://me@host/app/papers" in str(raised.value)
    assert "S3cret" not in str(raised.value)
