"""FaissStore: the contract, and what a folder of files has to survive."""

import errno
import gc
import itertools
import logging
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from contract import EXACT, SPACE, Opener, StoreContract, assert_hits, brute_force, created, row, units
from script import BATCH, answers, batch, fingerprint, ids, matrix, steps
from word_scores import faiss_scores

from cde_rag._files import file_sha256
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.records import Row
from cde_rag.stores import files as folders
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.faiss.connections import Connection
from cde_rag.stores.faiss.database import WITH_PENDING
from cde_rag.stores.faiss.index import Index
from cde_rag.stores.faiss.manifest import FaissGeneration, FaissManifest
from cde_rag.stores.faiss.search import Reader, View
from cde_rag.stores.faiss.tables import Records
from cde_rag.stores.faiss.vectors import VectorBlocks, VectorFile
from cde_rag.stores.filters import matches

MEMORY = Path("/dev/shm")  # where there is one, since waiting for a disk thousands of times tests nothing
SCRIPT = Path(__file__).with_name("script.py")


def opener(folder: Path) -> Opener:
    return lambda: FaissStore(folder)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


class TestFaiss(StoreContract):
    word_scores = staticmethod(faiss_scores)

    @pytest.fixture
    def new_place(self, scratch: Path) -> Callable[[], Opener]:
        numbers = itertools.count()
        return lambda: opener(scratch / f"{next(numbers)}.faiss")


@pytest.fixture(scope="module")
def lived() -> Iterator[Path]:
    """The folder of a store with two generations, deleted rows and an index, closed."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as parent:
        folder = Path(parent) / "papers.faiss"
        store = FaissStore(folder, index="hnsw")
        all_steps = steps()
        for step in all_steps[: len(all_steps) // 2]:
            step(store)
        store.close()
        assert {path.name.split("-")[0] for path in folder.iterdir()} == {
            "checked",
            "collection.sqlite",
            "context",
            "index",
            "store",
            "vectors",
        }
        yield folder


def harmed(lived: Path, scratch: Path, number: int) -> tuple[Path, Path, random.Random]:
    """A copy of the store, a file in it, and dice."""
    dice = random.Random(number)
    folder = scratch / str(number)
    shutil.copytree(lived, folder)
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("checked-"))
    return folder, files[number % len(files)], dice


def tells_of_damage(folder: Path, expected: dict[str, Any]) -> bool:
    """Whether opening or `verify` tells of damage; if neither does, all answers have to be right."""
    store = FaissStore(folder)
    try:
        damaged = not store.exists() or bool(store.verify())
    except StoreError as error:
        damaged = str(folder) in str(error)
    if not damaged:
        assert answers(store) == expected
    store.close()
    return damaged


def test_a_flipped_bit_is_found_wherever_it_is(lived: Path, scratch: Path) -> None:
    expected = answers(FaissStore(lived))
    unnoticed: set[str] = set()
    for number in range(300):
        folder, path, dice = harmed(lived, scratch, number)
        data = bytearray(path.read_bytes())
        place = dice.randrange(len(data))
        data[place] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        if not tells_of_damage(folder, expected):
            unnoticed.add(path.name)
        shutil.rmtree(folder)
    assert unnoticed <= {"collection.sqlite"}, "only SQLite's file has bytes that mean nothing"


@pytest.mark.parametrize("name", ["context", "vectors"])
def test_a_flipped_bit_is_found_by_reading_what_it_is_in(lived: Path, scratch: Path, name: str) -> None:
    for number in range(20):
        folder = scratch / str(number)
        shutil.copytree(lived, folder)
        path = next(folder.glob(f"{name}-2*"))
        data = bytearray(path.read_bytes())
        data[random.Random(number).randrange(len(data))] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreFormatError, match=path.name):
            answers(FaissStore(folder))


def test_a_flipped_bit_is_found_by_a_search_that_would_lose_a_hit(lived: Path, scratch: Path) -> None:
    folder = shutil.copytree(lived, scratch / "copy")
    (path,) = folder.glob("vectors-2*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x80  # the sign of a number in the last vector, which is no hit any more
    path.write_bytes(data)
    with pytest.raises(StoreFormatError, match="block 0"):
        FaissStore(folder).search(matrix(2, 1), 1, fingerprint=fingerprint(2))


@pytest.mark.parametrize(
    ("change", "returned"),
    [
        *(
            (f"UPDATE records SET {column} = {column} || ' ' WHERE position = 1", True)
            for column in ("id", "title", "text")
        ),
        ("UPDATE records SET metadata = '{}' WHERE position = 1", True),
        ("UPDATE vectors SET digest = 'another' WHERE generation = 2 AND position = 1", True),
        ("UPDATE vectors SET row = 10000 WHERE generation = 2 AND position = 1", True),
        ("DELETE FROM vectors WHERE generation = 2 AND position = 1", True),
        ("UPDATE blocks SET checksum = checksum + 1", True),
        ("UPDATE manifest SET json = replace(json, '\"active\": 2', '\"active\": 1')", True),
        ("UPDATE manifest SET checksum = x'00'", True),
        ("DELETE FROM manifest", True),
        ("DELETE FROM records WHERE position = 1", False),
        ("UPDATE vectors SET digest = 'another' WHERE generation = 3", False),
        ("INSERT INTO dead VALUES (2, 0)", False),
        ("DELETE FROM fields WHERE position = 1 AND path = 'batch'", False),
        ("INSERT INTO fields VALUES ('batch', 'number', 12345, 1, NULL)", False),
        ("INSERT INTO fields VALUES ('batch', 'number', 1, 99999, NULL)", False),
    ],
)
def test_what_is_changed_behind_its_back_is_found(lived: Path, scratch: Path, change: str, returned: bool) -> None:
    folder = shutil.copytree(lived, scratch / "copy")
    connection = sqlite3.connect(folder / "collection.sqlite")
    assert connection.execute(change).rowcount > 0
    connection.commit()
    connection.close()
    assert FaissStore(folder).verify() != []
    if returned:
        with pytest.raises(StoreFormatError):
            answers(FaissStore(folder))


@pytest.mark.parametrize(
    "step",
    [
        "Records.put",
        "VectorFile.append",
        "os.fsync",
        "Records.put_vectors",
        "Records.put_checksums",
        "Records.put_manifest",
    ],
)
def test_a_failing_write_changes_nothing(scratch: Path, step: str) -> None:
    folder = scratch / "papers.faiss"
    store = FaissStore(folder)
    for done in steps()[:4]:
        done(store)
    before = answers(store)
    owner, name = {"Records": Records, "VectorFile": VectorFile, "os": os}[step.split(".")[0]], step.split(".")[1]
    work = getattr(owner, name)

    def fails(*arguments: Any, **named: Any) -> None:
        work(*arguments, **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(StoreError, match="No space left"):
            store.add(batch(50), matrix(5, BATCH), fingerprint=fingerprint(1))
    for again in (store, FaissStore(folder)):
        assert answers(again) == before
        assert again.verify() == []
    store.add(batch(51), matrix(1, BATCH), fingerprint=fingerprint(1))
    assert FaissStore(folder).get(ids(51)) == batch(51)
    assert store.verify() == []


def test_a_truncated_file_is_found(lived: Path, scratch: Path) -> None:
    expected = answers(FaissStore(lived))
    for number in range(60):
        folder, path, dice = harmed(lived, scratch, number)
        os.truncate(path, dice.randrange(path.stat().st_size))
        assert tells_of_damage(folder, expected) or path.name == "collection.sqlite", "that may end with free pages"
        shutil.rmtree(folder)


def test_a_damaged_log_ends_where_the_damage_is(scratch: Path) -> None:
    """As after a kill: the write-ahead log is still there, and what follows a flipped bit in it counts for nothing."""
    store, states = FaissStore(scratch / "papers.faiss"), []
    for step in steps()[:9]:
        step(store)
        states.append(answers(store))
    for number in range(20):
        folder = scratch / str(number)
        shutil.copytree(scratch / "papers.faiss", folder, ignore=shutil.ignore_patterns("*-shm"))
        log = folder / "collection.sqlite-wal"
        data = bytearray(log.read_bytes())
        data[random.Random(number).randrange(len(data))] ^= 1
        log.write_bytes(data)
        with closing(FaissStore(folder)) as damaged:
            assert answers(damaged) in states
            assert damaged.verify() == []


def test_a_missing_file_is_named(lived: Path, scratch: Path) -> None:
    for name in ("context-2", "vectors-2"):
        folder = shutil.copytree(lived, scratch / name)
        path = next(folder.glob(f"{name}*"))
        path.unlink()
        with pytest.raises(StoreFormatError, match=path.name):
            answers(FaissStore(folder))
        assert [damage.where for damage in FaissStore(folder).verify()] == [path.name]


def test_a_newer_format_is_refused(lived: Path, scratch: Path) -> None:
    folder = shutil.copytree(lived, scratch / "newer")
    with sqlite3.connect(folder / "collection.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {WITH_PENDING + 1}")
    connection.close()
    with pytest.raises(StoreFormatError, match=f"expected format {WITH_PENDING}, found {WITH_PENDING + 1}. Update"):
        FaissStore(folder).manifest()


def run(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.long  # tests/durability/test_kills.py kills at each step
def test_killed_at_any_instant_it_is_wholly_before_or_after_a_step(scratch: Path) -> None:
    states = []
    undisturbed = FaissStore(scratch / "undisturbed")
    for step in steps():
        step(undisturbed)
        states.append(answers(undisturbed))
    dice = random.Random(0)
    for number in range(10):
        folder = scratch / str(number)
        kill_after, done = dice.randrange(len(states) - 1), -1
        with run("write", folder, 0) as process:
            assert process.stdout is not None
            while done < kill_after:
                done = int(process.stdout.readline())
            time.sleep(dice.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            done = max([done, *map(int, process.stdout.read().split())])
        store = FaissStore(folder)
        assert store.verify() == []
        found = answers(store)
        assert found in states[done : done + 2]
        for step in steps()[len(states) - states[::-1].index(found) :]:
            step(store)
        assert answers(store) == states[-1]
        store.close()


def test_another_process_reads_while_one_writes(scratch: Path) -> None:
    folder = scratch / "papers.faiss"
    store = FaissStore(folder)
    all_steps = steps()
    all_steps[0](store)
    with run("read", folder, 8 * BATCH) as reader:
        for step in all_steps[1:]:
            step(store)
            if store.count() == 8 * BATCH:
                break
            time.sleep(0.01)
        output, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0
    assert int(output) >= 1


def test_two_processes_write_in_turn(scratch: Path) -> None:
    folder = scratch / "papers.faiss"
    FaissStore(folder).create(dim=8, fingerprint=fingerprint(1), context=b"1", settings={})
    writers = [run("add", folder, first, first + 15) for first in (0, 100)]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    store = FaissStore(folder)
    assert sorted(row.record.id for row in store.scroll()) == sorted(ids(*range(15), *range(100, 115)))
    assert store.verify() == []


@pytest.mark.parametrize("dim", [4, 512], ids=["SQLite's file", "the vector file"])
@pytest.mark.parametrize("limit", [1, 30_000, 200_000])
def test_a_full_disk_loses_only_what_was_not_done(scratch: Path, dim: int, limit: int) -> None:
    folder = scratch / "papers.faiss"
    with run("fill", folder, dim, limit) as process:
        assert process.stdout is not None
        *done, message = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert str(folder) in message
    assert "full" in message
    store = FaissStore(folder)
    if not store.exists():
        store.create(dim=dim, fingerprint=fingerprint(1), context=b"1", settings={})
    assert store.verify() == []
    assert [row.record.id for row in store.scroll()] == ids(*range(len(done)))
    store.add(batch(9), matrix(1, BATCH, dim), fingerprint=fingerprint(1))
    assert store.get(ids(9)) == batch(9)


def test_a_place_that_cannot_hold_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path, reason in ((tmp_path / "file", "found a file"), (Path("/proc/papers.faiss"), "writable")):
        with pytest.raises(StoreError, match=reason):
            created(opener(path))
    (tmp_path / "mounts").write_text(f"/dev/a / ext4 rw 0 0\nhost:/b {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(folders, "_MOUNTS", tmp_path / "mounts")
    with pytest.raises(StoreError, match="nfs4"):
        created(opener(tmp_path / "papers.faiss"))


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.add(batch(9), matrix(1, BATCH), fingerprint=fingerprint(1)),
        lambda store: store.write(lambda state: state.get(ids(10))),
        lambda store: store.compact(),
    ],
    ids=["append", "read", "compact"],
)
def test_a_write_names_the_file_that_it_misses(scratch: Path, write: Callable[[FaissStore], object]) -> None:
    """And not a full disk, or missing permissions."""
    store = FaissStore(scratch / "papers.faiss")
    for step in steps()[:3]:
        step(store)
    store.delete(ids(10)[:1])
    (file,) = store.folder.glob("vectors-*")
    file.unlink()
    with pytest.raises(
        StoreFormatError, match=f"{re.escape(str(file))}: expected this file, found none. Restore a copy"
    ):
        write(store)


def test_an_interrupted_creation_is_no_store(tmp_path: Path) -> None:
    place = opener(tmp_path / "papers.faiss")
    (tmp_path / "papers.faiss").mkdir()
    (tmp_path / "papers.faiss" / "collection.sqlite").touch()
    assert not place().exists()
    with pytest.raises(StoreError, match="did not finish"):
        place().manifest()
    assert created(place).verify() == []


def test_one_more_record_writes_little(scratch: Path) -> None:
    store = created(opener(scratch / "papers.faiss"), dim=64)
    rows = [row(str(number), "some text " * 20, year=number % 30) for number in range(8000)]
    store.add(rows, units(len(rows), 64), fingerprint=SPACE)
    before = bytes_written()
    for number in range(32):  # FTS5 merges its segments once in sixteen, and writes the words of all records then
        store.add([row(f"new {number}", year=1)], units(1, 64), fingerprint=SPACE)
    assert bytes_written() - before < 32 * 200_000


def bytes_written() -> int:
    statistics = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(statistics["wchar"])


def test_vectors_of_deleted_records_leave_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "papers.faiss"
    store, reader = FaissStore(folder), FaissStore(folder)
    store.create(dim=4, fingerprint=SPACE, context=b"", settings={})
    rows, matrix = [row(str(number)) for number in range(5000)], units(5000)
    store.add(rows, matrix, fingerprint=SPACE)
    assert_hits(reader, rows, matrix, matrix[0], 5, fingerprint=SPACE)
    store.delete([str(number) for number in range(2000)])
    assert sum(path.stat().st_size for path in folder.glob("vectors-*")) == 5000 * 4 * 4
    assert_hits(reader, rows[2000:], matrix[2000:], matrix[0], 5, fingerprint=SPACE)
    store.compact()
    assert [path.stat().st_size for path in folder.glob("vectors-*")] == [3000 * 4 * 4]
    assert_hits(reader, rows[2000:], matrix[2000:], matrix[0], 5, fingerprint=SPACE)
    assert store.verify() == []


def test_a_reader_whose_file_was_just_replaced_takes_the_new_one(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reader = FaissStore(scratch / "papers.faiss"), FaissStore(scratch / "papers.faiss")
    for step in steps()[:9]:
        step(store)
    view = Reader.view

    def late(self: Reader, records: Records, manifest: FaissManifest, state: FaissGeneration) -> View:
        """The writer comes between what a transaction saw and the file that it refers to."""
        if state.dead:
            monkeypatch.setattr(Reader, "view", view)
            store.compact()
        return view(self, records, manifest, state)

    monkeypatch.setattr(Reader, "view", late)
    assert reader.get(ids(10)) == batch(10, "another text")


def test_churn_does_not_grow_the_folder(scratch: Path) -> None:
    folder = scratch / "papers.faiss"
    store = FaissStore(folder)
    store.create(dim=4, fingerprint=SPACE, context=b"", settings={})
    for number in range(60):
        store.add([row(str(place), str(number)) for place in range(50)], units(50, seed=number), fingerprint=SPACE)
    (file,) = folder.glob("vectors-*")
    assert file.stat().st_size < 60 * 50 * 4 * 4 / 2
    assert_hits(store, list(store.scroll()), units(50, seed=59), EXACT[0], 7, fingerprint=SPACE)
    assert store.verify() == []


class TestIndex:
    """Approximate search, made to be used although there are few vectors."""

    DIM = 16
    ROWS = 2500

    @pytest.fixture
    def matrix(self) -> np.ndarray:
        """VectorBlocks in sixty clusters, in no order."""
        dice = np.random.default_rng(0)
        centres = dice.standard_normal((60, self.DIM))[dice.integers(0, 60, self.ROWS)]
        vectors = (centres + 0.5 * dice.standard_normal(centres.shape)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    @pytest.fixture
    def rows(self) -> list[Row]:
        return [row(str(number), tenth=number % 10) for number in range(self.ROWS)]

    @pytest.fixture
    def store(self, scratch: Path, rows: list[Row], matrix: np.ndarray) -> FaissStore:
        """All but the last 200 are in the index."""
        store = FaissStore(scratch / "papers.faiss", index="hnsw")
        store.create(dim=self.DIM, fingerprint=SPACE, context=b"", settings={})
        store.add(rows[:-200], matrix[:-200], fingerprint=SPACE)
        store.add(rows[-200:], matrix[-200:], fingerprint=SPACE)
        return store

    def recall(
        self, store: FaissStore, rows: list[Row], matrix: np.ndarray, where: dict[str, Any] | None = None
    ) -> float:
        kept = [place for place, row in enumerate(rows) if where is None or matches(where, row.record.metadata)]
        found = 0
        queries = matrix[::50]
        for query, hits in zip(queries, store.search(queries, 10, fingerprint=SPACE, where=where), strict=True):
            best = brute_force([rows[place] for place in kept], matrix[kept], query, 10)
            assert len(hits) == len(best)
            found += len({hit.id for hit in hits} & {row.record.id for row, _ in best})
        return found / (10 * len(queries))

    def test_finds_nearly_all(
        self, store: FaissStore, rows: list[Row], matrix: np.ndarray, index_searches: list[int]
    ) -> None:
        assert self.recall(store, rows, matrix) >= 0.98
        assert self.recall(store, rows, matrix, {"tenth": {"lt": 7}}) >= 0.98
        assert len(index_searches) == 2
        assert self.recall(store, rows, matrix, {"tenth": 3}) == 1
        assert len(index_searches) == 2, "few are searched exactly"

    @pytest.fixture
    def index_searches(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """A line for each call of the index."""
        calls: list[int] = []
        search = Index.search

        def counted(index: Index, queries: np.ndarray, k: int, *, among: np.ndarray | None) -> list[np.ndarray]:
            calls.append(len(queries))
            return search(index, queries, k, among=among)

        monkeypatch.setattr(Index, "search", counted)
        return calls

    def test_forgets_the_deleted_and_replaced(
        self, store: FaissStore, rows: list[Row], matrix: np.ndarray, index_searches: list[int]
    ) -> None:
        store.delete([str(number) for number in range(0, self.ROWS, 100)])
        store.add(rows[1:100], -matrix[1:100], fingerprint=SPACE)
        matrix[1:100] *= -1
        left = [number for number in range(self.ROWS) if number % 100]
        assert self.recall(store, [rows[number] for number in left], matrix[left]) >= 0.98
        store.compact()
        assert self.recall(store, [rows[number] for number in left], matrix[left]) >= 0.98
        assert len(index_searches) == 2

    def test_is_extended_when_a_tenth_is_missing(self, store: FaissStore, rows: list[Row], matrix: np.ndarray) -> None:
        folder = store.folder
        (first,) = folder.glob("index-*")
        reader = FaissStore(folder, index="hnsw")
        assert self.recall(reader, rows, matrix) >= 0.98
        more = [row(f"new {number}") for number in range(300)]
        store.add(more, -matrix[:300], fingerprint=SPACE)
        (second,) = folder.glob("index-*")
        assert second != first
        assert self.recall(reader, rows + more, np.concatenate([matrix, -matrix[:300]])) >= 0.98

    def test_damage_makes_searches_exact_and_is_mended(
        self, store: FaissStore, rows: list[Row], matrix: np.ndarray, caplog: pytest.LogCaptureFixture
    ) -> None:
        (path,) = store.folder.glob("index-*")
        os.truncate(path, 100)
        with caplog.at_level(logging.WARNING, "cde_rag"):
            assert self.recall(store, rows, matrix) == 1
        assert path.name in caplog.text
        assert [damage.where for damage in store.verify()] == [path.name]
        path.unlink()
        store.add(rows[:1], matrix[:1], fingerprint=SPACE)
        assert store.verify() == []
        assert self.recall(store, rows, matrix) >= 0.98

    def test_goes_with_its_generation(self, store: FaissStore, rows: list[Row], matrix: np.ndarray) -> None:
        number = store.create_generation(fingerprint=fingerprint(2), context=b"")
        store.add_to_generation(number, rows, [row.digest for row in rows], -matrix)
        store.activate(number)
        assert len(list(store.folder.glob("index-*"))) == 2
        store.drop(1)
        assert [path.name.split("-")[1] for path in store.folder.glob("index-*")] == ["2"]

    def test_a_full_disk_keeps_the_records(self, store: FaissStore, matrix: np.ndarray) -> None:
        """No file may grow beyond 800 KB, and the index would."""
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, most))
        try:
            with pytest.raises(StoreError, match="All records are stored"):
                store.add([row(f"new {number}") for number in range(500)], -matrix[:500], fingerprint=SPACE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert store.count() == self.ROWS + 500
        assert store.verify() == []

    @pytest.mark.usefixtures("unchecked")
    def test_an_unknown_kind_is_refused(self, scratch: Path) -> None:
        with pytest.raises(ValueError, match="flat"):
            FaissStore(scratch, index="HNSW32")


@pytest.mark.parametrize("name", ["index-of-birds.md", "context-1", "vectors-101.md", "notes.txt"])
def test_a_folder_of_other_files_is_no_place_for_a_store(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(StoreError, match=re.escape(f"found {name!r} in it. Give a path of its own")):
        FaissStore(tmp_path).create(dim=2, fingerprint="f" * 64, context=b"", settings={})
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_files_that_came_later_are_left_alone(tmp_path: Path) -> None:
    store = FaissStore(tmp_path / "store")
    store.create(dim=2, fingerprint="f" * 64, context=b"", settings={})
    mine = tmp_path / "store" / "index-of-birds.md"
    mine.write_text("mine")
    store.compact()
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    "statement",
    [
        "VACUUM",
        "ANALYZE",
        "PRAGMA optimize",
        "CREATE INDEX mine ON records (text)",
        "CREATE TABLE mine (note TEXT)",
        "CREATE VIEW mine AS SELECT id FROM records",
        "ALTER TABLE records ADD COLUMN note TEXT",
        "ALTER TABLE vectors ADD COLUMN note TEXT",
        "ALTER TABLE fields ADD COLUMN note TEXT",
    ],
)
def test_what_an_operator_does_to_the_tables_does_no_harm(lived: Path, scratch: Path, statement: str) -> None:
    """A store is known by its header and the columns that it needs, not by the text of its schema."""
    folder = shutil.copytree(lived, scratch / "papers")
    expected = answers(FaissStore(lived))
    store = FaissStore(folder)
    assert answers(store) == expected
    connection = sqlite3.connect(folder / "collection.sqlite", isolation_level=None)
    connection.execute(statement)
    connection.close()
    for used in (store, FaissStore(folder)):
        assert answers(used) == expected
        assert used.verify() == []
        used.add(batch(99), matrix(2, BATCH), fingerprint=used.manifest().fingerprint)
        assert used.delete(ids(99)) == BATCH


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("PRAGMA application_id = 7", "another program's file"),
        ("ALTER TABLE vectors RENAME COLUMN digest TO other", "without digest"),
        ("DROP TABLE blocks", "without block, checksum, generation"),
    ],
)
def test_tables_that_lack_something_are_refused(lived: Path, scratch: Path, statement: str, found: str) -> None:
    folder = shutil.copytree(lived, scratch / "papers")
    store = FaissStore(folder)
    store.count()
    connection = sqlite3.connect(folder / "collection.sqlite", isolation_level=None)
    connection.execute(statement)
    connection.close()
    with pytest.raises(StoreFormatError, match=found):
        FaissStore(folder).count()
    if "TABLE" in statement:  # an open store sees it with the next transaction
        with pytest.raises(StoreFormatError, match=found):
            store.count()


@pytest.mark.parametrize("deleted", [1, 300])
@pytest.mark.parametrize("filtered", [False, True])
def test_deleted_rows_cost_a_search_no_copies(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, deleted: int, filtered: bool
) -> None:
    """Whole blocks are scored and the tombstones left out; rows are copied for the few that are scored again only."""
    store = created(opener(scratch / "papers.faiss"), dim=64)
    rows = [row(str(number), "text", year=number % 10) for number in range(3000)]
    matrix = units(3000, 64)
    store.add(rows, matrix, fingerprint=SPACE)
    gone = [str(number) for number in range(0, 3000, 3000 // deleted)][:deleted]
    store.delete(gone)
    where = {"year": {"lt": 8}} if filtered else None
    copied, take = [], VectorBlocks.take

    def counted(vectors: VectorBlocks, rows: np.ndarray) -> np.ndarray:
        copied.append(len(rows))
        return take(vectors, rows)

    monkeypatch.setattr(VectorBlocks, "take", counted)
    (hits,) = store.search(units(1, 64, seed=5), 10, fingerprint=SPACE, where=where)
    assert sum(copied) < 100
    scores = matrix.astype(np.float64) @ units(1, 64, seed=5)[0].astype(np.float64)
    for number in range(3000):
        if str(number) in gone or (filtered and number % 10 >= 8):
            scores[number] = -2
    assert [hit.id for hit in hits] == [str(number) for number in np.argsort(-scores, kind="stable")[:10]]


def test_an_index_is_hashed_once_not_by_each_process(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are compared with their checksum again when its size, times or inode are others than then."""
    store = FaissStore(scratch / "papers.faiss", index="hnsw")
    store.create(dim=16, fingerprint=SPACE, context=b"c", settings={})
    store.add([row(str(number), "text") for number in range(2000)], units(2000, 16), fingerprint=SPACE)
    store.close()
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr("cde_rag.stores.faiss.index.file_sha256", counted)
    expected = store.search(units(1, 16), 3, fingerprint=SPACE)
    assert FaissStore(store.folder).search(units(1, 16), 3, fingerprint=SPACE) == expected
    assert hashed == []
    copy = FaissStore(shutil.copytree(store.folder, scratch / "copy"))
    assert copy.search(units(1, 16), 3, fingerprint=SPACE) == expected
    assert FaissStore(copy.folder).search(units(1, 16), 3, fingerprint=SPACE) == expected
    assert len(hashed) == 1
    (path,) = copy.folder.glob("index-*")
    times = path.stat()
    with path.open("r+b") as file:  # one byte, with the times put back as they were
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert FaissStore(copy.folder).search(units(1, 16), 3, fingerprint=SPACE) == expected  # exactly, without it
    assert len(hashed) == 2
    assert [damage.where for damage in FaissStore(copy.folder).verify()] == [path.name]


def test_a_path_with_a_nul_is_refused_by_every_call(tmp_path: Path) -> None:
    store = FaissStore(f"{tmp_path}/pap\0ers")
    for call in (
        store.exists,
        store.manifest,
        store.count,
        lambda: created(lambda: store),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(StoreError, match="found a NUL character"):
            call()


def test_a_connection_that_is_dropped_is_closed() -> None:
    """Python 3.13 warns of one that is not."""
    connection = sqlite3.connect(":memory:", factory=Connection)
    with mock.patch.object(Connection, "close") as close:
        del connection
        gc.collect()
    close.assert_called_once_with()


def test_vectors_that_differ_by_rounding_are_ranked_as_in_float64(tmp_path: Path) -> None:
    """In float32 the best of them is often not the first: its score is rounded like all others."""
    random = np.random.default_rng(0)
    vectors = np.tile(units(1, dim=64), (400, 1))
    places = random.integers(0, 64, size=400)
    vectors[np.arange(400), places] = np.nextafter(vectors[0, places], random.choice([-1, 1], 400).astype(np.float32))
    store = created(lambda: FaissStore(tmp_path / "store", index="flat"), dim=64)
    store.add([row(f"r{number}") for number in range(400)], vectors, fingerprint=SPACE)
    queries = units(50, dim=64, seed=1)
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    found = [hits[0].score for hits in store.search(queries, 1, fingerprint=SPACE)]
    np.testing.assert_allclose(found, scores.max(axis=1), rtol=0, atol=1e-12)
