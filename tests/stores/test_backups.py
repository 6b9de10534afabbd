"""A backup is one state of a collection that others write to, or it is not there; restored, it is that state."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient
from script import BATCH, answers, batch, fingerprint, matrix, steps, store_in

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.models import CDEModel
from cde_rag.stores.faiss import FaissStore, copying
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.transfer.backup import back_up, restore

SCRIPT = Path(__file__).with_name("script.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def lived(folder: Path, count: int) -> Store:
    store = store_in(folder)
    for step in steps()[:count]:
        step(store)
    return store


@pytest.mark.parametrize("count", [1, 8, 13, 19, len(steps())])
def test_all_of_a_state_comes_back(tmp_path: Path, count: int):
    store = lived(tmp_path / "papers", count)
    with (tmp_path / "papers" / store._engine._read(lambda session: session.manifest.serving.vectors)).open(
        "ab"
    ) as file:
        file.write(b"what an interrupted append left")
    expected = answers(store)
    made = back_up(store, tmp_path / "backup")
    assert (made.documents, made.fingerprint) == (store.count(), store.manifest().fingerprint)
    store.delete([row.record.id for row in store.scroll()])
    copy = FaissStore(tmp_path / "copy")
    assert restore(tmp_path / "backup", copy) == made
    assert answers(copy) == expected
    assert copy.verify() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "copy", "papers"]


@pytest.mark.parametrize("kind", ["edge", "qdrant"])
def test_a_collection_of_another_store_comes_back(tmp_path: Path, tiny_model: CDEModel, kind: str):
    client = QdrantClient(":memory:")
    places = (
        [QdrantEdgeStore(tmp_path / name) for name in ("papers", "copy")]
        if kind == "edge"
        else [QdrantStore(client, name) for name in ("papers", "copy")]
    )
    with Collection.create(places[0], ContextualEmbedder(tiny_model, Context.null(tiny_model))) as papers:
        papers.add(["river bank", "money loan"], ids=["a", "b"])
        made = back_up(papers.store, tmp_path / "backup")
        expected = papers.search("river"), list(papers.scroll())
        assert restore(tmp_path / "backup", places[1]) == made
        with Collection.open(places[1], model=tiny_model) as copy:
            assert [hit.id for hit in copy.search("river")] == [hit.id for hit in expected[0]]
            assert list(copy.scroll()) == expected[1]


def test_a_copy_is_one_state_while_another_process_writes(tmp_path: Path):
    """Each call of the writer adds a batch, or takes all from one generation to the next: a copy has whole ones."""
    folder = tmp_path / "papers"
    lived(folder, 1).close()
    writer = subprocess.Popen(
        [sys.executable, SCRIPT, "write", folder, "1"], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    copies = 0
    try:
        while writer.poll() is None:
            back_up(FaissStore(folder), tmp_path / f"backup {copies}")
            copies += 1
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0
    assert copies
    for number in range(copies):
        copy = FaissStore(tmp_path / f"copy {number}")
        restore(tmp_path / f"backup {number}", copy)
        assert copy.verify() == []
        assert copy.count() % BATCH == 0
        if copy.count():
            space = copy.manifest().fingerprint
            (hits,) = copy.search(matrix(int(space), 1), copy.count(), fingerprint=space)
            assert len(hits) == copy.count()
            assert all(hit.score == 1 for hit in hits), "vectors of two generations"


def test_a_file_that_a_writer_replaced_begins_the_copy_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = lived(tmp_path / "papers", 10)
    copy_start, calls = copying._copy_start, []

    def overtaken(source: Path, target: Path, size: int | None) -> None:
        calls.append(source.name)
        if len(calls) == 2:  # after the tables, before the vectors
            FaissStore(tmp_path / "papers").compact()
        copy_start(source, target, size)

    monkeypatch.setattr(copying, "_copy_start", overtaken)
    back_up(store, tmp_path / "backup")
    assert [name[:9] for name in calls] == ["context-1", "vectors-1", "context-1", "vectors-1", "store-id"]
    assert calls[1] != calls[3]
    restore(tmp_path / "backup", FaissStore(tmp_path / "copy"))
    assert answers(FaissStore(tmp_path / "copy")) == answers(store)


def test_killed_it_leaves_nothing_that_looks_like_a_backup(tmp_path: Path):
    folder = tmp_path / "papers"
    store = store_in(folder)
    store.create(dim=512, fingerprint=fingerprint(1), context=b"1", settings={})
    for number in range(20):
        store.add(batch(number), matrix(1, BATCH, 512), fingerprint=fingerprint(1))
    store.close()
    code = (
        "import sys; from cde_rag.transfer.backup import back_up; from cde_rag.stores.faiss import FaissStore\n"
        "print(0, flush=True); back_up(FaissStore(sys.argv[1]), sys.argv[2])"
    )
    draw, killed = np.random.default_rng(0), 0
    for attempt in range(6):
        place = tmp_path / f"backup {attempt}"
        run = subprocess.Popen([sys.executable, "-c", code, folder, place], env=ENVIRONMENT, stdout=subprocess.PIPE)
        assert run.stdout is not None
        with run.stdout:
            run.stdout.readline()
        time.sleep(draw.uniform(0, 0.1))
        run.send_signal(signal.SIGKILL)
        run.wait()
        if place.exists():
            restore(place, FaissStore(tmp_path / f"copy {attempt}"))
        else:
            killed += 1
            for left in tmp_path.glob(f".backup {attempt}*"):  # all is in it, or it is refused
                copy = FaissStore(tmp_path / f"copy {attempt}")
                try:
                    restore(left, copy)
                except StoreFormatError:
                    assert not copy.exists()
                else:
                    assert copy.count() == 20 * BATCH
    assert killed
    assert back_up(FaissStore(folder), tmp_path / "backup").documents == 20 * BATCH


def test_every_changed_file_is_found(tmp_path: Path):
    back_up(lived(tmp_path / "papers", 13), tmp_path / "backup")
    store = FaissStore(tmp_path / "copy")
    for path in [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]:
        data = path.read_bytes()
        for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(StoreFormatError):
                restore(tmp_path / "backup", store)
            path.write_bytes(data)
    (tmp_path / "backup/collection/another").touch()
    with pytest.raises(StoreFormatError, match="was added since the backup was made"):
        restore(tmp_path / "backup", store)
    assert not store.exists()


def test_a_damaged_collection_makes_no_backup(tmp_path: Path):
    store = lived(tmp_path / "papers", 8)
    (path,) = (tmp_path / "papers").glob("vectors-1-*")
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(StoreFormatError, match="No backup was made"):
        back_up(store, tmp_path / "backup")
    path.unlink()
    with pytest.raises(StoreFormatError, match=f"{path.name}: expected this file, found none"):
        back_up(store, tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["papers"]


def test_nothing_is_written_over(tmp_path: Path):
    store = lived(tmp_path / "papers", 8)
    back_up(store, tmp_path / "backup")
    expected = answers(store)
    with pytest.raises(StoreError, match="Give another name"):
        back_up(store, tmp_path / "backup")
    with pytest.raises(StoreError, match="Restore into a new one"):
        restore(tmp_path / "backup", store)
    with pytest.raises(StoreError, match="a backup of a FaissStore"):
        restore(tmp_path / "backup", QdrantEdgeStore(tmp_path / "edge"))
    with pytest.raises(StoreError, match="Give another name"):
        restore(tmp_path / "backup", FaissStore(tmp_path))
    with pytest.raises(StoreFormatError, match=r"found no backup\.json"):
        restore(tmp_path / "papers", FaissStore(tmp_path / "copy"))
    assert answers(store) == expected


@pytest.mark.parametrize("what", ["folder", "file", "dangling", "inside"])
def test_a_backup_that_holds_a_link_is_refused(tmp_path: Path, what: str):
    """The checksums of the manifest are over files; what a link leads to would come along unchecked."""
    back_up(lived(tmp_path / "papers", 8), tmp_path / "backup")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    target = {"folder": "private", "file": "private/key", "dangling": "nothing", "inside": "backup/collection"}[what]
    (tmp_path / "backup/collection/extra").symlink_to(tmp_path / target)
    with pytest.raises(StoreError, match=f"extra: expected a file or folder, found a link to .*{target}"):
        restore(tmp_path / "backup", FaissStore(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_a_file_of_a_backup_that_is_a_link_is_refused(tmp_path: Path):
    """Also where its target has the bytes that the manifest names."""
    back_up(lived(tmp_path / "papers", 8), tmp_path / "backup")
    database = tmp_path / "backup/collection/collection.sqlite"
    database.rename(tmp_path / "elsewhere")
    database.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="found a link to"):
        restore(tmp_path / "backup", FaissStore(tmp_path / "copy"))


def test_a_path_with_a_nul_is_refused(tmp_path: Path):
    store = lived(tmp_path / "papers", 8)
    with pytest.raises(StoreError, match="found a NUL character"):
        back_up(store, f"{tmp_path}/back\0up")
    with pytest.raises(StoreError, match="found a NUL character"):
        restore(f"{tmp_path}/back\0up", FaissStore(tmp_path / "copy"))
