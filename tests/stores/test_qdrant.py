"""QdrantStore: the contract, in memory and on a server; kills between requests, damage, and what is someone else's."""

import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from contract import EXACT, OTHER, SPACE, Opener, StoreContract, assert_hits, created, row, units
from filter_cases import BOOK, CASES
from mortal import WRITES, Killed, Mortal, Preceded
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from server import URL, collections_on
from text_contract import assert_found
from word_scores import point_scores

from cde_rag.errors import CDEWarning, StoreError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.filters import parse
from cde_rag.stores.qdrant import QdrantStore, calls, generations, read_context, vector_name, write_context
from cde_rag.stores.qdrant import engine as engine_module
from cde_rag.stores.qdrant.contexts import MANIFEST_ID, delete_context
from cde_rag.stores.qdrant.lease import leased
from cde_rag.stores.qdrant.manifest import load
from cde_rag.stores.qdrant.tables import ClientPoints
from cde_rag.stores.qdrant_base.filter_translation import PointFilter
from cde_rag.stores.qdrant_base.locks import ReadWriteLock
from cde_rag.stores.qdrant_base.payload import point_id
from cde_rag.stores.qdrant_base.selection import NONE
from cde_rag.stores.store import Store
from cde_rag.stores.text_analysis import ANALYZER, NEWEST


class TestQdrantInMemory(StoreContract):
    @pytest.fixture
    def new_place(self, client: QdrantClient) -> Callable[[], Opener]:
        numbers = itertools.count()

        def place() -> Opener:
            name = f"papers {next(numbers)}"
            return lambda: QdrantStore(client, name)

        return place


@pytest.mark.skipif(URL is None, reason="QDRANT_URL names no server")
class TestQdrantServer(StoreContract):
    @pytest.fixture(params=[None, "int8", "binary"])
    def new_place(self, request: pytest.FixtureRequest) -> Iterator[Callable[[], Opener]]:
        with collections_on(URL) as (client, new_name):

            def place() -> Opener:
                name = new_name()
                return lambda: QdrantStore(client, name, quantization=request.param)

            yield place


@pytest.fixture
def client() -> QdrantClient:
    return QdrantClient(":memory:")


@pytest.fixture
def store(client: QdrantClient) -> Store:
    return created(lambda: QdrantStore(client, "papers"))


def another(client: QdrantClient) -> QdrantStore:
    """The collection in another process: without this one's locks."""
    store = QdrantStore(client, "papers")
    store._engine.lock = ReadWriteLock()
    return store


# Others between two requests


OLD = [row("a", "create_path"), row("b", "river_bank", year=1), row("c", "-")]
CHANGES: dict[str, tuple[Callable[[Store], object], Sequence[Row]]] = {
    "replace": (
        lambda store: store.add([row("a", "-"), row("c", "bank_loan")], EXACT[:2], fingerprint=SPACE),
        [row("a", "-"), OLD[1], row("c", "bank_loan")],
    ),
    "add": (
        lambda store: store.add([row("d", "new_path")], EXACT[:1], fingerprint=SPACE),
        [*OLD, row("d", "new_path")],
    ),
    "delete": (lambda store: store.delete(["b"]), [OLD[0], OLD[2]]),
    "change metadata": (
        lambda store: store.update_metadata({"b": {"year": 2}}),
        [OLD[0], row("b", "river_bank", year=2), OLD[2]],
    ),
    "change settings": (lambda store: store.update_settings({"hybrid_weight": 0.5}), OLD),
}


@pytest.mark.parametrize("order", ["a change while texts are indexed", "texts are indexed while a change is made"])
@pytest.mark.parametrize("change", CHANGES)
def test_between_any_two_requests_of_another_process_records_keep_the_terms_of_their_text(
    change: str, order: str
) -> None:
    made, rows = CHANGES[change]
    for number in itertools.count(1):
        client = QdrantClient(":memory:")
        QdrantStore(client, "papers").create(dim=4, fingerprint=SPACE, context=b"one", settings={})
        QdrantStore(client, "papers").add(OLD, EXACT[:3], fingerprint=SPACE)
        store, other = QdrantStore(client, "papers"), another(client)
        steps: list[Callable[[], object]] = [store.index_texts, lambda other=other: made(other)]
        if order.startswith("texts"):
            steps = [lambda store=store: made(store), other.index_texts]
        preceded = Preceded(client, number, steps[1])
        steps[0]()
        if preceded.left > 0:
            assert number > 1
            return
        assert store.verify() == [], f"request {number}"
        settings = store.manifest().settings
        assert settings == {ANALYZER: NEWEST.name} | ({"hybrid_weight": 0.5} if change == "change settings" else {})
        assert {one.record.id: one.record for one in store.scroll()} == {one.record.id: one.record for one in rows}
        for query in ("path", "create_path", "river bank", "loan"):
            assert_found(store, rows, query, 5, point_scores)


# Kills


def state(store: Store) -> Any:
    if not store.exists():
        return None
    manifest = store.manifest()
    rows = list(store.scroll())
    ids = [row.record.id for row in rows]
    vectors = store.vectors(ids, fingerprint=manifest.fingerprint)
    hits = store.search(EXACT[:1], 5, fingerprint=manifest.fingerprint)
    return manifest, store.context(), rows, vectors.tolist(), hits


ROWS = [row("a", year=1), row("b"), row("c")]
LIFE: list[Callable[[Store], object]] = [
    lambda store: store.create(dim=4, fingerprint=SPACE, context=b"one", settings={}),
    lambda store: store.add(ROWS, EXACT[:3], fingerprint=SPACE),
    lambda store: store.add([row("b", "new"), row("d")], EXACT[4:6], fingerprint=SPACE),
    lambda store: store.update_metadata({"a": {"year": 2}}),
    lambda store: store.delete(["c"]),
    lambda store: store.create_generation(fingerprint=OTHER, context=b"two"),
    lambda store: store.add_to_generation(2, store.lacking(2), ["1", "2", "3"], EXACT[5:8]),
    lambda store: store.activate(2),
    lambda store: store.add([row("b", "newer")], EXACT[9:10], fingerprint=OTHER),
    lambda store: store.drop(1),
    lambda store: store.create_generation(fingerprint=SPACE, context=b"three"),
    lambda store: store.drop(3),
]


def lived(client: QdrantClient, steps: int) -> Store:
    store = QdrantStore(client, "papers")
    for step in LIFE[:steps]:
        step(store)
    return store


@functools.cache
def after_steps(steps: int) -> Any:
    """What a life without kills comes to."""
    store = lived(QdrantClient(":memory:"), steps)
    return state(store), store.generations()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(len(LIFE)))
def test_a_kill_between_requests_leaves_one_state_and_the_same_call_completes_it(step: int, after: bool) -> None:
    expected = after_steps(step + 1)
    for number in itertools.count(1):
        client = QdrantClient(":memory:")
        store = lived(client, step)
        before, mortal = state(store), Mortal(client, after=after)
        mortal.left = number
        try:
            LIFE[step](store)
        except Killed:
            mortal.left = 0
        else:
            assert number > 1
            return
        store = QdrantStore(client, "papers")
        assert not store.exists() or store.verify() == []
        if not store.exists() or (state(store), store.generations()) != expected:
            assert state(store) == before, f"request {number}"
            LIFE[step](store)
        assert (state(store), store.generations()) == expected
        for later in LIFE[step + 1 :]:
            later(store)
        assert (state(store), store.generations()) == after_steps(len(LIFE))
        assert store.verify() == []
        assert read_context(client, "papers") == b"two"


# Someone else's


def test_a_foreign_collection_keeps_its_points_and_vectors(client: QdrantClient) -> None:
    client.create_collection(
        "papers", vectors_config=models.VectorParams(size=3, distance=models.Distance.COSINE), metadata={"team": "x"}
    )
    store = created(lambda: QdrantStore(client, "papers"))
    theirs = [
        models.PointStruct(id=number, vector={"": [0.0, 1.0, number]}, payload={"text": "mine"}) for number in (1, 2)
    ]
    client.upsert("papers", theirs)
    rows = [row("a"), row("b")]
    store.add(rows, EXACT[:2], fingerprint=SPACE)
    assert_hits(store, rows, EXACT[:2], EXACT[0], 5, fingerprint=SPACE)
    assert (store.count(), list(store.scroll()), store.verify()) == (2, rows, [])
    number = store.create_generation(fingerprint=OTHER, context=b"other")
    assert store.lacking(number) == rows
    store.drop(number)
    store.delete(["a", "b"])
    assert client.count("papers").count == 2
    assert {point.payload["text"] for point in client.query_points("papers", [0.0, 1.0, 0.0], limit=9).points} == {
        "mine"
    }
    assert client.get_collection("papers").config.metadata["team"] == "x"


def test_a_foreign_collection_with_points_is_left_alone(client: QdrantClient) -> None:
    client.create_collection("papers", vectors_config=models.VectorParams(size=2, distance=models.Distance.COSINE))
    client.upsert("papers", [models.PointStruct(id=1, vector=[0.0, 1.0], payload={"text": "mine"})])
    before = client.get_collection("papers").config
    store = QdrantStore(client, "papers")
    assert not store.exists()
    with pytest.raises(StoreError, match=r"found a collection of Qdrant that is none.*adopt"):
        store.count()
    with pytest.raises(StoreError, match=r"expected a new collection, or one without points, found 1 .*adopt"):
        created(lambda: store)
    assert client.get_collection("papers").config == before
    client.upsert("papers", [models.PointStruct(id=2, vector=[0.0, 1.0])])  # as its application does


def active(client: QdrantClient) -> str:
    """Name of the vectors of the active generation."""
    return load(client, "papers").serving.vector


def test_points_with_our_vectors_and_no_record_are_passed_over(client: QdrantClient, store: Store) -> None:
    theirs = [
        models.PointStruct(id=number, vector={active(client): EXACT[0].tolist()}, payload={}) for number in range(99)
    ]
    client.upsert("papers", theirs)
    store.add([row("a")], EXACT[1:2], fingerprint=SPACE)
    assert_hits(store, [row("a")], EXACT[1:2], EXACT[0], 5, fingerprint=SPACE)
    assert store.verify() == []


def test_what_others_keep_in_a_record_stays(client: QdrantClient) -> None:
    client.create_collection(
        "papers", vectors_config={"theirs": models.VectorParams(size=2, distance=models.Distance.DOT)}
    )
    store = created(lambda: QdrantStore(client, "papers"))
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    client.set_payload("papers", {"label": 7}, [point_id("a")])
    client.update_vectors("papers", [models.PointVectors(id=point_id("a"), vector={"theirs": [0.5, 2.0]})])
    store.add([row("a", "new", year=1)], EXACT[1:2], fingerprint=SPACE)
    store.update_metadata({"a": {"year": 2}})
    (point,) = client.retrieve("papers", [point_id("a")], with_vectors=True)
    assert point.payload["label"] == 7
    assert point.payload["metadata"] == {"year": 2}
    assert point.vector["theirs"] == [0.5, 2.0]
    assert store.verify() == []


def test_an_alias_stands_for_its_collection(client: QdrantClient, store: Store) -> None:
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    create = models.CreateAlias(collection_name="papers", alias_name="live")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    other = QdrantStore(client, "live")
    other.add([row("b")], EXACT[1:2], fingerprint=SPACE)
    assert other.context() == store.context()
    assert list(store.scroll()) == list(other.scroll()) == [row("a"), row("b")]


def test_vectors_of_another_size_are_in_the_way(client: QdrantClient) -> None:
    params = models.VectorParams(size=5, distance=models.Distance.DOT)
    client.create_collection("papers", vectors_config={vector_name(SPACE): params})
    with pytest.raises(StoreError, match="size 4"):
        created(lambda: QdrantStore(client, "papers"))


# Damage


DAMAGE: dict[str, dict[str, Any]] = {
    "text": {"text": "another"},
    "title": {"title": None},
    "metadata": {"metadata": {"year": 3}},
    "metadata that is no JSON": {"metadata": "{"},
    "id": {"cde_id": "b"},
    "order": {"cde_order": 7},
    "digest": {"active": {"digest": "x", "checksum": "y"}},
    "no digest": {"active": None},
}


@pytest.mark.parametrize("payload", DAMAGE.values(), ids=DAMAGE)
def test_a_changed_payload_is_found_when_it_is_returned(
    client: QdrantClient, store: Store, payload: dict[str, Any]
) -> None:
    store.add([row("a", year=2)], EXACT[:1], fingerprint=SPACE)
    named = {active(client) if key == "active" else key: value for key, value in payload.items()}
    client.set_payload("papers", named, [point_id("a")])
    assert store.verify() != []
    with pytest.raises(StoreFormatError):
        store.search(EXACT[:1], 1, fingerprint=SPACE)


@pytest.mark.parametrize("payload", [{"cde_metadata": {}}, {"cde_order": None}, {"cde_order": 0}, {"cde_order": "x"}])
def test_a_record_that_filters_or_paging_would_miss_is_found(
    client: QdrantClient, store: Store, payload: dict[str, Any]
) -> None:
    store.add([row("a", year=2)], EXACT[:1], fingerprint=SPACE)
    client.set_payload("papers", payload, [point_id("a")])
    assert store.verify() != []


def test_a_changed_vector_is_found(client: QdrantClient, store: Store) -> None:
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    client.update_vectors("papers", [models.PointVectors(id=point_id("a"), vector={active(client): [0, 0, 0, 1.0]})])
    for call in (
        lambda: store.search(EXACT[3:4], 1, fingerprint=SPACE),
        lambda: store.vectors(["a"], fingerprint=SPACE),
    ):
        with pytest.raises(StoreFormatError, match="'a'"):
            call()
    assert len(store.verify()) == 1
    client.delete_vectors("papers", [active(client)], [point_id("a")])
    assert "found none" in store.verify()[0].found


def test_a_changed_manifest_or_context_is_found(client: QdrantClient, store: Store) -> None:
    name, (point,) = "papers__cde_contexts", client.retrieve("papers__cde_contexts", [MANIFEST_ID])
    manifest = (point.payload or {})["manifest"]
    for harmed in (manifest | {"dim": 5}, manifest | {"format": 2}, manifest | {"format": 6}, 7):
        client.set_payload(name, {"manifest": harmed}, [MANIFEST_ID])
        with pytest.raises(StoreFormatError):
            store.manifest()
    client.set_payload(name, {"manifest": manifest}, [MANIFEST_ID])
    assert store.verify() == []
    client.delete(name, [id_ for id_ in point_ids(client, name) if id_ != MANIFEST_ID])
    assert "write_context" in store.verify()[0].found
    client.delete_collection(name)
    with pytest.raises(StoreFormatError, match=r"papers__cde_contexts: expected the manifest of a store, found none\."):
        store.verify()


def point_ids(client: QdrantClient, collection: str) -> list[Any]:
    return [point.id for point in client.scroll(collection, limit=1000)[0]]


def in_metadata(client: QdrantClient, store: Store) -> None:
    """Make a store what versions before 0027 made: its manifest is in the collection's metadata."""
    manifest = dataclasses.replace(load(client, "papers"), version=0, run="", activating=None)
    client.delete("papers__cde_contexts", [MANIFEST_ID])
    client.update_collection("papers", metadata={"cde": manifest.to_metadata()})


def test_a_store_of_before_is_read_and_gets_its_manifest_point_with_the_first_change(
    client: QdrantClient, store: Store
) -> None:
    store.add(ROWS, EXACT[:3], fingerprint=SPACE)
    before = state(store)
    in_metadata(client, store)
    assert state(store) == before
    assert read_context(client, "papers") == store.context()
    store.add([row("d")], EXACT[3:4], fingerprint=SPACE)
    assert MANIFEST_ID not in point_ids(client, "papers__cde_contexts")
    number = store.create_generation(fingerprint=OTHER, context=b"two")
    assert client.get_collection("papers").config.metadata["cde"] == {"format": 4, "manifest": "papers__cde_contexts"}
    store.add_to_generation(number, store.lacking(number), list("1234"), EXACT[5:9])
    store.activate(number)
    assert read_context(client, "papers") == b"two"
    assert store.verify() == []


def test_a_collection_that_is_made_again_beside_the_contexts_of_another(client: QdrantClient, store: Store) -> None:
    store.create_generation(fingerprint=OTHER, context=b"two")
    client.delete_collection("papers")
    with pytest.raises(StoreError, match="found none"):
        store.manifest()
    again = created(lambda: QdrantStore(client, "papers"))
    again.add(ROWS, EXACT[:3], fingerprint=SPACE)
    assert again.create_generation(fingerprint=OTHER, context=b"three") == 2
    assert again.verify() == []


def test_no_two_runs_name_vectors_or_a_context_alike(client: QdrantClient, store: Store) -> None:
    """So that what a run writes or deletes late is not what another has made of the same space."""
    store.add(ROWS, EXACT[:3], fingerprint=SPACE)
    store.drop(store.create_generation(fingerprint=OTHER, context=b"two"))
    number = store.create_generation(fingerprint=OTHER, context=b"two")
    store.add_to_generation(number, store.lacking(number), list("123"), EXACT[5:8])
    store.activate(number)
    write_context(client, "papers", b"not two", fingerprint=OTHER)
    delete_context(client, "papers", OTHER)
    client.delete_payload("papers", [vector_name(OTHER)], models.Filter())
    names = [state.vector for state in load(client, "papers").generations]
    assert list(client.get_collection("papers").config.params.vectors) == names
    assert [name[:-8] for name in names] == [f"{vector_name(fingerprint)}_" for fingerprint in (SPACE, OTHER)]
    assert store.context() == read_context(client, "papers") == read_context(client, "papers", OTHER) == b"two"
    assert store.verify() == []
    assert store.search(EXACT[5:6], 1, fingerprint=OTHER)[0][0].id == "a"


# Filters


def test_common_filters_are_left_to_qdrant(client: QdrantClient, store: Store) -> None:
    """The bounds of what is not left to Qdrant differ, also where no point is marked."""
    for where in (
        {"year": 2020},
        {"year": {"gte": 2020, "lt": 2024}, "tags": {"in": ["a", "b"]}},
        {"not": {"draft": True}},
        {"or": [{"score": {"gt": 0.5}}, {"author.name": {"exists": False}}]},
        {"published": {"gte": {"date": "2024-01-31"}}},
        {"at": {"lt": 1_700_000_000_000}},
    ):
        translated = PointFilter(parse(where), store._engine.points(), load(client, "papers"))
        assert translated.certain != NONE, where


def test_a_translation_keeps_what_the_filter_keeps(client: QdrantClient, store: Store) -> None:
    store.add([Row(Record("book", "text", metadata=BOOK), "digest")], EXACT[:1], fingerprint=SPACE)
    inexact = 0
    for where, kept in CASES:
        found = PointFilter(parse(where), store._engine.points(), load(client, "papers"))
        most, least = (store._engine.points().count(bound) for bound in (found.selection, found.certain))
        assert least <= kept <= most, where
        inexact += least < most
    assert inexact < len(CASES) / 3


def test_another_client_filters_our_points(client: QdrantClient, store: Store) -> None:
    book = {**BOOK, "ratio": 1 / 3}  # which JSON does not carry
    store.add([Row(Record("book", "text", metadata=book), "digest"), *ROWS], EXACT[: 1 + len(ROWS)], fingerprint=SPACE)
    for condition in (
        models.FieldCondition(key="metadata.title", match=models.MatchValue(value="Contextual Document Embeddings")),
        models.FieldCondition(key="metadata.year", match=models.MatchValue(value=2024)),
        models.FieldCondition(key="metadata.draft", match=models.MatchValue(value=False)),
        models.FieldCondition(key="metadata.author.papers[].year", range=models.Range(lt=2024)),
        models.FieldCondition(key="metadata.ratio", range=models.Range(gt=0.33, lt=0.34)),
    ):
        found, _ = client.scroll("papers", models.Filter(must=[condition]))
        assert [(point.payload or {})["cde_id"] for point in found] == ["book"], condition
    assert store.get(["book"])[0].record.metadata == book
    assert store.verify() == []


def test_a_store_with_filters_of_before_is_searched_and_moved(client: QdrantClient, store: Store) -> None:
    rows = [row("a", year=1), row("b", year=2, on="2024-1-31")]
    store.add(rows, EXACT[:2], fingerprint=SPACE)
    for one in rows:
        old, (found,) = (
            {"cde_tokens": ["x"], "cde_numbers": {"n": [1]}},
            client.retrieve("papers", [point_id(one.record.id)]),
        )
        old["cde_metadata"] = (found.payload or {})["cde_metadata"]["checksum"]
        client.set_payload("papers", old, [point_id(one.record.id)])
    generations._changed(store._engine.points(), lambda manifest: dataclasses.replace(manifest, native=False))
    assert store.verify() == []
    assert [found.record.id for found in store.scroll(where={"year": {"gt": 1}})] == ["b"]
    assert (store.count({"year": 1}), store.count({"not": {"year": 1}})) == (1, 1)
    with pytest.raises(StoreError, match=r"index_texts\(\)"):
        store.add([row("c")], EXACT[2:3], fingerprint=SPACE)
    with pytest.raises(StoreError, match=r"index_texts\(\)"):
        store.update_metadata({"a": {}})
    store.index_texts()
    store.add([row("c", year=2)], EXACT[2:3], fingerprint=SPACE)
    assert [found.record.id for found in store.scroll(where={"year": {"gt": 1}})] == ["b", "c"]
    assert store.verify() == []
    assert not any({"cde_tokens", "cde_numbers"} & set(point.payload or {}) for point in client.scroll("papers")[0])


def test_a_filter_that_qdrant_keeps_too_much_for_finds_all(store: Store) -> None:
    matrix = units(300)
    rows = [row(str(number), name=f"{number % 100:02d} of many") for number in range(300)]
    store.add(rows, matrix, fingerprint=SPACE)
    where = {"name": {"contains": "07"}}
    kept = [7, 107, 207]
    assert_hits(store, [rows[at] for at in kept], matrix[kept], matrix[0], 10, fingerprint=SPACE, where=where)
    assert store.count(where) == 3


# The way there


def test_many_equal_scores_come_in_order_of_insertion(store: Store) -> None:
    rows = [row(str(number)) for number in range(200)]
    store.add(rows, np.repeat(EXACT[:1], 200, axis=0), fingerprint=SPACE)
    (hits,) = store.search(EXACT[:1], 5, fingerprint=SPACE)
    assert [hit.id for hit in hits] == ["0", "1", "2", "3", "4"]


def test_two_processes_may_give_the_same_place(client: QdrantClient) -> None:
    """They read the same last place, then both write."""
    store = created(lambda: QdrantStore(client, "papers"))
    real = ClientPoints.last_order
    try:
        ClientPoints.last_order = lambda self: 0
        for number in range(40):
            store.add([row(str(number))], EXACT[:1], fingerprint=SPACE)
    finally:
        ClientPoints.last_order = real
    seen = [row.record.id for row in store.scroll(page=3)]
    assert sorted(seen, key=int) == [str(number) for number in range(40)]
    assert [row.record.id for row in store.scroll()] == seen


def test_large_batches_go_in_several_requests(
    client: QdrantClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = client.upsert
    monkeypatch.setattr(
        client, "upsert", lambda name, points, **asked: (sizes.append(len(points)), real(name, points))[1]
    )
    rows = [row(str(number), "x" * 3_000_000, digest="digest") for number in range(5)]
    store.add(rows, EXACT[:5], fingerprint=SPACE)
    assert sizes == [2, 2, 1]
    assert list(store.scroll()) == rows


FAILURES: dict[str, Exception] = {
    "away": ResponseHandlingException(httpx.ConnectError("refused")),
    "busy": UnexpectedResponse(503, "Service Unavailable", b"", httpx.Headers()),
    "limited": ResourceExhaustedResponse("too many requests", 2),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_server_that_was_busy_or_away_is_asked_again(
    client: QdrantClient, store: Store, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(calls.time, "sleep", waits.append)
    fails = itertools.cycle([True, True, False])
    for name in WRITES | {"retrieve", "scroll", "count", "query_batch_points", "get_collection"}:

        def wrapped(real: Callable[..., Any], *args: Any, **asked: Any) -> Any:
            answer = real(*args, **asked)  # what was done before the answer got lost is done twice
            if next(fails):
                raise failure
            return answer

        monkeypatch.setattr(client, name, functools.partial(wrapped, getattr(client, name)))
    rows = [row("a"), row("b")]
    store.add(rows, EXACT[:2], fingerprint=SPACE)
    number = store.create_generation(fingerprint=OTHER, context=b"other")
    assert store.add_to_generation(number, rows, ["1", "2"], EXACT[2:4]) == 2
    store.activate(number)
    store.drop(1)
    assert_hits(store, rows, EXACT[2:4], EXACT[2], 2, fingerprint=OTHER)
    assert store.verify() == []
    assert min(waits) >= (2 if failure is FAILURES["limited"] else 0.1)


@pytest.mark.parametrize(("status", "tries"), [(503, 6), (403, 1)])
def test_a_server_that_stays_away_is_a_store_error(
    client: QdrantClient, store: Store, monkeypatch: pytest.MonkeyPatch, status: int, tries: int
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(calls.time, "sleep", waits.append)

    def fails(*args: Any, **asked: Any) -> Any:
        raise UnexpectedResponse(status, "no", b"said so", httpx.Headers())

    monkeypatch.setattr(client, "count", fails)
    with pytest.raises(StoreError, match="said so"):
        store.count()
    assert len(waits) == tries - 1


def test_a_folder_is_for_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LOCAL_POINTS", 2)
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    store = created(lambda: QdrantStore(client, "papers"))
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    with pytest.warns(CDEWarning, match="server"):
        store.add([row("c")], EXACT[2:3], fingerprint=SPACE)
    client.close()
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    again = QdrantStore(client, "papers")
    assert [found.record.id for found in again.scroll()] == ["a", "b", "c"]
    np.testing.assert_array_equal(again.vectors(["a", "b", "c"], fingerprint=SPACE), EXACT[:3])
    assert again.verify() == []
    client.close()


# The lease on a server, which memory can play too


def test_a_lease_is_one_runs(client: QdrantClient, store: Store) -> None:
    others = threading.active_count()
    with leased(client, "papers"), pytest.raises(StoreError, match="another"), leased(client, "papers"):
        pass
    with leased(client, "papers"):
        pass
    assert threading.active_count() == others  # what prolongs it has ended
    assert read_context(client, "papers") == store.context()


def test_the_lease_of_a_killed_run_ends(client: QdrantClient, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = leased(client, "papers")
    killed.__enter__()
    with pytest.raises(StoreError, match="seconds"), leased(client, "papers"):
        pass
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)
    with leased(client, "papers"):
        killed.__exit__(None, None, None)  # it is not the one that is held now
        with pytest.raises(StoreError), leased(client, "papers"):
            pass
