"""A store goes back to an earlier state under the processes that use it: a copy of its folder, a snapshot of Qdrant.

What a counter said before, it may say again: numbers of generations, rows and versions. No search returns vectors of
another space, no run writes into another's generation, and who cannot go on gets a sentence.
"""

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np
import pytest
from lives import opened, record, store_at, stub
from others import held_after
from qdrant_client import QdrantClient
from sound import check_sound

from cde_rag.collection.collection import Collection
from cde_rag.errors import ContextMismatchError, StoreError, StoreFormatError
from cde_rag.indexing.upsert import Progress
from cde_rag.records import Row
from cde_rag.stores.faiss import FaissStore, connections
from cde_rag.stores.qdrant import QdrantStore, generations
from cde_rag.stores.qdrant.manifest import load
from cde_rag.stores.store import Store

RECORDS = 40
HERE = Path(__file__).parent
LONG_AGO = 1_700_000_000  # seconds since 1970: the time of the files in a copy


class Place(Protocol):
    """A place of a store, which can be kept, and go back."""

    def store(self) -> Store:
        """Return a store object of its own, as another process has it."""
        ...

    def keep(self) -> None: ...

    def back(self) -> None: ...


class Folder:
    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._live, self._copy = kind, folder / "live", folder / "copy"

    def store(self) -> Store:
        return store_at(self._kind, self._live)

    def keep(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        subprocess.run(["cp", "-a", self._live, self._copy], check=True)

    def back(self) -> None:
        shutil.rmtree(self._live)
        subprocess.run(["cp", "-a", self._copy, self._live], check=True)


class Memory:
    """A Qdrant in memory, whose snapshot is a copy of all its collections."""

    def __init__(self) -> None:
        self.client = QdrantClient(":memory:")
        self._clients = [self.client]  # one that is dropped closes what it shares

    def store(self) -> Store:
        """Return one with a client of its own, which has locks and a lease of its own."""
        client = QdrantClient(":memory:")
        client._client = self.client._client
        self._clients.append(client)
        return QdrantStore(client, "papers")

    def keep(self) -> None:
        self._kept = copy.deepcopy(self._collections)

    def back(self) -> None:
        self._collections.clear()
        self._collections.update(copy.deepcopy(self._kept))

    @property
    def _collections(self) -> dict[str, Any]:
        return self.client._client.collections  # type: ignore[attr-defined]


@pytest.fixture(params=["hnsw", pytest.param("edge", marks=pytest.mark.long), "qdrant"])
def place(request: pytest.FixtureRequest, scratch: Path) -> Place:
    """A place with a collection of 40 records in space 0, closed."""
    made = Memory() if request.param == "qdrant" else Folder(request.param, scratch)
    with closing(made.store()) as store:
        Collection.create(store, stub(0)).add_records(map(record, range(RECORDS)))
    return made


def begun(place: Place, space: int, *, changed: int = 0) -> None:
    """Another process changes some records, and begins to move the store to a space."""
    with closing(place.store()) as store:
        opened(store).add_records([record(number, f"for space {space}") for number in range(changed)])
        number = store.create_generation(fingerprint=stub(space).fingerprint, context=stub(space).context.to_bytes())
        assert number == 2
        fill(store, space, store.lacking(number, limit=10))


def moved(place: Place, space: int) -> None:
    """Another process then completes generation 2 and activates it."""
    with closing(place.store()) as store:
        fill(store, space, store.lacking(2))
        store.activate(2)


def fill(store: Store, space: int, rows: Sequence[Row]) -> None:
    vectors = stub(space).embed_queries([row.record.text for row in rows])
    store.add_to_generation(2, rows, [row.digest for row in rows], vectors)


def check(place: Place, space: int) -> Store:
    store = place.store()
    assert check_sound(store)[1] == space
    return store


def texts(place: Place) -> list[str]:
    with closing(place.store()) as store:
        return [row.record.text for row in store.scroll()]


def ids(collection: Collection) -> list[str]:
    return [hit.id for hit in collection.search("first text of 7", 10, by="vectors")]


def nearest(records: list[str]) -> list[str]:
    vectors = stub(0).embed_queries(records).astype(np.float64)
    scores = vectors @ stub(0).embed_queries(["first text of 7"])[0].astype(np.float64)
    return [f"d{number}" for number in np.argsort(-scores, kind="stable")[:10]]


def is_open_elsewhere(store: Store) -> bool:
    """Return True for Edge, which has the folder for itself: over an open store, every call raises."""
    return not isinstance(store, FaissStore | QdrantStore)


def test_a_service_searches_what_is_there_now(place: Place) -> None:
    """It was in space 1 of generation 2; generation 2 is in space 2 when it searches again."""
    place.keep()
    service = opened(place.store())
    service.recontextualize(embedder=stub(1))
    assert ids(service) == nearest([record(number).text for number in range(RECORDS)])
    space = service.embedder.fingerprint
    if is_open_elsewhere(service.store):
        place.back()
        with pytest.raises(StoreError, match="found others in their place"):
            ids(service)
        service.close()
    place.back()
    begun(place, 2, changed=20)
    moved(place, 2)
    assert service.store.manifest().generation == 2
    with pytest.raises(ContextMismatchError):
        service.store.search(stub(1).embed_queries(["x"]), 3, fingerprint=space)
    with pytest.raises(ContextMismatchError):
        service.store.search(stub(1).embed_queries(["x"]), 3, fingerprint=space, generation=2)
    assert ids(service) == nearest(texts(place))
    assert service.embedder.fingerprint == stub(2).fingerprint
    service.close()
    service.add_records([record(100)])  # it may write what it opens now
    service.close()
    check(place, 2).close()


def test_rows_and_deletions_that_are_as_many_as_before_are_read_again(scratch: Path) -> None:
    """A copy of an open store is copied back over it, and its clocks say nothing: compared by numbers alone, what the
    service read before would be returned, with a deleted record and without one that is there."""
    live, copied = scratch / "live", scratch / "copied"
    service, other = store_at("hnsw", live), store_at("hnsw", live)
    collection = Collection.create(service, stub(0))
    collection.add_records(map(record, range(RECORDS)))
    best = ids(collection)
    subprocess.run(["cp", "-a", live, copied], check=True)
    opened(other).delete(best[:1])
    assert ids(collection)[0] == best[1]
    with mock.patch.object(connections, "_JITTER_NS", 10**18):
        subprocess.run(["cp", "-a", f"{copied}/.", live], check=True)
        opened(other).delete(best[1:2])
        assert ids(collection)[0] == best[0]
        assert best[1] not in ids(collection)
    service.close()
    other.close()


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("closes", [False, True])
def test_a_run_that_lost_its_lease_writes_nothing(place: Place, at: int, closes: bool) -> None:
    """Generation 2 is its own when it begins, and another run's when it goes on."""
    place.keep()
    with closing(place.store()) as store:
        steps = 0

        def go_back(_: Progress) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                if closes or is_open_elsewhere(store):
                    store.close()
                place.back()
                begun(place, 2, changed=20)

        with pytest.raises(
            StoreError,
            match=r"another was put in its place|restored to an earlier|another run changed|went back to an earlier",
        ):
            opened(store).recontextualize(embedder=stub(1), on_progress=go_back)
    moved(place, 2)
    with closing(check(place, 2)) as store:
        assert [one.fingerprint for one in store.generations()] == [stub(space).fingerprint for space in (0, 2)]


def test_an_add_that_is_under_way(place: Place) -> None:
    """Its later parts go where its earlier ones are not any more; or it ends in a sentence."""
    place.keep()
    with closing(place.store()) as store:
        collection, steps = opened(store), 0

        def go_back(_: Progress) -> None:
            nonlocal steps
            steps += 1
            if steps == 2:
                place.back()
                if not is_open_elsewhere(store):
                    begun(place, 2, changed=20)
                    moved(place, 2)

        new = [record(number) for number in range(100, 140)]
        with suppress(StoreError):
            collection.add_records(new, on_progress=go_back)
    space = 0 if is_open_elsewhere(store) else 2
    with closing(check(place, space)) as store:
        opened(store).add_records(new)  # as the documentation says: made again, it is complete
        assert {row.record.id for row in store.scroll()} == {f"d{n}" for n in (*range(RECORDS), *range(100, 140))}
        check_sound(store)


def test_a_run_that_ended_early_is_resumed(place: Place) -> None:
    """The copy has its generation half filled; meanwhile it was completed, and followed by another one."""

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    service = opened(place.store())
    with pytest.raises(KeyboardInterrupt):
        service.recontextualize(embedder=stub(1), on_progress=stop)
    service.close()
    place.keep()
    service.recontextualize(embedder=stub(1))
    service.recontextualize(embedder=stub(2))
    service.close()
    place.back()
    service.recontextualize(embedder=stub(1))
    service.close()
    check(place, 1).close()


def test_a_rollback(place: Place) -> None:
    """It returns to the space before that of the copy, not to the one that the process left last."""
    service = opened(place.store())
    service.recontextualize(embedder=stub(1))
    service.close()
    place.keep()
    service.add_records([record(number, "second") for number in range(10)])
    service.recontextualize(embedder=stub(2))
    service.close()
    place.back()
    service.rollback()
    service.close()
    check(place, 0).close()
    with pytest.raises(StoreError, match="nothing to roll back to"):
        service.rollback()
    service.close()


@pytest.mark.parametrize("at", ["write_context", "_swapped"])
def test_a_run_on_qdrant_that_is_suspended_in_a_call(at: str) -> None:
    """The manifest has the version that the run wrote when it goes on, and is another run's."""
    place = Memory()
    Collection.create(place.store(), stub(0)).add_records(map(record, range(RECORDS)))
    place.keep()
    store, done, call = place.store(), list[int](), getattr(generations, at)

    def suspended(*arguments: Any, **more: Any) -> Any:
        result = call(*arguments, **more)
        if not done:
            done.append(1)
            version = load(place.client, "papers").version
            place.back()
            with (other := place.store()).lease():
                other.update_settings({"by": "another run"})
            assert load(place.client, "papers").version == version
        return result

    with (
        mock.patch.object(generations, at, suspended),
        pytest.raises(StoreError, match="another run changed"),
        store.lease(),
    ):
        store.create_generation(fingerprint=stub(1).fingerprint, context=stub(1).context.to_bytes())
    assert place.store().manifest().settings["by"] == "another run"
    with closing(check(place, 0)) as store:
        assert [one.fingerprint for one in store.generations()] == [stub(0).fingerprint]


OVER = """
import sys, time
from pathlib import Path
from test_gone_back import *
live, copied, way = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
service = store_at(sys.argv[4], live)
collection = opened(service)
if not copied.exists():  # a copy of the open store
    ids(collection)
    subprocess.run(["cp", "-a", live, copied], check=True)
    time.sleep(1.1)
for number in range(100, 100 + RECORDS):  # enough that SQLite moves its log into the file, too
    collection.add_records([record(number)])
collection.delete(["d7"])
assert len(ids(collection)) == 10
copied_over(copied, live, all_files=way == "all files")
for call in (service.count, service.manifest, service.verify, lambda: ids(collection),
             lambda: collection.add_records([record(200)]), lambda: store_at(sys.argv[4], live).count()):
    with pytest.raises(StoreError, match="copied over them|found others in their place"):
        call()
service.close()
"""


def copied_over(copied: Path, live: Path, *, all_files: bool) -> None:
    """As `cp -a` does it, or `rsync -a --inplace`, which leaves files of the same size and time as they are."""
    for path in copied.rglob("*"):
        there, found = live / path.relative_to(copied), path.stat()
        same = there.exists() and (found.st_size, found.st_mtime_ns) == (there.stat().st_size, there.stat().st_mtime_ns)
        if path.is_dir() or (same and not all_files):
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)


@pytest.mark.parametrize(
    ("folder", "is_open", "way"),
    [
        pytest.param("hnsw", False, "all files", marks=pytest.mark.long),
        ("hnsw", True, "changed files"),
        ("edge", False, "changed files"),
        pytest.param("edge", True, "all files", marks=pytest.mark.long),
    ],
)
def test_a_copy_that_keeps_times_over_an_open_folder(scratch: Path, folder: str, way: str, is_open: bool) -> None:
    """The marker file, and the manifest of Edge, have the time that they had: only newer files are older now."""
    live, copied = scratch / "live", scratch / "copied"
    with closing(store_at(folder, live)) as store:
        Collection.create(store, stub(0)).add_records(map(record, range(RECORDS)))
    for path in live.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    if not is_open:
        subprocess.run(["cp", "-a", live, copied], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    subprocess.run([sys.executable, "-c", OVER, live, copied, way, folder], env=environment, check=True)
    if is_open:
        return
    for log in live.glob("*-wal"), live.glob("*-shm"):  # of the process that ended; the message says: an empty folder
        for path in log:
            path.unlink()
    with closing(store_at(folder, live)) as store:
        if folder == "edge":  # the newer files of the engine are there, too
            with pytest.raises(StoreFormatError, match="found one that was not there"):
                store.count()
            return
        rows, space = check_sound(store)
        assert ([row.record for row in rows], space) == (list(held_after(RECORDS, 0).values()), 0)
