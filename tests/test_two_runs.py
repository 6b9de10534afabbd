"""Two runs on one Qdrant collection, one of them suspended for longer than its lease, at every request in turn.

Whatever the other run and its users did meanwhile: no record that was acknowledged is lost, no vector is of another
context than the one it counts as, and the run that lost its lease ends, with a sentence where it changed nothing more.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from intact import damages
from qdrant_client import QdrantClient
from tiny import WORDS, tiny_cde_model

from cde_rag.collection.collection import Collection
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CDEError, StoreError
from cde_rag.indexing import backfill as generations
from cde_rag.records import Record
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant import lease as turns_module
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.qdrant_edge.shard import EdgeShard

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

SIZE: Final = 4  # context documents
WAIT_S: Final = 60  # a schedule that does not end by then is stuck
MODEL = tiny_cde_model()


class Process:
    """The client of one process, which is suspended before its nth request. A stand-in for QdrantClient."""

    def __init__(self, client: QdrantClient, *, until: int | None = None) -> None:
        self._client = client
        self._until = until
        self.requests = 0
        self.suspended, self.woken = threading.Event(), threading.Event()

    __class__ = property(lambda _: QdrantClient)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not callable(value):
            return value

        def request(*args: Any, **more: Any) -> Any:
            self.requests += 1
            if self.requests == self._until:
                self.suspended.set()
                assert self.woken.wait(WAIT_S)
            return value(*args, **more)

        return request


class Suspended:
    """Suspends one thread before its nth request to Qdrant Edge's engine."""

    def __init__(self, until: int) -> None:
        self._until = until
        self._call = EdgeShard.call
        self.requests = 0
        self.thread: threading.Thread | None = None
        self.reached, self.woken = threading.Event(), threading.Event()

    def call(self, engine: EdgeShard, work: Callable[[Any], Any]) -> Any:
        if threading.current_thread() is self.thread:
            self.requests += 1
            if self.requests == self._until:
                self.reached.set()
                assert self.woken.wait(WAIT_S)
        return self._call(engine, work)


class Store(QdrantStore):
    """A store in memory with the lease of a server."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, "papers")

    @contextmanager
    def lease(self) -> Iterator[None]:
        self._engine.local = False
        with super().lease():
            self._engine.local = True
            yield


def text(number: int) -> str:
    return " ".join(np.random.default_rng(number).choice(WORDS, 6)) + f" {number}"


def filled() -> QdrantClient:
    """A collection that was moved once, so that it can go back."""
    client = QdrantClient(":memory:")
    embedder = ContextualEmbedder.from_corpus([text(i) for i in range(12)], model=MODEL, context_size=SIZE, seed=0)
    papers = Collection.create(Store(client), embedder)
    papers.add_records([Record(str(number), text(number)) for number in range(12)])
    papers.recontextualize(seed=9, context_size=SIZE)
    return client


def opened(client: Any) -> Collection:
    return Collection.open(Store(client), model=MODEL)


def assert_sound(client: QdrantClient, expected: dict[str, str]) -> None:
    assert_is(opened(client), expected)
    moved = opened(client)  # a run on what is there ends as ever
    moved.recontextualize(seed=99, context_size=SIZE)
    assert_is(moved, expected)


def assert_is(papers: Collection, expected: dict[str, str]) -> None:
    assert {record.id: record.text for record in papers.scroll()} == expected
    ids = list(expected)
    fresh = papers.embedder.embed_documents([expected[id_] for id_ in ids])
    np.testing.assert_allclose(papers.store.vectors(ids, fingerprint=papers.embedder.fingerprint), fresh, atol=1e-5)
    assert damages(papers) == []
    assert [hit.text for hit in papers.search(expected["3"], k=1)]
    for generation in papers.store.generations():
        if generation.active:
            assert generation.vectors == len(expected)


Work = Callable[[Collection], object]
RUNS: dict[str, Work] = {
    "move": lambda papers: papers.recontextualize(seed=1, context_size=SIZE),
    "the same": lambda papers: papers.recontextualize(seed=1, context_size=SIZE),
    "another": lambda papers: papers.recontextualize(seed=2, context_size=SIZE),
    "there and on": lambda papers: [papers.recontextualize(seed=seed, context_size=SIZE) for seed in (1, 2, 3, 1)],
    "back": lambda papers: papers.rollback(),
}


def users(papers: Collection) -> dict[str, str]:
    """What users do meanwhile: they add, replace and delete."""
    papers.add_records([Record("new", text(50)), Record("3", text(51))])
    papers.delete(["5"])
    there = {str(number): text(number) for number in range(12) if number != 5}
    return {**there, "new": text(50), "3": text(51)}


def schedule(client: QdrantClient, first: Work, until: int, second: Work) -> tuple[bool, list[BaseException]]:
    """Suspend a run before one of its requests, have the other run and users at work meanwhile, and let it go on.

    Returns:
        Whether it came to that request, and what the first run ended with, if it was an error.
    """
    process = Process(client, until=until)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            first(opened(process))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
        finally:
            process.suspended.set()

    with mock.patch.object(turns_module, "_LEASE_S", -1.0), mock.patch.object(threading.Thread, "start", start):
        thread = threading.Thread(target=run, name="first run")
        thread.start()
        assert process.suspended.wait(WAIT_S)
        came = thread.is_alive() and not process.woken.is_set() and process.requests >= until
        if came:
            expected = users(opened(client))
            attempt(second, opened(client))
        process.woken.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if came:
        assert_sound(client, expected)
    return came, errors


_start = threading.Thread.start


def start(thread: threading.Thread) -> None:
    """Threads start but those that renew a lease, which a suspended process does not do."""
    if thread.name == "cde-rag lease":
        thread.join = lambda timeout=None: None  # type: ignore[method-assign]
    else:
        _start(thread)


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with mock.patch.object(generations, "ROWS_AT_ONCE", 8):
        yield


def attempt(work: Work, papers: Collection) -> None:
    """Do it, or end with an error of ours: such as to go back where there is nothing before."""
    with suppress(CDEError):
        work(papers)


def requests_of(work: Work) -> int:
    """How many a run makes that nobody suspends."""
    process = Process(filled())
    work(opened(process))
    return process.requests


def check(first: str, until: int, second: str) -> list[BaseException]:
    came, errors = schedule(filled(), RUNS[first], until, RUNS[second])
    assert came
    for error in errors:
        assert isinstance(error, CDEError), error
        assert any(
            said in str(error)
            for said in ("xpected", "This run lost its lease: another run took it", "another run holds the lease")
        ), error
    return errors


SECONDS = ("the same", "another", "there and on")


@pytest.mark.parametrize("seconds", [SECONDS, *(pytest.param((name,), marks=pytest.mark.long) for name in SECONDS)])
def test_a_run_that_is_suspended_harms_nothing(seconds: tuple[str, ...]):
    """At every seventh request, the other runs in turn; `make torture` takes all requests of all runs."""
    requests = requests_of(RUNS["move"])
    assert requests > 40
    offset = len(seconds[0]) % 7
    places = range(1 + offset, requests + 1, 7)
    lost = [check("move", until, second) for until, second in zip(places, itertools.cycle(seconds), strict=False)]
    assert sum("another run" in str(error) for errors in lost for error in errors) >= 2


@pytest.mark.skipif("CDE_TORTURE" not in os.environ, reason="half an hour, in make torture")
@pytest.mark.parametrize("first", list(RUNS))
@pytest.mark.parametrize("second", list(RUNS))
def test_a_run_that_is_suspended_at_any_request_harms_nothing(first: str, second: str):
    for until in range(1, requests_of(RUNS[first]) + 1):
        check(first, until, second)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(RUNS)), st.floats(0, 1), st.lists(st.sampled_from(list(RUNS)), min_size=1, max_size=3))
def test_whatever_runs_meanwhile_a_run_harms_nothing(first: str, share: float, seconds: list[str]):
    """One run is suspended somewhere, and up to three others follow each other meanwhile."""
    RUNS["some"] = lambda papers: [attempt(RUNS[name], papers) for name in seconds]
    try:
        check(first, 1 + int(share * (requests_of(RUNS[first]) - 1)), "some")
    finally:
        del RUNS["some"]


@pytest.mark.long
def test_in_qdrant_edge_the_other_run_is_told(tmp_path: Path):
    """One process has the folder, and the lease is a lock of its: a run that is suspended keeps it."""
    texts = {str(number): text(number) for number in range(12)}
    embedder = ContextualEmbedder.from_corpus(list(texts.values()), model=MODEL, context_size=SIZE, seed=0)
    papers = Collection.create(QdrantEdgeStore(tmp_path / "papers"), embedder)
    papers.add_records([Record(id_, text_) for id_, text_ in texts.items()])
    told, schedules = list[str](), 0
    while came := suspended_in_edge(tmp_path / "papers", 1 + 9 * schedules, told):
        texts |= came
        assert_is(opened_edge(tmp_path / "papers"), texts)
        schedules += 1
    assert schedules > 5
    assert len(told) >= schedules - 1  # all but a run that is suspended before it has the lease
    assert all("another" in message for message in told)


def opened_edge(folder: Path) -> Collection:
    return Collection.open(QdrantEdgeStore(folder), model=MODEL)


def suspended_in_edge(folder: Path, until: int, told: list[str]) -> dict[str, str]:
    """Suspend a run, try another and add a record meanwhile; returns that, or nothing where the run ended before."""
    suspended, new = Suspended(until), {f"new {until}": text(50 + until)}

    def other() -> None:
        try:
            opened_edge(folder).recontextualize(seed=1000 + until, context_size=SIZE)
        except StoreError as error:
            told.append(str(error))

    def user() -> None:
        opened_edge(folder).add_records([Record(id_, text_) for id_, text_ in new.items()])

    with mock.patch.object(EdgeShard, "call", lambda engine, work: suspended.call(engine, work)):
        first = opened_edge(folder)
        run = threading.Thread(target=first.recontextualize, kwargs={"seed": until, "context_size": SIZE})
        suspended.thread = run
        run.start()
        while run.is_alive() and not suspended.reached.wait(0.01):
            pass
        came = suspended.reached.is_set()
        meanwhile = [threading.Thread(target=work) for work in (other, user)] if came else []
        for thread in meanwhile:
            thread.start()
            thread.join(0.3)  # it may have to wait for the run
        suspended.woken.set()
        for thread in (run, *meanwhile):
            thread.join(WAIT_S)
            assert not thread.is_alive()
    return new if came else {}


def late(client: QdrantClient, *, killed: bool) -> Any:
    """A writer's request reaches Qdrant after another process has moved the collection; then the writer is killed."""
    upsert, moved = client.upsert, list[bool]()

    def sent(collection: str, *args: Any, **more: Any) -> Any:
        first = collection == "papers" and not moved
        if first:
            moved.append(True)
            opened(client).recontextualize(seed=1, context_size=SIZE)
        done = upsert(collection, *args, **more)
        if first and killed:
            raise KilledError
        return done

    return mock.patch.object(client, "upsert", sent)


class KilledError(Exception):
    """The process was killed."""


@pytest.mark.parametrize("id_", ["3", "new"])
def test_a_writer_whose_request_comes_late_writes_again(id_: str):
    client = filled()
    expected = {str(number): text(number) for number in range(12)} | {id_: text(51)}
    with late(client, killed=False):
        opened(Process(client)).add_records([Record(id_, text(51))])
    assert_sound(client, expected)


@pytest.mark.parametrize("id_", ["3", "new"])
@pytest.mark.parametrize("repair", ["add again", "recontextualize"])
def test_a_late_writer_that_is_killed_blocks_nobody(id_: str, repair: str):
    """What it wrote is there without a vector: it can be read, `verify` names it, and a write or a run mends it."""
    client = filled()
    expected = {str(number): text(number) for number in range(12)} | {id_: text(51)}
    with late(client, killed=True), pytest.raises(KilledError):
        opened(Process(client)).add_records([Record(id_, text(51))])
    papers = opened(client)
    assert {record.id: record.text for record in papers.scroll()} == expected
    assert [record.text for record in papers.get([id_])] == [text(51)]
    (damage,) = papers.verify()
    assert repr(id_) in damage.where
    assert "recontextualize" in damage.found
    assert id_ not in [hit.id for hit in papers.search(text(51), k=20, by="vectors")]
    if repair == "add again":
        papers.add_records([Record(id_, text(51))])
    else:
        papers.recontextualize(seed=7, context_size=SIZE)
    assert_sound(client, expected)
