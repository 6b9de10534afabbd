"""Stores of further kinds that commit e528adb wrote open, are intact and give the same hits.

Made at that commit with the tiny model: texts "a" to "d" of `test_kept.TEXTS`, with "book" as the parent key; "e" was
deleted. The local folder of a Qdrant client, FAISS with index hnsw and quantization int8, a backup, and two tenants.
"""

import zipfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from intact import damages
from qdrant_client import QdrantClient
from tiny import tiny_cde_model

from cde_rag import Collection, Hit
from cde_rag.collection.tenants import Tenants
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.tenant_stores import FolderTenants
from cde_rag.transfer.backup import restore

FINGERPRINT = "159beff98f3ba6cc784db57601718249b810f6ccabef33318d82fd2ff8b29317"
HITS = [("a", 0.679438), ("c", 0.645825), ("d", 0.613475)]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name("kept-more-e528adb.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def is_as_it_was(papers: Collection) -> None:
    assert damages(papers) == []
    assert papers.embedder.fingerprint == FINGERPRINT
    assert [record.id for record in papers.scroll()] == list("abcd")
    assert scores(papers.search("river", 3, by="vectors")) == HITS
    assert {hit.id for hit in papers.search("loan", by="words")} == {"b", "d"}
    assert [hit.id for hit in papers.search("river", where={"year": {"lt": 2000}})] == ["c"]


def scores(hits: Sequence[Hit]) -> list[tuple[str, object]]:
    return [(hit.id, pytest.approx(hit.score, abs=1e-5)) for hit in hits]


def test_the_folder_of_a_qdrant_client(kept: Path):
    with closing(QdrantClient(path=str(kept / "qdrant"))) as client:
        papers = Collection.open(QdrantStore(client, "papers"), model=tiny_cde_model())
        is_as_it_was(papers)
        papers.store.index_texts()
        is_as_it_was(papers)
        assert papers.add(["a new text"], ids=["new"]).added == 1


def test_an_index_with_codes(kept: Path):
    store = FaissStore(kept / "int8.faiss", index="hnsw", quantization="int8")
    with Collection.open(store, model=tiny_cde_model()) as papers:
        is_as_it_was(papers)
        assert papers.add(["a new text"], ids=["new"]).added == 1
        assert damages(papers) == []


def test_a_backup(kept: Path):
    restored = restore(kept / "papers.backup", FaissStore(kept / "restored.faiss"))
    assert (restored.documents, restored.fingerprint) == (4, FINGERPRINT)
    with Collection.open(FaissStore(kept / "restored.faiss"), model=tiny_cde_model()) as papers:
        is_as_it_was(papers)


def test_tenants(kept: Path):
    with Tenants.open(FolderTenants(kept / "tenants", FaissStore), model=tiny_cde_model()) as tenants:
        assert tenants.names() == ["acme", "globex"]
        found = {name: tenants.get(name) for name in tenants.names()}
        assert [papers.verify() for papers in found.values()] == [[], []]
        assert scores(found["acme"].search("river", 3, by="vectors")) == [("a", 0.676508), ("b", 0.574902)]
        assert scores(found["globex"].search("river", 3, by="vectors")) == HITS[1:]
        assert found["acme"].embedder.fingerprint == FINGERPRINT
