"""While a collection is moved to a new context others search it and change it: no search fails, nothing is lost.

With FAISS and PostgreSQL they are another process; one process at a time has Qdrant Edge open, so there they are
threads of it.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import others
import pytest
from lives import SPACES, opened, record, store_at, stub
from others import Interval, held_after
from sound import check_sound

from cde_rag.collection.collection import Collection
from cde_rag.indexing.upsert import Progress
from cde_rag.stores.store import Store

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("server")


class Other:
    """Somebody at work on a store, in another process or, for Edge, in a thread; what was said is in `told`."""

    def __init__(self, what: str, kind: str, folder: Path, records: int, number: int) -> None:
        self.told: list[str] = []
        self._errors: list[BaseException] = []
        lines = self._process if kind != "edge" else self._here
        self._thread = threading.Thread(target=self._work, args=(lambda: lines(what, kind, folder, records, number),))
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()
        if self._errors:
            raise self._errors[0]

    def _work(self, lines: Callable[[], Iterator[str]]) -> None:
        try:
            self.told.extend(lines())
        except BaseException as error:  # noqa: BLE001
            self._errors.append(error)

    def _process(self, what: str, kind: str, folder: Path, records: int, number: int) -> Iterator[str]:
        command = [sys.executable, str(HERE / "others.py"), what, kind, str(folder), str(records), str(number)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            yield from process.stdout
        assert process.returncode == 0

    def _here(self, what: str, kind: str, folder: Path, records: int, number: int) -> Iterator[str]:
        with contextlib.closing(store_at(kind, folder)) as store:
            if what == "write":
                yield from map(str, others.write(store, records, number))
            else:
                yield from (f"{began} {ended}" for began, ended in others.search(store, records, number))


def made(kind: str, folder: Path, records: int) -> Store:
    store = store_at(kind, folder)
    Collection.create(store, stub(0)).add_records(map(record, range(records)))
    return store


def test_searches_meanwhile_neither_fail_nor_mix(
    kind: str, scratch: Path, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    count, records, moves = times(1500, 10_000), 120, list[Interval]()  # enough for several moves
    store = made(kind, scratch / "papers", records)
    opened(store).recontextualize(embedder=stub(SPACES - 1))  # the first one imports modules
    reader = Other("search", kind, scratch / "papers", records, count + count // 10)
    while not reader.told and reader.is_alive:
        time.sleep(0.01)
    while reader.is_alive:
        began = time.monotonic()
        opened(store).recontextualize(embedder=stub(len(moves) % SPACES))
        moves.append((began, time.monotonic()))
    reader.join()
    intervals = [tuple(map(float, line.split())) for line in reader.told]
    during = sum(any(start <= began and ended <= end for start, end in moves) for began, ended in intervals)
    check_sound(store)
    store.close()
    assert len(intervals) == count + count // 10
    assert len(moves) > 1
    assert during >= count // 2
    tell(
        f"{len(intervals)} searches, {during} of them wholly within one of {len(moves)} recontextualizations; all right"
    )


def test_changes_meanwhile_are_there_after_activation_and_after_rollback(
    kind: str, scratch: Path, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """The run waits at each step until the other has made its share of the changes, so that all are made in it."""
    records = times(120, 2000)
    store = made(kind, scratch / "papers", records)

    def moved(round_: int, move: Callable[[Callable[[Progress], None]], object]) -> None:
        writer, steps = list[Other](), 0

        def wait(progress: Progress) -> None:
            nonlocal steps
            if not writer:
                writer.append(Other("write", kind, scratch / "papers", records, round_))
            steps += 1
            share = min(1.0, steps * 40 / records)
            while writer[0].is_alive and not (writer[0].told and int(writer[0].told[-1]) >= share * (records - 4)):
                time.sleep(0.005)

        move(wait)
        made = int(writer[0].told[-1]) if writer and writer[0].told else 0
        writer[0].join()
        assert made >= records - 4

    moved(1, lambda wait: opened(store).recontextualize(embedder=stub(1), on_progress=wait))
    rows, space = check_sound(store)
    assert space == 1
    assert [row.record for row in rows] == list(held_after(records, 1).values())
    assert max(others.write(store, records, 2)) >= records - 4  # so that there is something to do on the way back
    moved(3, lambda wait: opened(store).rollback(on_progress=wait))
    rows, space = check_sound(store)
    assert space == 0
    assert [row.record for row in rows] == list(held_after(records, 3).values())
    store.close()
    tell(f"{records} records changed during a recontextualization, {records} during a rollback; all right after each")
