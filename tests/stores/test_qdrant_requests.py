"""Requests of sessions on Qdrant, and collections whose name comes to mean another store."""

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from contract import EXACT, OTHER, SPACE, created, row
from qdrant_client import QdrantClient, models

from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.records import Row
from cde_rag.stores.qdrant import QdrantStore, generations, index
from cde_rag.stores.qdrant.manifest import load
from cde_rag.stores.qdrant_base.locks import ReadWriteLock
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState

SIBLINGS = {"source": "p"}
ROWS = [row("a", **SIBLINGS), row("b", **SIBLINGS), row("c", source="q")]


@pytest.fixture
def client() -> QdrantClient:
    return QdrantClient(":memory:")


@pytest.fixture
def store(client: QdrantClient) -> Store:
    """A store that was used before."""
    store = created(lambda: QdrantStore(client, "papers"))
    store.add(ROWS, EXACT[:3], fingerprint=SPACE)
    return store


def requests_of(client: QdrantClient, work: Callable[[], object]) -> list[str]:
    """Call a function; return the names of the requests that it made."""
    asked: list[str] = []
    names = [name for name in dir(QdrantClient) if not name.startswith("_") and callable(getattr(QdrantClient, name))]

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(client, name)
        return lambda *args, **more: (asked.append(name), real(*args, **more))[1]

    for name in names:
        setattr(client, name, counted(name))
    try:
        work()
    finally:
        for name in names:
            delattr(client, name)
    return asked


def looked(state: StoreState) -> Any:
    """The questions that an upsert asks first."""
    return state.manifest(), state.get(["a"]), list(state.scroll(where=SIBLINGS))


def test_an_unchanged_record_takes_three_requests(client: QdrantClient, store: Store) -> None:
    assert requests_of(client, lambda: store.read(looked)) == ["retrieve", "retrieve", "scroll"]
    assert requests_of(client, lambda: QdrantStore(client, "papers").read(looked))[0] == "get_collection"


@pytest.mark.parametrize(("parent", "most"), [("p", 11), ("new", 12)])
def test_a_record_with_a_parent_takes_twelve_requests(
    client: QdrantClient, store: Store, parent: str, most: int
) -> None:
    new = row("d", source=parent)

    def looked(state: StoreState) -> Any:
        return state.manifest(), state.get(["d"]), list(state.scroll(where={"source": parent}))

    def added(state: StoreState) -> None:
        rows = [*looked(state)[2], new]
        state.add(rows, EXACT[: len(rows)], fingerprint=SPACE)

    asked = requests_of(client, lambda: (store.read(looked), store.write(added)))
    assert len(asked) == most
    assert list(store.scroll(where={"source": parent}))[-1] == new


def test_a_search_takes_two_requests(client: QdrantClient, store: Store) -> None:
    search = lambda: store.search(EXACT[:1], 2, fingerprint=SPACE)  # noqa: E731
    assert requests_of(client, search) == ["retrieve", "query_batch_points"]


def test_a_drawn_sample_takes_few_requests(client: QdrantClient, store: Store) -> None:
    """While it is read, the writers of the process wait, and whoever reads after them."""
    store.add([row(f"{number:03}") for number in range(150)], EXACT[[0] * 150], fingerprint=SPACE)
    store.delete(["a", "b", "c"])
    samples: list[list[Row]] = []
    asked = requests_of(client, lambda: samples.append(store.sample(120, seed=1)))
    assert asked == ["retrieve", "scroll", "query_batch_points", "query_batch_points"]
    ids = [one.record.id for one in samples[0]]
    assert ids == sorted(set(ids))
    assert 110 <= len(ids) <= 120
    assert store.get(ids) == samples[0]


def test_a_hybrid_search_reads_records_for_its_results_only(client: QdrantClient, store: Store) -> None:
    answers: list[Any] = []
    query = client.query_batch_points
    client.query_batch_points = lambda *args, **more: (answers.append(query(*args, **more)), answers[-1])[1]

    def search(state: StoreState) -> Any:
        near = state.nearest(EXACT[:1], 3, fingerprint=SPACE, where={"source": {"contains": "p"}})
        (words,) = state.matching(["text"], 3, where=None)
        assert {found.key for found in near[0]} < {found.key for found in words}
        return state.hits(near[0][:1])

    (hit,) = store.read(search)
    assert (hit.id, hit.text, hit.metadata) == ("a", "text", SIBLINGS)
    payloads = [point.payload for (answer,) in answers for point in answer.points]
    assert not any("text" in payload for payload in payloads)


@pytest.mark.parametrize("change", ["delete", "replace"])
def test_a_record_that_changes_between_search_and_reading_is_searched_again(
    client: QdrantClient, store: Store, change: str
) -> None:
    other, tries = elsewhere(client), list[int]()

    def search(state: StoreState) -> Any:
        (near,) = state.nearest(EXACT[:1], 1, fingerprint=SPACE)
        tries.append(1)
        if len(tries) > 1:
            return state.hits(near)
        if change == "delete":
            other.delete(["a"])
        else:
            other.add([row("a", "new")], -EXACT[:1], fingerprint=SPACE)
        return state.hits(near)

    assert [(hit.id, hit.score) for hit in store.read(search)] == [("b", 0)]
    assert len(tries) == 2


def alias(client: QdrantClient, collection: str) -> None:
    """Have the name "live" mean a collection, from one instant on."""
    there = any(one.alias_name == "live" for one in client.get_aliases().aliases)
    gone = [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="live"))] if there else []
    made = models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name=collection, alias_name="live"))
    client.update_collection_aliases([*gone, made])


def second(client: QdrantClient, *, fingerprint: str = SPACE, theirs: str | None = None) -> QdrantStore:
    """Another store with the record x, which may have been moved from the space `theirs`."""
    store = QdrantStore(client, "papers 2")
    store.create(dim=4, fingerprint=theirs or fingerprint, context=b"", settings={"second": True})
    store.add([row("x")], EXACT[:1], fingerprint=theirs or fingerprint)
    if theirs is not None:
        number = store.create_generation(fingerprint=fingerprint, context=b"")
        store.activate(number, last=lambda rows: (["" for _ in rows], EXACT[: len(rows)]))
        store.add([row("y")], EXACT[1:2], fingerprint=fingerprint)  # which the first generation lacks
    return store


def test_an_alias_that_moves_is_followed_at_once(client: QdrantClient, store: Store) -> None:
    alias(client, "papers")
    live = QdrantStore(client, "live")
    assert (live.count(), live.manifest().settings.get("second")) == (3, None)
    second(client)
    alias(client, "papers 2")
    assert [found.id for found in live.search(EXACT[:1], 5, fingerprint=SPACE)[0]] == ["x"]
    assert live.manifest().settings["second"] is True
    assert live.get(["a", "x"]) == [row("x")]


@pytest.mark.parametrize("theirs", [None, SPACE, OTHER])
@pytest.mark.parametrize("call", ["search", "get", "scroll", "count", "manifest", "add"])
def test_a_collection_that_is_replaced_by_an_alias_of_its_name(
    client: QdrantClient, store: QdrantStore, call: str, theirs: str | None
) -> None:
    """Its manifest is there still, beside the contexts; the new store may have an inactive generation of its space."""
    fingerprint = SPACE if theirs is None else OTHER if theirs == SPACE else "c3" * 32
    second(client, fingerprint=fingerprint, theirs=theirs)
    assert store.count() == 3
    client.delete_collection("papers")
    with pytest.raises(StoreError):
        store.get(["a"])
    made = models.CreateAlias(collection_name="papers 2", alias_name="papers")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=made)])
    store._engine._has_own_name = True  # as in a process that made no call in between
    ids = ["x"] if theirs is None else ["x", "y"]
    match call:
        case "search" if theirs is not None:
            with pytest.raises(ContextMismatchError):
                store.search(EXACT[:1], 5, fingerprint=SPACE)
        case "add" if theirs is not None:
            with pytest.raises(ContextMismatchError):
                store.add([row("z")], EXACT[:1], fingerprint=SPACE)
        case "search":
            assert [found.id for found in store.search(EXACT[:1], 5, fingerprint=SPACE)[0]] == ids
        case "add":
            store.add([row("z")], EXACT[:1], fingerprint=SPACE)
            assert QdrantStore(client, "papers 2").count() == 2
        case "get":
            assert [found.record.id for found in store.get(["a", "x", "y"])] == ids
            assert store.get(["a"]) == []
        case "scroll":
            assert [found.record.id for found in store.scroll()] == ids
        case "count":
            assert store.count() == len(ids)
        case _:
            assert store.manifest() == QdrantStore(client, "papers 2").manifest()


def test_settings_that_two_processes_change_at_once_are_both_kept(client: QdrantClient, store: Store) -> None:
    other, retrieve, done = elsewhere(client), client.retrieve, list[int]()

    def followed(*args: Any, **more: Any) -> Any:
        found = retrieve(*args, **more)
        if not done:
            done.append(1)
            other.update_settings({"a": 1})
        return found

    client.retrieve = followed
    store.update_settings({"b": 2})
    assert {"a": 1, "b": 2}.items() <= store.manifest().settings.items()


def elsewhere(client: QdrantClient) -> QdrantStore:
    """The store as another process has it, with locks of its own."""
    store = QdrantStore(client, "papers")
    store._engine.lock = ReadWriteLock()
    return store


@pytest.mark.parametrize("run", [None, ""])
def test_what_is_written_under_a_name_has_the_vectors_of_its_collection(
    client: QdrantClient, monkeypatch: pytest.MonkeyPatch, run: str | None
) -> None:
    """Another collection of the same records and space, but with prefixes, and the manifest of the one that is gone."""
    if run is not None:
        monkeypatch.setattr(generations, "new_run", lambda: run)  # as versions before did for the first generation
    old = created(lambda: QdrantStore(client, "papers"))
    old.add(ROWS, EXACT[:3], fingerprint=SPACE)
    new = created(lambda: QdrantStore(client, "papers 2", quantization="prefix-2"))
    new.add(ROWS, EXACT[:3], fingerprint=SPACE)
    client.delete_collection("papers")
    made = models.CreateAlias(collection_name="papers 2", alias_name="papers")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=made)])
    old.add([row("d")], EXACT[3:4], fingerprint=SPACE)
    assert new.verify() == []
    for change in (lambda: old.add([row("e")], EXACT[4:5], fingerprint=SPACE), lambda: old.get(["a"])):
        old._engine._has_own_name = True  # as in a process that made no call in between
        change()
        assert new.verify() == []
    old._engine._has_own_name = True
    assert old.read(lambda state: (state.get(["a"]), state._session.manifest.prefix))[1] == 2
    assert [hit.id for hit in old.search(EXACT[3:4], 1, fingerprint=SPACE)[0]] == ["d"]


def test_a_store_of_before_takes_one_request_more_to_be_searched(
    client: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "new_run", lambda: "")
    store = created(lambda: QdrantStore(client, "papers"))
    store.add(ROWS, EXACT[:3], fingerprint=SPACE)
    asked = requests_of(client, lambda: store.search(EXACT[:1], 2, fingerprint=SPACE))
    assert asked == ["retrieve", "query_batch_points", "get_collection"]


def test_an_interrupted_creation_is_completed_with_the_vectors_that_it_made(client: QdrantClient) -> None:
    upsert = client.upsert
    client.upsert = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        created(lambda: QdrantStore(client, "papers"))
    client.upsert = upsert
    store = created(lambda: QdrantStore(client, "papers"))
    assert set(client.get_collection("papers").config.params.vectors) == {load(client, "papers").serving.vector}
    store.add(ROWS, EXACT[:3], fingerprint=SPACE)
    assert store.verify() == []


def test_a_new_text_loses_its_vector_in_a_generation_that_another_process_began_meanwhile(
    client: QdrantClient, store: Store
) -> None:
    other = elsewhere(client)

    def write(state: StoreState) -> None:
        assert len(state.get(["a"])) == 1
        number = other.create_generation(fingerprint=OTHER, context=b"")
        assert other.add_to_generation(number, other.lacking(number), ["", "", ""], EXACT[5:8]) == 3
        state.add([row("a", "new", **SIBLINGS)], EXACT[4:5], fingerprint=SPACE)

    store.write(write)
    assert [one.record.id for one in other.lacking(2)] == ["a"]
    with pytest.raises(StoreError, match="'a'"):
        other.activate(2)
    assert store.verify() == []


@pytest.mark.parametrize("call", ["activate", "drop", "create_generation"])
def test_settings_that_another_process_changes_meanwhile_stop_no_run(
    client: QdrantClient, store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    other, numbers = elsewhere(client), itertools.count()

    def change() -> None:
        other.update_settings({"number": next(numbers)})

    def last(rows: list[Row]) -> tuple[list[str], Any]:
        change()
        return ["" for _ in rows], EXACT[: len(rows)]

    def preceded(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **more: (change(), real(*given, **more))[1]

    with store.lease():
        number = store.create_generation(fingerprint=OTHER, context=b"two")
        match call:
            case "activate":
                store.activate(number, last=last)
                assert store.manifest().generation == number
            case "drop":
                monkeypatch.setattr(index, "delete_vectors", preceded(index.delete_vectors))
                store.drop(number)
                assert len(store.generations()) == 1
            case _:
                monkeypatch.setattr(generations, "write_context", preceded(generations.write_context))
                assert store.create_generation(fingerprint="c3" * 32, context=b"three") == 3
    assert store.manifest().settings["number"] == 0
    assert store.verify() == []


def test_another_run_that_took_the_lease_stops_one(client: QdrantClient, store: Store) -> None:
    other = elsewhere(client)
    number = store.create_generation(fingerprint=OTHER, context=b"two")

    def last(rows: list[Row]) -> tuple[list[str], Any]:
        with other.lease():
            return ["" for _ in rows], EXACT[: len(rows)]

    with pytest.raises(StoreError, match="another run"):
        store.activate(number, last=last)
    assert store.manifest().generation == 1
