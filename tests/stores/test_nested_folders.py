"""Only a collection writes into its folder: anything else would be lost with it, and be in none of its backups."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_store import SqliteStore

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder
from cde_rag.collection.tenants import Tenants
from cde_rag.errors import StoreError
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.stores.tenant_stores import FolderTenants
from cde_rag.transfer.backup import back_up, restore

TEXTS = ["a river", "a bank", "a boat"]
KINDS = (FaissStore, QdrantEdgeStore, SqliteStore)
Kind = Callable[[Path], Store]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", ["copy", "deep/copy"])
def test_a_copy_does_not_go_into_its_own_collection(tmp_path: Path, tiny_model: CDEModel, kind: Kind, inside: str):
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    folder = tmp_path / "papers"
    (tmp_path / "link").symlink_to(folder)
    with Collection.create(kind(folder), embedder) as collection:
        collection.add(TEXTS)
        (folder / "deep").mkdir()
        before = names(folder)
        for write in (collection.backup, collection.export):
            for place in (folder / inside, tmp_path / "link" / inside):
                with pytest.raises(StoreError, match=r"outside of collections, .* Give another path, such as"):
                    write(place)
        assert names(folder) == before
        collection.backup(tmp_path / "made" / "backup")
        collection.export(tmp_path / "made" / "papers.parquet")


@pytest.mark.parametrize("outer", [FaissStore, QdrantEdgeStore])
@pytest.mark.parametrize("inner", [FaissStore, QdrantEdgeStore])
def test_no_collection_is_made_in_another_ones_folder(tmp_path: Path, tiny_model: CDEModel, outer: Kind, inner: Kind):
    embedder, folder = ContextualEmbedder(tiny_model, Context.null(tiny_model)), tmp_path / "papers"
    with Collection.create(outer(folder), embedder), Collection.create(inner(tmp_path / "other"), embedder) as other:
        other.add(TEXTS)
        other.backup(tmp_path / "backup")
        other.export(tmp_path / "other.parquet")
        before = names(folder)
        for place in ("papers/new", "papers/deep/new", "papers/deep/tenants/new"):
            with pytest.raises(StoreError, match="outside of collections"):
                Collection.create(inner(tmp_path / place), embedder)
            with pytest.raises(StoreError, match="outside of collections"):
                restore(tmp_path / "backup", inner(tmp_path / place))
            with pytest.raises(StoreError, match="outside of collections"):
                Collection.import_(tmp_path / "other.parquet", inner(tmp_path / place))
            with pytest.raises(StoreError, match="outside of collections"):
                other.backup(tmp_path / place)
            with pytest.raises(StoreError, match="outside of collections"):
                other.export(tmp_path / place)
        assert names(folder) == before


@pytest.mark.parametrize("kind", [FaissStore, QdrantEdgeStore])
def test_tenants_stay_in_the_folder_of_what_they_have_in_common(tmp_path: Path, tiny_model: CDEModel, kind: Kind):
    stores = FolderTenants(tmp_path / "papers", kind)
    tenants = Tenants.create(stores, ContextualEmbedder(tiny_model, Context.null(tiny_model)))
    tenants.add("acme").close()
    (key,) = stores.listed()
    with pytest.raises(StoreError, match="outside of collections"):
        back_up(stores, tmp_path / "papers" / "tenants" / "backup")
    made = back_up(stores, tmp_path / "backup")
    assert restore(tmp_path / "backup", FolderTenants(tmp_path / "copy", kind)) == made
    assert FolderTenants(tmp_path / "copy", kind).listed() == [key]
    nested = FolderTenants(tmp_path / "papers" / "nested", kind)
    with pytest.raises(StoreError, match="outside of collections"):
        restore(tmp_path / "backup", nested)
