"""Folders that somebody else prepared, and links to them: nothing outside is read or written for a store."""

import json
import re
import sqlite3
from pathlib import Path

import pytest
from lives import opened, record, store_at, stub

from cde_rag.collection.collection import Collection
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.faiss import FaissStore


def made(kind: str, folder: Path) -> None:
    with Collection.create(store_at(kind, folder), stub(0)) as collection:
        collection.add_records(map(record, range(20)))


@pytest.mark.parametrize("elsewhere", ["../mine", "/etc/hostname", "mine"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(scratch: Path, elsewhere: str) -> None:
    """Its checksum is right: who can write a folder can write that, too."""
    made("flat", scratch / "papers")
    (scratch / "mine").write_bytes(b"mine")
    connection = sqlite3.connect(scratch / "papers" / "collection.sqlite")
    ((old,),) = connection.execute("SELECT json FROM manifest")
    new = re.sub('"vectors-1-[0-9a-f]+"', json.dumps(elsewhere), old)
    assert new != old
    connection.execute("UPDATE manifest SET json = ?, checksum = ?", (new, checksum_of(new)))
    connection.commit()
    connection.close()
    store = FaissStore(scratch / "papers")
    for call in (
        lambda: list(store.scroll()),
        store.context,
        lambda: store.delete(["d1"]),
        lambda: store.copy_to(scratch / "copy"),
    ):
        with pytest.raises(StoreFormatError, match="names of files of a store"):
            call()
    store.close()
    assert (scratch / "mine").read_bytes() == b"mine"


def test_edge_refuses_a_manifest_that_names_a_file_elsewhere(scratch: Path) -> None:
    made("edge", scratch / "papers")
    path = scratch / "papers" / "cde.json"
    content = json.loads(path.read_bytes())
    del content["checksum"]
    content["generations"][0]["number"] = content["active"] = "../../mine"
    path.write_text(json.dumps({**content, "checksum": checksum_of(json.dumps(content, sort_keys=True)).hex()}))
    with pytest.raises(StoreFormatError, match="numbers of generations"):
        store_at("edge", scratch / "papers").context()


def test_a_link_to_a_store_is_that_store(kind: str, scratch: Path) -> None:
    """What one writes by the link the other sees, and one more writer waits or is refused like any other."""
    made(kind, scratch / "papers")
    (scratch / "link").symlink_to(scratch / "papers")
    direct, linked = opened(store_at(kind, scratch / "papers")), opened(store_at(kind, scratch / "link"))
    for number, (writer, reader) in enumerate([(direct, linked), (linked, direct)], 100):
        writer.add_records([record(number)])
        assert reader.search(record(number).text, 1)[0].id == f"d{number}"
    with linked.store.lease(), pytest.raises(StoreError, match="another run holds the lease"), direct.store.lease():
        pass
    assert linked.verify() == direct.verify() == []
    linked.close()
    direct.close()
