"""FaissStore where nothing may be written: everything can be read, and writing is refused in one sentence."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cde_rag.errors import StoreError
from cde_rag.records import Record, Row
from cde_rag.stores.faiss import FaissStore

FINGERPRINT = "f" * 64
NOBODY = 65534  # a user without rights: to root, nothing is read-only
VECTORS = np.eye(3, dtype=np.float32)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A closed store of three records which everybody may read; pytest's own folders belong to one user."""
    parent = Path(tempfile.mkdtemp())
    parent.chmod(0o755)
    store = FaissStore(parent / "papers")
    store.create(dim=3, fingerprint=FINGERPRINT, context=b"context", settings={})
    add(store, range(3))
    store.close()
    yield parent / "papers"
    (parent / "papers").chmod(0o755)
    shutil.rmtree(parent)


def add(store: FaissStore, numbers: range) -> None:
    rows = [Row(Record(f"r{number}", "text", metadata={"n": number}), "") for number in numbers]
    store.add(rows, VECTORS[: len(rows)], fingerprint=FINGERPRINT)


def found(store: FaissStore) -> str:
    (hits,) = store.search(VECTORS[:1], 3, fingerprint=FINGERPRINT, where={"n": {"lt": 2}})
    assert store.exists()
    assert store.verify() == []
    assert store.context() == b"context"
    return " ".join(hit.id for hit in hits)


def without_rights(folder: Path, work: Callable[[], str]) -> str:
    """What a process that may only read the folder gets; an error in words."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    receiver, sender = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            answer = work()
        except Exception as error:  # noqa: BLE001
            answer = f"{type(error).__name__}: {error}"
        os.write(sender, answer.encode())
        os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver) as answers:
        return answers.read()


def test_what_is_read_only_can_be_read(folder: Path):
    names = sorted(folder.iterdir())
    assert without_rights(folder, lambda: found(FaissStore(folder))) == "r0 r1"
    assert sorted(folder.iterdir()) == names


def test_writing_there_is_refused_in_one_sentence(folder: Path):
    for write in (lambda store: add(store, range(1)), lambda store: store.delete(["r0"])):
        message = without_rights(folder, lambda write=write: str(write(FaissStore(folder))))
        assert message.startswith(
            f"StoreError: {folder}: expected a store that can be written, found one that can only"
        )


def test_what_another_process_wrote_and_did_not_close_is_read_too(folder: Path):
    writer = FaissStore(folder)
    add(writer, range(2, 3))
    writer.delete(["r0"])
    assert (folder / "collection.sqlite-wal").stat().st_size
    assert without_rights(folder, lambda: found(FaissStore(folder))) == "r1"
    writer.close()


def test_a_write_during_a_read_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    store, writer = FaissStore(folder), FaissStore(folder)
    monkeypatch.setattr(store._engine.database, "_writable", lambda: False)
    with pytest.raises(StoreError, match="another process wrote while it was read"), store._engine.database.reading():
        add(writer, range(1))
    writer.close()
    assert found(store) == "r0 r1"


def test_every_read_sees_what_was_written_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    store = FaissStore(folder)
    monkeypatch.setattr(store._engine.database, "_writable", lambda: False)
    assert found(store) == "r0 r1"
    writer = FaissStore(folder)
    writer.delete(["r0"])
    assert found(store) == "r1"  # from the log
    writer.close()
    assert found(store) == "r1"


def test_a_log_that_cannot_be_read_without_writing_is_an_error(folder: Path):
    writer = FaissStore(folder)
    writer.delete(["r0"])
    copy = shutil.copytree(folder, folder.with_name("copy"), ignore=shutil.ignore_patterns("*-shm"))
    message = without_rights(copy, lambda: found(FaissStore(copy)))
    copy.chmod(0o755)
    assert message.endswith("If it was not closed, open it once where it can be written.")
