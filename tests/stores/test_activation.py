"""Activation under writes: the last vectors come while writers wait and readers do not; other generations answer."""

import threading
from pathlib import Path

import numpy as np
import pytest
from contract import EXACT, OTHER, SPACE, Opener, assert_hits, created, row
from qdrant_client import QdrantClient

from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.records import Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store

ROWS = [row("a"), row("b"), row("c")]


@pytest.fixture(params=["faiss", "qdrant", pytest.param("edge", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    client = QdrantClient(":memory:")
    return {
        "faiss": lambda: FaissStore(tmp_path / "papers"),
        "qdrant": lambda: QdrantStore(client, "papers"),
        "edge": lambda: QdrantEdgeStore(tmp_path / "papers"),
    }[request.param]


@pytest.fixture
def store(place: Opener) -> Store:
    """Three rows, of which the other generation has the first."""
    store = created(place)
    store.add(ROWS, EXACT[:3], fingerprint=SPACE)
    number = store.create_generation(fingerprint=OTHER, context=b"other")
    store.add_to_generation(number, ROWS[:1], ["1"], EXACT[3:4])
    return store


def given(rows: list[Row]) -> tuple[list[str], np.ndarray]:
    places = [int(row.record.id, 36) - 10 for row in rows]
    return [f"digest {place}" for place in places], EXACT[[3 + place for place in places]]


def test_what_waits_in_both_generations_may_go_on_waiting(store: Store) -> None:
    store.add([row("d")], None, fingerprint=SPACE)
    with pytest.raises(StoreError, match="'b' lacks one"):
        store.activate(2, waiting={"b", "d"})  # it has its vector in the active one
    assert store.activate(2, last=given, waiting={"d"}) == 2
    assert [one.record.id for one in store.pending()] == ["d"]
    assert store.verify() == []
    assert not store.settle()


def test_the_last_vectors_come_with_the_activation(store: Store) -> None:
    asked: list[list[str]] = []

    def last(rows: list[Row]) -> tuple[list[str], np.ndarray]:
        asked.append([row.record.id for row in rows])
        return given(rows)

    with pytest.raises(StoreError, match="3 records, found 1"):
        store.activate(2)
    assert store.activate(2, last=last) == 2
    assert asked == [["b", "c"]]
    assert_hits(store, ROWS, EXACT[3:6], EXACT[4], 3, fingerprint=OTHER)
    assert [row.digest for row in store.scroll()] == ["1", "digest 1", "digest 2"]
    assert store.verify() == []
    assert store.activate(1, last=last) == 0
    assert len(asked) == 1


def test_writers_wait_for_the_last_vectors_and_readers_do_not(store: Store, place: Opener) -> None:
    events: list[str] = []
    other = place()

    def write() -> None:
        try:
            other.add([row("d")], EXACT[:1], fingerprint=SPACE)
        except ContextMismatchError:
            events.append("told")

    writers: list[threading.Thread] = []

    def last(rows: list[Row]) -> tuple[list[str], np.ndarray]:
        writers.append(thread := threading.Thread(target=write))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        reader = threading.Thread(target=lambda: events.append(other.search(EXACT[:1], 1, fingerprint=SPACE)[0][0].id))
        reader.start()
        reader.join(20)
        assert other.count() == 3
        return given(rows)

    store.activate(2, last=last)
    writers[0].join(20)
    assert events == ["a", "told"]
    assert [row.record.id for row in store.scroll()] == ["a", "b", "c"]
    other.close()


@pytest.mark.parametrize("vectors", [None, EXACT[:1], EXACT[:2] * 2])
def test_what_fails_there_activates_nothing(store: Store, vectors: np.ndarray | None) -> None:
    def last(rows: list[Row]) -> tuple[list[str], np.ndarray]:
        if vectors is None:
            raise ValueError("no vectors: Expected some")
        return ["" for _ in rows], vectors

    with pytest.raises(ValueError, match="Expected"):
        store.activate(2, last=last)
    assert store.manifest().generation == 1
    assert store.lacking(2) == ROWS[1:]
    store.add([row("b", "new")], EXACT[4:5], fingerprint=SPACE)  # whoever waited is let go
    assert store.verify() == []


def test_another_generation_is_searched_in_its_own_space(store: Store) -> None:
    for generation in (None, 1):
        assert_hits(store, ROWS, EXACT[:3], EXACT[1], 3, fingerprint=SPACE, generation=generation)
    assert_hits(store, ROWS[:1], EXACT[3:4], EXACT[3], 3, fingerprint=OTHER, generation=2)
    assert_hits(store, [], EXACT[:0], EXACT[3], 3, fingerprint=OTHER, generation=2, where={"year": 1})
    store.add_to_generation(2, ROWS[1:], ["2", "3"], EXACT[4:6])
    assert_hits(store, ROWS, EXACT[3:6], EXACT[4], 2, fingerprint=OTHER, generation=2)
    store.delete(["b"])
    store.add([row("c", "new")], EXACT[2:3], fingerprint=SPACE)
    assert_hits(store, ROWS[:1], EXACT[3:4], EXACT[4], 3, fingerprint=OTHER, generation=2)
    for fingerprint, generation in ((SPACE, 2), (OTHER, 1), (OTHER, None)):
        with pytest.raises(ContextMismatchError):
            store.search(EXACT[:1], 1, fingerprint=fingerprint, generation=generation)
    with pytest.raises(StoreError, match="7"):
        store.search(EXACT[:1], 1, fingerprint=SPACE, generation=7)
