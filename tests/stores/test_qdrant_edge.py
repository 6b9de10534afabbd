"""QdrantEdgeStore: the contract, kills, damage, other processes and threads, indexes and quantization."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import EXACT, OTHER, SPACE, Opener, StoreContract, assert_hits, brute_force, created, row, units
from filter_cases import BOOK, CASES
from script import BATCH, answers, batch, fingerprint, matrix, steps, store_in

from cde_rag.errors import ContextMismatchError, StoreError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.filters import matches, parse
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.manifest import ANALYZED, PointsManifest
from cde_rag.stores.qdrant_edge import QdrantEdgeStore, folder_handle, shard_generations
from cde_rag.stores.qdrant_edge.folder_handle import FolderHandle
from cde_rag.stores.qdrant_edge.tables import ShardPoints

MEMORY = Path("/dev/shm")  # where there is one, since waiting for a disk thousands of times tests nothing
SCRIPT = Path(__file__).with_name("script.py")


def opener(folder: Path) -> Opener:
    return lambda: QdrantEdgeStore(folder)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.long  # minutes, in an engine that writes to disk; the same code runs in memory in test_qdrant.py
class TestQdrantEdge(StoreContract):
    @pytest.fixture
    def new_place(self, scratch: Path) -> Callable[[], Opener]:
        return new_places(scratch)


def new_places(scratch: Path) -> Callable[[], Opener]:
    numbers = itertools.count()
    return lambda: opener(scratch / f"{next(numbers)}.qdrant")


def test_short_lives(scratch: Path) -> None:
    StoreContract.lead(new_places(scratch), lives=6)


# Kills


def run(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.long  # tests/durability/test_kills.py kills at each step
def test_killed_at_any_instant_it_is_wholly_before_or_after_a_step(scratch: Path) -> None:
    states = []
    undisturbed = store_in(scratch / "undisturbed.qdrant")
    for step in steps():
        step(undisturbed)
        states.append(answers(undisturbed))
    dice = random.Random(0)
    for number in range(5):
        folder = scratch / f"{number}.qdrant"
        kill_after, done = dice.randrange(len(states) - 1), -1
        with run("write", folder, 0) as process:
            assert process.stdout is not None
            while done < kill_after:
                done = int(process.stdout.readline())
            time.sleep(dice.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            done = max([done, *map(int, process.stdout.read().split())])
        store = store_in(folder)
        assert store.verify() == []
        found = answers(store)
        assert found in states[done : done + 2]
        for step in steps()[len(states) - states[::-1].index(found) :]:
            step(store)
        assert answers(store) == states[-1]
        store.close()


class Killed(BaseException):
    pass


CREATE = (
    "write_new",
    "copy_durably",
    "ShardPoints.create_vectors",
    "replace_durably",
    "FolderHandle.use",
    "sweep",
)
DROP = ("copy_durably", "ShardPoints.delete_vectors", "replace_durably", "FolderHandle.use", "sweep")


def create(store: QdrantEdgeStore) -> None:
    store.create_generation(fingerprint="3" * 64, context=b"three")


def drop(store: QdrantEdgeStore) -> None:
    store.drop(2)


@pytest.mark.parametrize(("call", "step"), [*((create, step) for step in CREATE), *((drop, step) for step in DROP)])
def test_a_generation_is_made_or_dropped_wholly_or_not_at_all(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[QdrantEdgeStore], None], step: str
) -> None:
    folder = scratch / "papers.qdrant"
    store = created(opener(folder))
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    number = store.create_generation(fingerprint=OTHER, context=b"two")
    store.add_to_generation(number, store.lacking(number), ["1", "2"], EXACT[2:4])
    before = answers(store)
    owner = {"ShardPoints": ShardPoints, "FolderHandle": FolderHandle}.get(step.partition(".")[0], shard_generations)
    name = step.rpartition(".")[2]
    real = getattr(owner, name)

    def dying(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise Killed

    monkeypatch.setattr(owner, name, dying)
    with contextlib.suppress(Killed):
        call(store)
    monkeypatch.setattr(owner, name, real)
    assert answers(store)["rows"] == before["rows"]
    store.close()
    again = QdrantEdgeStore(folder)
    assert again.verify() == []
    found = answers(again)
    if len(found["generations"]) == len(before["generations"]):
        assert found == before
        call(again)
    assert len(again.generations()) != len(before["generations"])
    assert {**answers(again), "generations": None} == {**before, "generations": None}
    assert again.verify() == []
    again.create_generation(fingerprint="4" * 64, context=b"")
    shards = [path.name for path in folder.iterdir() if path.is_dir()]
    assert shards == ["-".join(["shard", *(str(one.number) for one in again.generations()), "words"])]


def test_an_interrupted_creation_is_no_store(scratch: Path) -> None:
    folder = scratch / "papers.qdrant"
    created(opener(folder)).close()
    (folder / "cde.json").unlink()
    assert not QdrantEdgeStore(folder).exists()
    with pytest.raises(StoreError, match=r"found 'shard\.json' in it"):  # one that was closed was not interrupted
        created(opener(folder))
    (folder / "shard.json").unlink()
    store = created(opener(folder))
    assert (store.count(), store.verify()) == (0, [])


# Damage


@pytest.fixture(scope="module")
def lived() -> Iterator[Path]:
    """The folder of a store with two generations, deleted rows and an index, closed."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as parent:
        folder = Path(parent) / "papers.qdrant"
        store = store_in(folder)
        for step in steps()[:21]:
            step(store)
        store.close()
        yield folder


@pytest.mark.long
def test_whatever_is_changed_in_a_closed_store_is_found(lived: Path, scratch: Path) -> None:
    dice = random.Random(0)
    files = sorted(path.relative_to(lived) for path in lived.rglob("*") if path.is_file() and path.stat().st_size)
    assert len(files) > 40
    folder = scratch / "copy"
    for name in dice.sample(files, 25):
        shutil.copytree(lived, folder)
        path = folder / name
        size = path.stat().st_size
        place = dice.randrange(min(size, 4096))
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1 << dice.randrange(8)]))
            if dice.random() < 0.3:
                file.truncate(size // 2)
        try:
            found = [damage.where for damage in QdrantEdgeStore(folder).verify()]
        except StoreFormatError as error:
            found = [str(error)]
        assert any(path.name in one for one in found), name
        if name.parts[0].startswith("shard"):
            with pytest.raises(StoreFormatError, match=path.name if len(name.parts) > 1 else "shard"):
                QdrantEdgeStore(folder).count()
        shutil.rmtree(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"{}", b'{"format": 1}', b"[" * 100_000])
def test_a_manifest_that_is_none_is_refused(lived: Path, scratch: Path, content: bytes) -> None:
    folder = shutil.copytree(lived, scratch / "copy")
    (folder / "cde.json").write_bytes(content)
    for call in (QdrantEdgeStore.manifest, QdrantEdgeStore.count, QdrantEdgeStore.verify):
        with pytest.raises(StoreFormatError, match=r"cde\.json"):
            call(QdrantEdgeStore(folder))


def test_a_newer_format_is_refused(lived: Path, scratch: Path) -> None:
    folder = shutil.copytree(lived, scratch / "copy")
    content = json.loads((folder / "cde.json").read_bytes())
    (folder / "cde.json").write_text(json.dumps(content | {"format": ANALYZED + 1}))
    with pytest.raises(StoreFormatError, match="format 6 or older, found 7"):
        QdrantEdgeStore(folder).manifest()


def test_a_copy_opens_and_answers_alike(lived: Path, scratch: Path) -> None:
    """`shutil` fills the holes of files; checksums do not see them."""
    assert answers(QdrantEdgeStore(shutil.copytree(lived, scratch / "copy"))) == answers(QdrantEdgeStore(lived))


def test_a_folder_that_is_no_place_for_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"found 'notes\.txt' in it"):
        created(opener(tmp_path))
    with pytest.raises(StoreError, match="found a file"):
        created(opener(tmp_path / "notes.txt"))
    with pytest.raises(StoreError, match="writable"):
        created(opener(Path("/proc/papers.qdrant")))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_files_that_came_later_are_left_alone(tmp_path: Path) -> None:
    store = created(opener(tmp_path / "papers"))
    mine = tmp_path / "papers" / "shard-of-glass.md"
    mine.write_text("mine")
    store.create_generation(fingerprint=OTHER, context=b"")
    store.close()
    assert mine.read_text() == "mine"
    assert QdrantEdgeStore(tmp_path / "papers").verify() == []


# Processes and threads


def in_another_process(work: Callable[[], Any]) -> str:
    """What a fork of this process gets; an error in words."""
    receiver, sender = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = str(work())
        except Exception as error:  # noqa: BLE001
            answer = f"{type(error).__name__}: {error}"
        os.write(sender, answer.encode())
        os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver) as answers:
        return answers.read()


def test_one_process_at_a_time(scratch: Path) -> None:
    folder = scratch / "papers.qdrant"
    store = store_in(folder)
    for step in steps()[:3]:
        step(store)
    with run("add", folder, 100, 101) as other:
        assert other.wait(timeout=60) == 1
    assert store.count() == 2 * BATCH
    store.close()
    with run("add", folder, 100, 101) as other:
        assert other.wait(timeout=60) == 0
    assert store_in(folder).count() == 3 * BATCH


def test_a_fork_is_refused_and_does_no_harm(scratch: Path) -> None:
    store = created(opener(scratch / "papers.qdrant"))
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    told = in_another_process(lambda: (store.close, store.count())[1])
    assert told.startswith("StoreError: ")
    assert "fork" in told
    assert "fork" in in_another_process(lambda: QdrantEdgeStore(scratch / "papers.qdrant").count())
    store.add([row("b")], EXACT[1:2], fingerprint=SPACE)
    store.close()
    assert in_another_process(lambda: QdrantEdgeStore(scratch / "papers.qdrant").count()) == "2"


def test_what_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created(opener(tmp_path / "papers")).close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="expected a folder that can be written"):
        QdrantEdgeStore(tmp_path / "papers").count()


def test_threads_see_an_activation_at_one_instant(scratch: Path) -> None:
    """Each generation lies on an axis of its own: one vector of the other would have the score 0 where 1 is due."""
    store, reader = (store_in(scratch / "papers.qdrant") for _ in range(2))
    store.create(dim=8, fingerprint=fingerprint(1), context=b"1", settings={})
    store.add(batch(0), matrix(1, BATCH), fingerprint=fingerprint(1))
    stop, seen, wrong = threading.Event(), set[int](), list[object]()

    def read() -> None:
        active = 1
        while not stop.is_set():
            try:
                (hits,) = reader.search(matrix(active, 1), 2 * BATCH, fingerprint=fingerprint(active))
            except ContextMismatchError as error:
                active = int(error.expected)
                continue
            seen.add(active)
            if len(hits) != BATCH or any(hit.score != 1 for hit in hits):
                wrong.append(hits)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for new in range(2, 6):
        store.create_generation(fingerprint=fingerprint(new), context=b"")
        store.add_to_generation(new, store.lacking(new), ["digest"] * BATCH, matrix(new, BATCH))
        store.activate(new)
        while new not in seen and not wrong:
            time.sleep(0.001)
        store.drop(new - 1)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.verify() == []


@pytest.mark.parametrize("call", ["create_generation", "drop", "index_texts"])
def test_records_are_written_while_a_change_of_generations_waits_for_an_index(tmp_path: Path, call: str) -> None:
    """An index that takes minutes to be built."""
    store = created(opener(tmp_path / "papers"))
    store.create_generation(fingerprint=OTHER, context=b"other")
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    change = {
        "create_generation": lambda: store.create_generation(fingerprint="c3" * 32, context=b"third"),
        "drop": lambda: store.drop(2),
        "index_texts": store.index_texts,
    }[call]
    with store._engine.handle.shaping:  # as while an index is built
        changing = threading.Thread(target=change, daemon=True)
        changing.start()
        changing.join(0.2)
        writing = threading.Thread(target=lambda: store.add([row("b")], EXACT[1:2], fingerprint=SPACE), daemon=True)
        writing.start()
        writing.join(20)
        assert changing.is_alive()
        assert not writing.is_alive()
        assert store.update_metadata({"b": {"year": 1}}) is None
    changing.join(20)
    assert not changing.is_alive()
    assert len(store.generations()) == {"create_generation": 3, "drop": 1, "index_texts": 2}[call]
    assert [row.record.metadata for row in store.scroll()] == [{}, {"year": 1}]
    assert store.verify() == []


def test_a_thread_reads_while_another_replaces_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest of this process itself is never taken for a store that was put in its place."""
    store = created(opener(tmp_path / "papers"))
    reader, save, came = QdrantEdgeStore(tmp_path / "papers"), folder_handle.save, list[object]()

    def read() -> None:
        try:
            came.append(reader.manifest().dim)
        except StoreError as error:
            came.append(error)

    reading = threading.Thread(target=read)

    def replaced(folder: Path, manifest: PointsManifest) -> None:
        save(folder, manifest)
        reading.start()
        reading.join(0.2)  # it waits, or would raise by then

    monkeypatch.setattr(folder_handle, "save", replaced)
    number = store.create_generation(fingerprint=OTHER, context=b"other")
    reading.join()
    assert came == [store.manifest().dim]
    assert number == 2


# Filters


def test_a_translation_keeps_what_the_filter_keeps(scratch: Path) -> None:
    store = created(opener(scratch / "papers.qdrant"))
    store.add([Row(Record("book", "text", metadata=BOOK), "digest")], EXACT[:1], fingerprint=SPACE)
    for where, kept in CASES:
        found = PointFilter(parse(where), store._engine.points, store._engine.load())
        least, most = (store._engine.points.count(bound) for bound in (found.certain, found.selection))
        assert least <= kept <= most, where


# Indexes


DIM = 16
ROWS = 2500


@pytest.fixture(scope="module")
def clustered() -> np.ndarray:
    """Vectors in sixty clusters, in no order."""
    dice = np.random.default_rng(0)
    centres = dice.standard_normal((60, DIM))[dice.integers(0, 60, ROWS)]
    vectors = (centres + 0.5 * dice.standard_normal(centres.shape)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def recall(store: QdrantEdgeStore, rows: list[Row], vectors: np.ndarray, where: dict[str, Any] | None = None) -> float:
    kept = [place for place, row in enumerate(rows) if where is None or matches(where, row.record.metadata)]
    found = 0
    queries = vectors[::50]
    for query, hits in zip(queries, store.search(queries, 10, fingerprint=SPACE, where=where), strict=True):
        best = brute_force([rows[place] for place in kept], vectors[kept], query, 10)
        assert len(hits) == len(best)
        found += len({hit.id for hit in hits} & {row.record.id for row, _ in best})
    return found / (10 * len(queries))


@pytest.mark.parametrize(
    "quantization", [None, "binary", *(pytest.param(name, marks=pytest.mark.long) for name in ("int8", "prefix-8"))]
)
def test_an_index_finds_nearly_all(scratch: Path, clustered: np.ndarray, quantization: str | None) -> None:
    rows = [row(str(number), tenth=number % 10) for number in range(ROWS)]
    store = QdrantEdgeStore(scratch / "papers.qdrant", flat_rows=100, quantization=quantization)
    store.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
    store.add(rows[:-50], clustered[:-50], fingerprint=SPACE)
    store.add(rows[-50:], clustered[-50:], fingerprint=SPACE)
    indexed = store._engine.shard.call(lambda shard: shard.info().indexed_vectors_count)
    assert ROWS - 100 < indexed / (3 if quantization == "prefix-8" else 2) < ROWS  # words count as vectors, too
    assert any(path.name == "quantized.data" for path in scratch.rglob("*")) is (quantization in ("int8", "binary"))
    least = {"binary": 0.6, "prefix-8": 0.85}.get(str(quantization), 0.97)  # sixteen bits tell little, half no more
    for where in (None, {"tenth": {"lt": 5}}, {"tenth": 3}, {"tenth": 3, "not": {"tenth": {"lt": 3}}}):
        assert recall(store, rows, clustered, where) >= least
    store.close()
    exact = QdrantEdgeStore(scratch / "papers.qdrant", exact=True)
    assert recall(exact, rows, clustered) == 1
    assert exact.verify() == []


def test_an_index_goes_with_the_deleted_and_replaced(scratch: Path, clustered: np.ndarray) -> None:
    rows = [row(str(number)) for number in range(ROWS)]
    store = QdrantEdgeStore(scratch / "papers.qdrant", flat_rows=100)
    store.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
    store.add(rows, clustered, fingerprint=SPACE)
    store.delete([str(number) for number in range(0, ROWS, 2)])
    vectors = clustered.copy()
    vectors[1:100:2] *= -1
    store.add(rows[1:100:2], vectors[1:100:2], fingerprint=SPACE)
    assert recall(store, rows[1::2], vectors[1::2]) >= 0.97
    assert store.verify() == []


def test_churn_does_not_grow_the_folder(scratch: Path) -> None:
    folder = scratch / "papers.qdrant"
    store = created(opener(folder))
    sizes: list[int] = []
    for number in range(24):
        store.add([row(str(place), f"{number} " * 5000) for place in range(50)], units(50), fingerprint=SPACE)
        files = [path for path in folder.rglob("*") if path.parent.name != "wal"]  # two of its segments of 32 MB stay
        sizes.append(sum(path.stat().st_blocks * 512 for path in files))
    assert sizes[-1] < 2 * max(sizes[:8])
    assert_hits(store, list(store.scroll()), units(50), EXACT[0], 7, fingerprint=SPACE)


@pytest.mark.parametrize("asked", [{"quantization": "int4"}, {"flat_rows": -1}])
def test_senseless_settings_are_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(asked))):
        QdrantEdgeStore(tmp_path, **asked)
