"""Verbs of a collection and their opposites; dry runs; names of 0.2 that say the new ones."""

import hashlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from intact import damages
from tiny import WORDS

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, Record, Tenants
from cde_rag.collection.collection import plan_records
from cde_rag.errors import CorpusError, StoreError, TenantError
from cde_rag.indexing.recontextualization import PROBED, Estimate
from cde_rag.indexing.upsert import AddPlan
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.tenant_stores import FolderTenants
from cde_rag.transfer.backup import back_up

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
TEXTS = [f"{first} {second}" for first in WORDS[:6] for second in WORDS[:5]]


@pytest.fixture
def papers(tmp_path: Path, tiny_model: CDEModel) -> Iterator[Collection]:
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=tiny_model, context_size=8)
    with Collection.create(FaissStore(tmp_path / "papers"), embedder) as made:
        made.add(TEXTS, ids=[str(number) for number in range(len(TEXTS))])
        yield made


def files(folder: Path) -> dict[str, str]:
    """The digest of each file of a closed collection."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_backup_is_restored_and_opened(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    hits = papers.search("river bank")
    papers.backup(tmp_path / "backup")
    with Collection.restore(tmp_path / "backup", tmp_path / "again.faiss", model=tiny_model) as again:
        assert again.search("river bank") == hits
        assert damages(again) == []
    with pytest.raises(StoreError, match="without a collection"):
        Collection.restore(tmp_path / "backup", tmp_path / "again.faiss", model=tiny_model)


def test_a_backup_of_tenants_is_no_collection(tmp_path: Path, tiny_model: CDEModel):
    stores = FolderTenants(tmp_path / "customers", FaissStore)
    with Tenants.create(stores, ContextualEmbedder(tiny_model, Context.null(tiny_model))):
        back_up(FaissStore(tmp_path / "customers"), tmp_path / "backup")
    with pytest.raises(TenantError, match=r"Tenants\.open"):
        Collection.restore(tmp_path / "backup", tmp_path / "again.faiss", model=tiny_model)
    assert not (tmp_path / "again.faiss").exists()


def test_an_export_is_imported_and_opened(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    done: list[int] = []
    papers.export(tmp_path / "papers.parquet")
    with Collection.import_(
        tmp_path / "papers.parquet",
        tmp_path / "again.qdrant",
        model=tiny_model,
        on_progress=lambda progress: done.append(progress.done),
    ) as again:
        assert [hit.id for hit in again.search("river bank", by="vectors")] == [
            hit.id for hit in papers.search("river bank", by="vectors")
        ]
        assert damages(again) == []
    assert done == [len(TEXTS)]


def test_dry_runs_count_what_the_runs_do_and_write_nothing(papers: Collection, tmp_path: Path):
    texts, ids = [*TEXTS[:2], "a new river", "another bank"], ["0", "1", "2", "new"]
    records = [Record(id_, text) for id_, text in zip(ids, texts, strict=True)]
    papers.close()
    before = files(tmp_path / "papers")
    planned = [papers.add(texts, ids=ids, dry_run=True), papers.add_records(records, dry_run=True)]
    cost = papers.recontextualize(seed=1, context_size=8, dry_run=True)
    papers.close()
    assert files(tmp_path / "papers") == before
    assert planned == [AddPlan(added=1, replaced=1, unchanged=2, embedded=2)] * 2
    done = papers.add(texts, ids=ids)
    assert (done.added, done.replaced, done.unchanged) == (1, 1, 2)
    assert cost.documents == len(TEXTS)
    assert papers.recontextualize(seed=1, context_size=8).embedded == len(TEXTS) + 1


def test_a_dry_run_estimates_the_gain_as_drift_does(papers: Collection, tiny_model: CDEModel):
    expected = papers.drift(seed=1, context_size=8, probes=PROBED)
    cost = papers.recontextualize(seed=1, context_size=8, dry_run=True)
    assert (cost.gain, cost.interval) == (expected.gain, expected.interval)
    assert papers.recontextualize(context_size=8, dry_run=True) == Estimate(0, 0, 0.0, 0, 0.0, (0.0, 0.0))
    other: dict[str, Any]
    for other in ({"model": tiny_model, "context_size": 8}, {"embedder": papers.embedder}, {"windows": True}):
        assert papers.recontextualize(dry_run=True, **other).gain is None


def test_a_dry_run_refuses_what_the_run_would(papers: Collection):
    with pytest.raises(CorpusError, match="blank"):
        papers.add([" "], dry_run=True)


def test_old_names_work_and_say_the_new_ones(papers: Collection):
    record = Record("new", "a new river")
    with pytest.warns(DeprecationWarning, match=r"collection\.add_records\(records, dry_run=True\)$"):
        assert plan_records(papers, [record]) == papers.add_records([record], dry_run=True)
    with pytest.warns(DeprecationWarning, match=r"collection\.add_records\(records, dry_run=True\)$"):
        assert papers.plan([record]) == papers.add_records([record], dry_run=True)
    with pytest.warns(DeprecationWarning, match=r"audit\(sample=…\)$"):
        assert papers.verify(sample=4) == []


def test_tenants_old_names_work_and_say_the_new_ones(tmp_path: Path, tiny_model: CDEModel):
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    with Tenants.create(FolderTenants(tmp_path / "customers", FaissStore), embedder) as tenants:
        with pytest.warns(DeprecationWarning, match=r"tenants\.add\(name\)$"):
            tenants.create_tenant("acme").close()
        with pytest.warns(DeprecationWarning, match=r"tenants\.get\(name\)$"), tenants.tenant("acme") as acme:
            acme.add(["a river"])
        with pytest.warns(DeprecationWarning, match=r"tenants\.outgrown\(\)$"):
            assert tenants.grown(1) == tenants.outgrown(1) == ["acme"]
        with pytest.warns(DeprecationWarning, match=r"tenants\.drop\(name\)$"):
            tenants.drop_tenant("acme")
        assert tenants.names() == []
        with pytest.raises(AttributeError):
            tenants.search("a river")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("module", "name", "new"),
    [
        ("cde_rag.fingerprint", "stamp", "from cde_rag.stamps import stamp"),
        ("cde_rag.readers.pgvector_table", "LANGCHAIN", "from cde_rag.adoption.pgvector_table import LANGCHAIN"),
        ("cde_rag.collection.adopt_qdrant", "catch_up", "cde_rag.adoption.catch_up(collection), or "),
        ("cde_rag.collection.adopt_qdrant", "adopt", "cde_rag.adoption.adopt(QdrantCollection(client, collection, "),
        ("cde_rag.collection.adopt_pgvector", "adopt", "cde_rag.adoption.adopt(PostgresTable(store, table, columns))"),
    ],
)
def test_old_modules_have_their_names_and_say_the_new_ones(module: str, name: str, new: str):
    with pytest.warns(DeprecationWarning, match=re.escape(f"{module}.{name} is deprecated")) as warned:
        exec(f"from {module} import {name}")
    assert all(new in str(one.message) for one in warned)
    assert {one.filename for one in warned} == {"<string>"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = importlib.import_module(module).nothing
