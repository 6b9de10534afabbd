"""A folder that is replaced while Qdrant Edge has it open: every call raises, and what is there now stays as it is."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_cde_model

from cde_rag.context.context import Context
from cde_rag.errors import StoreError
from cde_rag.records import Record, Row
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.transfer.backup import back_up, restore

DIM = 8
CONTEXT = Context.null(tiny_cde_model())
SPACE, OTHER_SPACE = CONTEXT.fingerprint, "b" * 64


def rows(prefix: str, count: int) -> list[Row]:
    return [Row(Record(f"{prefix}{number}", f"text {number}"), "0" * 64) for number in range(count)]


def vectors(count: int) -> np.ndarray:
    return np.eye(DIM, dtype=np.float32)[np.arange(count) % DIM]


def made(folder: Path, prefix: str, count: int) -> QdrantEdgeStore:
    store = QdrantEdgeStore(folder)
    store.create(dim=DIM, fingerprint=SPACE, context=CONTEXT.to_bytes(), settings={"of": prefix})
    store.add(rows(prefix, count), vectors(count), fingerprint=SPACE)
    return store


def state(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith("cde.lock")}


def restored_over(live: Path, backup: Path) -> None:
    shutil.rmtree(live)
    shutil.copytree(backup, live)


def moved_over(live: Path, backup: Path) -> None:
    live.rename(live.with_name("gone"))
    shutil.copytree(backup, live)


def copied_over(live: Path, backup: Path) -> None:
    shutil.copytree(backup, live, dirs_exist_ok=True)


def copied_over_with_times(live: Path, backup: Path) -> None:
    """As `rsync -a` does it: a file of the same size and time is not copied, another one is put in its place."""
    for path in backup.rglob("*"):
        there, found = live / path.relative_to(backup), path.stat()
        if path.is_file() and not (
            there.exists() and (there.stat().st_size, there.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns)
        ):
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, there.with_name("copied"))
            there.with_name("copied").replace(there)


def removed(live: Path, _: Path) -> None:
    shutil.rmtree(live)


Way = Callable[[Path, Path], None]
CALLS: dict[str, Callable[[QdrantEdgeStore], object]] = {
    "add": lambda store: store.add(rows("new", 3), vectors(3), fingerprint=SPACE),
    "delete": lambda store: store.delete(["new0", "old0"]),
    "update_metadata": lambda store: store.update_metadata({"old0": {"year": 1}}),
    "create_generation": lambda store: store.create_generation(fingerprint=OTHER_SPACE, context=b"c"),
    "index_texts": lambda store: store.index_texts(),
    "search": lambda store: store.search(vectors(1), 3, fingerprint=SPACE),
    "search_text": lambda store: store.search_text(["text"], 3),
    "get": lambda store: store.get(["old0", "new0"]),
    "count": lambda store: store.count(),
    "scroll": lambda store: list(store.scroll()),
    "context": lambda store: store.context(),
    "manifest": lambda store: store.manifest(),
    "verify": lambda store: store.verify(),
}


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """An earlier state of the same store, so that its files have the names that the open one's have."""
    store = made(tmp_path / "live", "old", 20)
    store.close()
    return Path(shutil.copytree(tmp_path / "live", tmp_path / "earlier"))


@pytest.mark.parametrize("way", [restored_over, moved_over, copied_over, copied_over_with_times, removed])
def test_every_call_raises_and_harms_nothing(tmp_path: Path, backup: Path, way: Way) -> None:
    live = tmp_path / "live"
    service = QdrantEdgeStore(live)
    service.add(rows("old", 30), vectors(30), fingerprint=SPACE)
    if way is not copied_over_with_times:  # the manifest is the backup's otherwise, but for its time
        service.create_generation(fingerprint=OTHER_SPACE, context=b"c")
    service.add(rows("late", 5), vectors(5), fingerprint=SPACE)
    way(live, backup)
    before = state(live) if live.exists() else {}
    for call in CALLS.values():
        with pytest.raises(StoreError, match="found others in their place"):
            call(service)
    service.close()
    assert (state(live) if live.exists() else {}) == before
    if way in (restored_over, moved_over):
        fresh = QdrantEdgeStore(live)
        assert [row.record.id for row in fresh.scroll()] == [f"old{number}" for number in range(20)]
        assert fresh.verify() == []
        service.add(rows("new", 3), vectors(3), fingerprint=SPACE)  # opened again
        assert service.count() == 23


def test_the_same_store_goes_on_where_nothing_was_replaced(tmp_path: Path) -> None:
    store = made(tmp_path / "live", "old", 20)
    again = QdrantEdgeStore(tmp_path / "live")
    number = again.create_generation(fingerprint=OTHER_SPACE, context=b"c")
    store.add(rows("new", 3), vectors(3), fingerprint=SPACE)
    again.add_to_generation(number, store.lacking(number), ["0" * 64] * 23, vectors(23))
    again.activate(number)
    assert store.manifest().fingerprint == OTHER_SPACE
    assert store.search(vectors(1), 3, fingerprint=OTHER_SPACE)[0]
    store.drop(1)
    assert (again.count(), again.verify()) == (23, [])


@pytest.mark.long
def test_a_backup_of_a_store_that_is_replaced_meanwhile_is_none(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "live"
    service = QdrantEdgeStore(live)
    scroll = service.scroll

    def replaced(**more: object) -> object:
        restored_over(live, backup)
        return scroll(**more)  # type: ignore[arg-type]

    monkeypatch.setattr(service, "scroll", replaced)
    with pytest.raises(StoreError, match="found others in their place"):
        back_up(service, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    service.close()
    back_up(QdrantEdgeStore(live), tmp_path / "backup")
    restore(tmp_path / "backup", QdrantEdgeStore(tmp_path / "other"))
    assert QdrantEdgeStore(tmp_path / "other").count() == 20
