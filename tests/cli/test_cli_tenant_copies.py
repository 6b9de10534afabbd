"""Copies of one tenant's collection, and of all; none gets another's."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cde_rag.errors import StoreError, TenantError
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.tenant_names import place_key
from cde_rag.stores.tenant_stores import FolderTenants
from cde_rag.transfer.backup import back_up, restore
from cde_rag.transfer.parquet import export_collection, import_collection


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is such a place, since waiting for a disk hundreds of times tests nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(params=["papers.faiss", "papers.qdrant"])
def place(request: pytest.FixtureRequest, run, records: Path, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    run("index", records, path, "--tenant", "acme", "--parent-key", "book")
    (tmp_path / "other.jsonl").write_text(json.dumps({"id": "r1", "text": "credit of globex", "book": "b"}))
    run("index", tmp_path / "other.jsonl", path, "--tenant", "globex")
    return path


def hits(run, place: Path, tenant: str) -> Any:
    return json.loads(run("search", place, "river credit", "--tenant", tenant, "--json").stdout)


def test_one_goes_to_another_place_and_only_under_its_name(run, place: Path, tmp_path: Path, records: Path) -> None:
    expected = hits(run, place, "acme")
    found = json.loads(run("export", place, tmp_path / "acme.parquet", "--tenant", "acme", "--json").stdout)
    assert found["documents"] == 20
    run("backup", place, tmp_path / "acme.backup", "--tenant", "acme")
    other = tmp_path / f"other{place.suffix}"
    run("index", records, other, "--tenant", "initech")
    for command, source in (("import", tmp_path / "acme.parquet"), ("restore", tmp_path / "acme.backup")):
        for wrong in ("globex", "ACME", "initech"):
            assert "that of 'acme'" in run(command, source, other, "--tenant", wrong, code=1).stderr
        assert (
            "expected a collection, found none"
            in run(command, source, tmp_path / f"nowhere{place.suffix}", "--tenant", "acme", code=1).stderr
        )
        run(command, source, other, "--tenant", "acme")
        assert hits(run, other, "acme") == expected
        assert run(command, source, other, "--tenant", "acme", code=1).stderr
        shutil.rmtree(other / "tenants" / place_key("acme"))
    assert len(hits(run, other, "initech")["hits"]) == 10


def test_a_collection_without_tenants_becomes_nobodys(run, records: Path, tmp_path: Path) -> None:
    run("index", records, tmp_path / "plain.faiss")
    run("index", records, tmp_path / "papers.faiss", "--tenant", "acme")
    run("export", tmp_path / "plain.faiss", tmp_path / "plain.parquet")
    run("backup", tmp_path / "plain.faiss", tmp_path / "plain.backup")
    for command, source in (("import", "plain.parquet"), ("restore", "plain.backup")):
        found = run(command, tmp_path / source, tmp_path / "papers.faiss", "--tenant", "globex", code=1)
        assert "found one without tenants" in found.stderr
        found = run(command, tmp_path / source, tmp_path / "plain.faiss", "--tenant", "globex", code=1)
        assert "Leave --tenant out" in found.stderr


def test_a_backup_of_all_holds_all(run, place: Path, tmp_path: Path) -> None:
    made = json.loads(run("backup", place, tmp_path / "all", "--json").stdout)
    assert made["documents"] == 21
    assert {path.name for path in (tmp_path / "all/tenants").iterdir()} == {place_key("acme"), place_key("globex")}
    expected = {tenant: hits(run, place, tenant) for tenant in ("acme", "globex")}
    shutil.rmtree(place)
    run("restore", tmp_path / "all", place)
    assert {tenant: hits(run, place, tenant) for tenant in expected} == expected
    for tenant in expected:
        assert run("verify", place, "--tenant", tenant).stdout.endswith("is intact.\n")
    run("index", tmp_path / "other.jsonl", place, "--tenant", "initech")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "other.jsonl", place.name, "records.jsonl"]


def test_a_changed_tenant_in_a_backup_is_found(run, place: Path, tmp_path: Path) -> None:
    run("backup", place, tmp_path / "all")
    shutil.rmtree(tmp_path / "all/tenants" / place_key("globex"))
    found = run("restore", tmp_path / "all", tmp_path / f"copy{place.suffix}", code=1)
    assert "is missing in the backup" in found.stderr
    assert not (tmp_path / f"copy{place.suffix}").exists()


def test_a_tenants_collection_in_anothers_place_is_refused(run, place: Path) -> None:
    (place / "tenants" / place_key("acme")).rename(place / "tenants" / place_key("thief"))
    assert "that of 'acme'" in run("search", place, "river", "--tenant", "thief", code=1).stderr


@pytest.mark.parametrize("kind", [FaissStore, QdrantEdgeStore])
def test_the_library_does_the_same(run, records: Path, tmp_path: Path, kind: type[FaissStore]) -> None:
    suffix = ".faiss" if kind is FaissStore else ".qdrant"
    run("index", records, tmp_path / f"papers{suffix}", "--tenant", "acme")
    stores = FolderTenants(tmp_path / f"papers{suffix}", kind)
    common, acme = stores.common(), stores.of(place_key("acme"))
    backup = back_up(common, tmp_path / "all")
    assert backup.settings["tenant_key"] == "tenant"
    assert restore(tmp_path / "all", kind(tmp_path / "copy")) == backup
    copied = FolderTenants(tmp_path / "copy", kind).of(place_key("acme"))
    assert list(copied.scroll()) == list(acme.scroll())
    export_collection(acme, tmp_path / "acme.parquet")
    for name in ("globex", " "):
        with pytest.raises(TenantError):
            import_collection(tmp_path / "acme.parquet", stores.of(place_key("globex")), tenant=name)
    assert stores.listed() == [place_key("acme")]
    with pytest.raises(StoreError):
        restore(tmp_path / "all", common)
