"""Folders that somebody else prepared, and links to them: nothing outside is read or written for a store."""

import dataclasses
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from lives import opened, record, store_at, stub

from cde_rag.collection import Collection
from cde_rag.errors import StoreFormatError
from cde_rag.stores.checks import seal
from cde_rag.stores.faiss.manifest import Manifest as FaissManifest
from cde_rag.stores.points.manifest import Manifest
from cde_rag.stores.qdrant_edge import generations


def made(kind: str, folder: Path) -> None:
    with Collection.create(store_at(kind, folder), stub(0)) as collection:
        collection.add_records(map(record, range(20)))


@pytest.mark.parametrize(
    "elsewhere", [{"vectors": "../mine"}, {"vectors": "/etc/hostname"}, {"number": "../../mine"}, {"vectors": "mine"}]
)
def test_a_manifest_that_names_a_file_elsewhere_is_refused(scratch: Path, elsewhere: dict[str, Any]) -> None:
    """Its checksum is right: who can write a folder can write that, too."""
    made("flat", scratch / "papers")
    (scratch / "mine").write_bytes(b"mine")
    connection = sqlite3.connect(scratch / "papers" / "collection.sqlite")
    ((old,),) = connection.execute("SELECT json FROM manifest")
    manifest = FaissManifest.from_json(old.encode())
    manifest = dataclasses.replace(manifest, generations=(dataclasses.replace(manifest.serving, **elsewhere),))
    new = manifest.to_json()
    connection.execute("UPDATE manifest SET json = ?, checksum = ?", (new.decode(), seal(new)))
    connection.commit()
    connection.close()
    store = store_at("flat", scratch / "papers")
    for call in (store.scroll, store.context, lambda: store.delete(["d1"]), lambda: store.copy_to(scratch / "copy")):
        with pytest.raises(StoreFormatError, match="names of a store's files"):
            call()
    store.close()
    assert (scratch / "mine").read_bytes() == b"mine"


def test_edge_refuses_a_manifest_that_names_a_file_elsewhere(scratch: Path) -> None:
    folder = scratch / "papers"
    made("edge", folder)
    manifest = Manifest.from_metadata(json.loads((folder / generations.MANIFEST).read_bytes()), "")
    state = dataclasses.replace(manifest.serving, number="../../mine")  # type: ignore[arg-type]
    generations.save(folder, dataclasses.replace(manifest, generations=(state,), active="../../mine"))  # type: ignore[arg-type]
    with pytest.raises(StoreFormatError, match="generations with numbers"):
        store_at("edge", folder).context()


def test_a_link_to_a_store_is_that_store(kind: str, scratch: Path) -> None:
    """What one writes by the link the other sees, and one more writer waits or is refused like any other."""
    made(kind, scratch / "papers")
    os.symlink(scratch / "papers", scratch / "link")
    direct, linked = opened(store_at(kind, scratch / "papers")), opened(store_at(kind, scratch / "link"))
    for number, (writer, reader) in enumerate([(direct, linked), (linked, direct)], 100):
        writer.add_records([record(number)])
        assert reader.search(record(number).text, 1)[0].id == f"d{number}"
    with linked.store.lease(), pytest.raises(Exception, match="another at work"), direct.store.lease():
        pass
    assert linked.verify() == direct.verify() == []
    linked.close()
    direct.close()
