"""Files that are replaced while a process has the store open: reads follow or raise, writes raise and harm nothing."""

import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cde_rag.errors import StoreError
from cde_rag.records import Record, Row
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.faiss import FaissStore
from cde_rag.transfer.backup import back_up, restore

HERE = Path(__file__).parent
SPACE, OTHER_SPACE = "a" * 64, "b" * 64
DIM = 8


def rows(prefix: str, count: int) -> list[Row]:
    return [Row(Record(f"{prefix}{number}", f"text {number}"), "0" * 64) for number in range(count)]


def vectors(count: int) -> np.ndarray:
    return np.eye(DIM, dtype=np.float32)[np.arange(count) % DIM]


def made(folder: Path, prefix: str, count: int, *, space: str = SPACE, index: str = "flat") -> FaissStore:
    store = FaissStore(folder, index=index)
    store.create(dim=DIM, fingerprint=space, context=prefix.encode(), settings={"of": prefix})
    store.add(rows(prefix, count), vectors(count), fingerprint=space)
    return store


def state(folder: Path) -> dict[str, bytes]:
    """All files, but SQLite's log and shared memory."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


def restored_over(live: Path, other: Path) -> None:
    """As an operator does it: `rm -rf live; cde-rag restore backup live`."""
    back_up(FaissStore(other), live.with_name("backup"))
    shutil.rmtree(live)
    restore(live.with_name("backup"), FaissStore(live))


def moved_over(live: Path, other: Path) -> None:
    live.rename(live.with_name("gone"))
    other.rename(live)


def copied_anew(live: Path, other: Path) -> None:
    shutil.rmtree(live)
    shutil.copytree(other, live)


WAYS = [restored_over, moved_over, copied_anew]
WRITES: dict[str, Callable[[FaissStore], object]] = {
    "add": lambda store: store.add(rows("new", 3), vectors(3), fingerprint=SPACE),
    "replace": lambda store: store.add(rows("old", 1), vectors(1), fingerprint=SPACE),
    "delete": lambda store: store.delete(["new0", "old0"]),
    "update_metadata": lambda store: store.update_metadata({"old0": {"year": 1}}),
    "create_generation": lambda store: store.create_generation(fingerprint=OTHER_SPACE, context=b"c"),
    "compact": lambda store: store.compact(),
    "reindex": lambda store: store.reindex(index="hnsw"),
    "index_texts": lambda store: store.index_texts(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", WAYS)
def test_a_write_raises_and_leaves_both_stores_as_they_are(tmp_path: Path, way, write: str) -> None:
    live, other = tmp_path / "live", tmp_path / "other"
    service = made(live, "old", 20)
    made(other, "new", 60).close()
    way(live, other)
    before = state(live)
    with pytest.raises(StoreError, match="another was put in its place"):
        WRITES[write](service)
    assert {name: state(live)[name] for name in before} == before
    fresh = FaissStore(live)
    assert fresh.verify() == []
    assert [row.record.id for row in fresh.scroll()] == [f"new{number}" for number in range(60)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", ["flat", "hnsw"])
def test_reads_follow(tmp_path: Path, way, index: str) -> None:
    live, other = tmp_path / "live", tmp_path / "other"
    service = made(live, "old", 20, index=index)
    service.search(vectors(1), 3, fingerprint=SPACE)  # has mapped its files
    made(other, "new", 60, index=index).close()
    way(live, other)
    assert service.count() == 60
    assert service.context() == b"new"
    assert service.manifest().settings == {"of": "new"}
    hits = service.search(vectors(1), 3, fingerprint=SPACE)[0]
    assert [(hit.id[:3], hit.score) for hit in hits] == [("new", 1.0)] * 3
    assert [row.record.id for row in service.get(["old0", "new1"])] == ["new1"]
    assert service.verify() == []
    with pytest.raises(StoreError, match="Open it again"):  # it followed as a reader only
        WRITES["add"](service)
    service.close()
    WRITES["add"](service)  # opened again
    assert (service.count(), service.verify()) == (60, [])


def test_a_write_that_is_under_way_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other store comes between the start of the transaction and the end of the vector file's append."""
    live, other = tmp_path / "live", tmp_path / "other"
    service = made(live, "old", 20)
    back_up(service, tmp_path / "later")  # the same store in another state: its files have the same names
    made(other, "new", 60).close()
    check_place = service._engine.database.check_place
    for count in range(1, 5):
        calls = itertools.count(1)

        def check(calls: Iterator[int] = calls, count: int = count) -> None:
            if next(calls) == count:
                moved_over(live, other)
            check_place()

        monkeypatch.setattr(service._engine.database, "check_place", check)
        with pytest.raises(StoreError, match="another was put in its place"):
            WRITES["add"](service)
        monkeypatch.undo()
        assert FaissStore(live).verify() == []
        assert FaissStore(live).count() == 60
        live.rename(other)
        (tmp_path / "gone").rename(live)


def test_an_older_state_of_the_same_store_is_another(tmp_path: Path) -> None:
    live = tmp_path / "live"
    service = made(live, "old", 20)
    back_up(service, tmp_path / "backup")
    service.add(rows("later", 500), vectors(500), fingerprint=SPACE)
    shutil.rmtree(live)
    restore(tmp_path / "backup", FaissStore(live))
    assert service.count() == 20
    with pytest.raises(StoreError, match="another was put in its place"):
        service.add(rows("x", 5), vectors(5), fingerprint=SPACE)
    assert FaissStore(live).verify() == []


def test_a_folder_that_went_is_no_store(tmp_path: Path) -> None:
    service = made(tmp_path / "live", "old", 20)
    shutil.rmtree(tmp_path / "live")
    for call in (service.count, service.manifest, *(lambda write=write: write(service) for write in WRITES.values())):
        with pytest.raises(StoreError, match=r"found none|another was put"):
            call()
    assert not service.exists()
    assert not (tmp_path / "live").exists()


COPIED_OVER = """
import shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_faiss_swapped import *
service = made(Path(sys.argv[1]), "old", 20)
service.add(rows("more", 20), vectors(20), fingerprint=SPACE)  # stands in SQLite's log
shutil.copytree(sys.argv[2], sys.argv[1], dirs_exist_ok=True)  # cp -r other/. live/
if sys.argv[4] == "used":
    for call in (service.count, service.verify, FaissStore(sys.argv[1]).count, *WRITES.values()):
        with pytest.raises(StoreError, match="copied over"):
            call(service) if call in WRITES.values() else call()
    service.close()
    with pytest.raises(StoreError, match="copied over"):
        service.count()
"""


@pytest.mark.parametrize("use", ["used", "unused"])
def test_files_copied_over_an_open_store_stay_as_they_are(tmp_path: Path, use: str) -> None:
    """SQLite would write its old pages into them at the next checkpoint, or when the process ends."""
    live, other = tmp_path / "live", tmp_path / "other"
    made(other, "new", 60).close()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    subprocess.run([sys.executable, "-c", COPIED_OVER, live, other, HERE, use], env=environment, check=True)
    for log in live.glob("*-wal"), live.glob("*-shm"):  # of the process that ended; the message says: an empty folder
        for path in log:
            path.unlink()
    assert state(other).items() <= state(live).items()
    assert FaissStore(live).count() == 60
    assert FaissStore(live).verify() == []


def test_a_new_file_next_to_the_old_log_is_refused(tmp_path: Path) -> None:
    """As `rsync` leaves it: the file is replaced, the log of the store that was there stays."""
    service = made(tmp_path / "live", "old", 20)
    made(tmp_path / "other", "new", 60).close()
    for path in (tmp_path / "other").iterdir():
        shutil.copy(path, tmp_path / "live" / ".part")
        (tmp_path / "live" / ".part").rename(tmp_path / "live" / path.name)
    with pytest.raises(StoreError, match="-wal: expected no log"):
        service.count()


def test_files_of_two_stores_are_told(tmp_path: Path) -> None:
    made(tmp_path / "live", "old", 20).close()
    made(tmp_path / "other", "new", 60).close()
    shutil.copy(tmp_path / "other/store-id", tmp_path / "live/store-id")
    mixed = FaissStore(tmp_path / "live")
    assert [damage.where for damage in mixed.verify()] == ["store-id"]
    with pytest.raises(StoreError, match="files of one store, found those of two"):
        WRITES["add"](mixed)


def test_a_backup_of_a_store_that_is_replaced_meanwhile_is_of_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cde_rag.stores.faiss import copying

    live, other = tmp_path / "live", tmp_path / "other"
    service = made(live, "old", 20)
    made(other, "new", 60).close()
    copy_start, calls = copying._copy_start, []

    def overtaken(source: Path, target: Path, size: int | None) -> None:
        calls.append(source.name)
        if len(calls) == 2:
            moved_over(live, other)
        copy_start(source, target, size)

    monkeypatch.setattr(copying, "_copy_start", overtaken)
    back_up(service, tmp_path / "backup")
    restore(tmp_path / "backup", FaissStore(tmp_path / "copy"))
    assert FaissStore(tmp_path / "copy").count() == 60


def test_a_store_of_an_older_version_is_marked_by_its_first_write(tmp_path: Path) -> None:
    """One without the marker file and with fixed file names opens, is written, and is protected from then on."""
    made(tmp_path / "live", "old", 20).close()
    (tmp_path / "live/store-id").unlink()
    connection = sqlite3.connect(tmp_path / "live/collection.sqlite")
    ((data,),) = connection.execute("SELECT json FROM manifest")
    manifest = json.loads(data)
    del manifest["marker"]
    (serving,) = manifest["generations"]
    (tmp_path / "live" / serving["vectors"]).rename(tmp_path / "live/vectors-1")
    (tmp_path / "live" / serving.pop("context_name")).rename(tmp_path / "live/context-1")
    serving["vectors"] = "vectors-1"
    connection.execute(
        "UPDATE manifest SET json = ?, checksum = ?", (json.dumps(manifest), checksum_of(json.dumps(manifest)))
    )
    connection.commit()
    connection.close()
    store = FaissStore(tmp_path / "live")
    assert (store.count(), store.context(), store.verify()) == (20, b"old", [])
    assert not (tmp_path / "live/store-id").exists()
    WRITES["add"](store)
    assert (store.count(), store.verify()) == (23, [])
    assert (tmp_path / "live/store-id").exists()


NO_ROOM = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from test_faiss_swapped import *
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file grows, as on a full disk
store = FaissStore(sys.argv[1])
print(store.count(), len(store.search(vectors(1), 5, fingerprint=SPACE)[0]), len(list(store.scroll())), store.verify())
with pytest.raises(StoreError, match="disk"):
    WRITES["add"](store)
print(store.count())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
@pytest.mark.parametrize("index", ["flat", "hnsw"])
def test_a_closed_store_is_read_without_room_to_write(tmp_path: Path, index: str) -> None:
    made(tmp_path / "live", "old", 20, index=index).close()
    before = state(tmp_path / "live")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", NO_ROOM, tmp_path / "live", HERE]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert told == "20 5 20 []\n20\n"
    assert state(tmp_path / "live") == before
    assert FaissStore(tmp_path / "live").count() == 20
