"""Codes, prefixes and indexes in stores of points: they find candidates, never answers; what a server is asked for."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import DIM, EXACT, OTHER, SPACE, Life, Opener, assert_hits, created, row, units
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.stateful import run_state_machine_as_test
from mortal import Killed, Mortal
from qdrant_client import QdrantClient, models
from server import URL, collections_on

from cde_rag.errors import StoreFormatError
from cde_rag.stores.qdrant import Hnsw, QdrantStore, vector_name
from cde_rag.stores.qdrant.manifest import load
from cde_rag.stores.qdrant_base.manifest import ANALYZED, FENCED, PointsManifest, prefix_name
from cde_rag.stores.qdrant_base.metadata_paths import MOST_INDEXED
from cde_rag.stores.qdrant_base.payload import point_id
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.quantization import prefix_dims, prefixes

MEMORY = Path("/dev/shm")
PREFIX = "prefix-2"


@pytest.fixture
def client() -> QdrantClient:
    return QdrantClient(":memory:")


on_a_server = pytest.param("server", marks=pytest.mark.skipif(URL is None, reason="QDRANT_URL names no server"))


@pytest.fixture(params=["qdrant", "edge", on_a_server])
def new_place(request: pytest.FixtureRequest, client: QdrantClient) -> Iterator[Callable[[], Opener]]:
    if request.param == "server":
        with collections_on(URL) as (there, new_name):

            def on_it() -> Opener:
                name = new_name()
                return lambda: QdrantStore(there, name, quantization=PREFIX)

            yield on_it
        return
    numbers, folder = itertools.count(), tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)

    def place() -> Opener:
        name = f"{next(numbers)}"
        if request.param == "qdrant":
            return lambda: QdrantStore(client, name, quantization=PREFIX)
        return lambda: QdrantEdgeStore(Path(folder.name) / name, quantization=PREFIX)

    with folder:
        yield place


# The names


@pytest.mark.parametrize(
    "name", ["int4", "prefix-", "prefix-0", "prefix-07", "prefix--2", "prefix-9999999", "Int8", ""]
)
@pytest.mark.parametrize("make", [lambda name: QdrantStore(QdrantClient(":memory:"), "x", quantization=name),
                                  lambda name: QdrantEdgeStore("/nowhere", quantization=name)])  # fmt: skip
def test_other_names_are_refused(make: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match=f"found '{name}'"):
        make(name)


def test_a_prefix_is_shorter_than_the_vectors(new_place: Callable[[], Opener]) -> None:
    with pytest.raises(ValueError, match="shorter than vectors of 2 dimensions"):
        created(new_place(), dim=2)


@pytest.mark.parametrize("asked", [{"m": 1}, {"ef_construct": 0}, {"ef": 0}, {"m": 10**6}])
def test_senseless_graphs_are_refused(asked: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(asked))):
        Hnsw(**asked)


@given(arrays(np.float32, (5, 7), elements=st.floats(-1, 1, width=32)), st.integers(1, 6))
def test_prefixes_are_unit_vectors_in_the_same_direction(vectors: np.ndarray, dims: int) -> None:
    for vector, short in zip(vectors.astype(np.float64), prefixes(vectors, dims), strict=True):
        norm = np.sqrt((vector[:dims] ** 2).sum())
        assert short.shape == (dims,)
        if norm > 1e-30:
            np.testing.assert_allclose(short * norm, vector[:dims], rtol=1e-5, atol=1e-5 * norm)
        elif norm == 0:
            assert not short.any()


def test_names_that_are_no_prefix() -> None:
    assert [prefix_dims(name) for name in (None, "int8", "binary", "prefix-128")] == [None, None, None, 128]


# Prefixes


@pytest.mark.long  # test_qdrant.py leads the life without prefixes; what is of prefixes follows here
def test_a_life_with_prefixes_is_that_of_every_store(client: QdrantClient) -> None:
    names = itertools.count()

    def life() -> Life:
        name = str(next(names))
        return Life(lambda: QdrantStore(client, name, quantization=PREFIX))

    run_state_machine_as_test(life, settings=settings(max_examples=20, stateful_step_count=20))


def test_prefixes_find_and_vectors_score(new_place: Callable[[], Opener]) -> None:
    """The best by the prefix alone is another: of 600 rows half have the query's prefix, and nothing else of it."""
    store = created(new_place())
    near = np.tile(np.array([[0.6, 0, 0.8, 0]], np.float32), (300, 1))
    far = np.tile(np.array([[0.0, 0.6, 0.0, 0.8]], np.float32), (300, 1))
    best = np.array([[0.99, 0.0, 0.0, 0.0]], np.float32)
    best[0, 3] = np.sqrt(1 - best[0, 0] ** 2)
    matrix = np.concatenate([far, near, best])
    rows = [row(str(number)) for number in range(len(matrix))]
    store.add(rows, matrix, fingerprint=SPACE)
    (hits,) = store.search(EXACT[:1], 1, fingerprint=SPACE)
    assert hits[0].score in (pytest.approx(0.99, abs=1e-6), pytest.approx(0.6, abs=1e-6))
    (every,) = store.search(EXACT[:1], 601, fingerprint=SPACE)
    assert every[0].id == "600"
    assert len({hit.id for hit in every}) == 601
    (filtered,) = store.search(EXACT[:1], 5, fingerprint=SPACE, where={"year": 1})
    assert filtered == []
    assert store.verify() == []


def test_generations_bring_and_take_their_prefixes(new_place: Callable[[], Opener]) -> None:
    place = new_place()
    store = created(place)
    rows, matrix = [row("a"), row("b"), row("c")], units(3)
    store.add(rows, matrix, fingerprint=SPACE)
    number = store.create_generation(fingerprint=OTHER, context=b"other")
    assert store.add_to_generation(number, store.lacking(number), ["1", "2", "3"], matrix[::-1].copy()) == 3
    store.add([row("b", "new")], matrix[:1], fingerprint=SPACE)
    store.add_to_generation(number, store.lacking(number), ["4"], matrix[1:2])
    store.activate(number)
    again = place()
    assert again.verify() == []
    assert_hits(again, list(again.scroll()), matrix[[2, 1, 0]], matrix[0], 3, fingerprint=OTHER)
    again.drop(1)
    assert again.verify() == []
    assert_hits(again, list(again.scroll()), matrix[[2, 1, 0]], matrix[0], 3, fingerprint=OTHER)


def test_an_opened_store_keeps_its_prefixes(client: QdrantClient, tmp_path: Path) -> None:
    for place in (
        lambda **asked: QdrantStore(client, "papers", **asked),
        lambda **asked: QdrantEdgeStore(tmp_path / "papers", **asked),
    ):
        store = created(lambda place=place: place(quantization=PREFIX))
        store.close()
        again = place()
        again.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
        assert again.verify() == []
        assert_hits(again, [row("a"), row("b")], EXACT[:2], EXACT[1], 2, fingerprint=SPACE)
        again.close()


def test_a_store_with_prefixes_is_not_for_versions_that_do_not_write_them(client: QdrantClient) -> None:
    created(lambda: QdrantStore(client, "plain"))
    created(lambda: QdrantStore(client, "prefixed", quantization=PREFIX))
    assert {client.get_collection(name).config.metadata["cde"]["format"] for name in ("plain", "prefixed")} == {FENCED}
    found = {name: load(client, name).to_metadata() for name in ("plain", "prefixed")}
    assert "prefix" not in found["plain"]
    assert PointsManifest.from_metadata(found["prefixed"], "here").prefix == 2
    with pytest.raises(StoreFormatError, match="Update"):
        PointsManifest.from_metadata(found["prefixed"] | {"format": ANALYZED + 1}, "here")


def test_a_changed_or_missing_prefix_is_found(client: QdrantClient) -> None:
    store = created(lambda: QdrantStore(client, "papers", quantization=PREFIX))
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    assert store.verify() == []
    short = prefix_name(newest(client), 2)
    client.update_vectors("papers", [models.PointVectors(id=point_id("a"), vector={short: [0.0, 1.0]})])
    assert [damage.found for damage in store.verify()] == ["Expected the prefix of its vector, found another."]
    client.delete_vectors("papers", [short], [point_id("a")])
    assert [damage.found for damage in store.verify()] == ["Expected the prefix of its vector, found none."]
    client.delete_vector_name("papers", short)
    assert "2 dimensions, found None" in store.verify()[0].found


STEPS: list[Callable[[QdrantStore], object]] = [
    lambda store: store.create(dim=DIM, fingerprint=SPACE, context=b"one", settings={}),
    lambda store: store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE),
    lambda store: store.create_generation(fingerprint=OTHER, context=b"two"),
    lambda store: store.add_to_generation(2, store.lacking(2), ["1", "2"], EXACT[5:7]),
    lambda store: store.activate(2),
    lambda store: store.drop(1),
]


def lived(steps: int) -> QdrantStore:
    store = QdrantStore(QdrantClient(":memory:"), "papers", quantization=PREFIX)
    for step in STEPS[:steps]:
        step(store)
    return store


def told(store: QdrantStore) -> Any:
    return (store.generations(), list(store.scroll())) if store.exists() else None


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_kill_between_requests_is_mended_by_the_same_call(step: int) -> None:
    expected = told(lived(step + 1))
    for number in itertools.count(1):
        store = lived(step)
        mortal = Mortal(store.client, after=True)
        mortal.left = number
        try:
            STEPS[step](store)
        except Killed:
            mortal.left = 0
        else:
            return
        assert not store.exists() or store.verify() == []
        for later in STEPS[step + (told(store) == expected) :]:
            later(store)
        assert store.verify() == []
        assert_hits(store, list(store.scroll()), EXACT[5:7], EXACT[5], 2, fingerprint=OTHER)
        store.drop(store.create_generation(fingerprint="c3" * 32, context=b"three"))  # takes with it what was left
        names = store.client.get_collection("papers").config.params.vectors
        whole = load(store.client, "papers").serving.vector
        assert whole.startswith(vector_name(OTHER))
        assert set(names) == {whole, prefix_name(whole, 2)}


# What a server is asked for


def newest(client: QdrantClient) -> str:
    """Name of the vectors of the newest generation."""
    return load(client, "papers").generations[-1].vector


@pytest.fixture
def server(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Memory that plays a server; the requests of searches, and what vectors were made and changed to be."""
    asked_for: list[Any] = []
    search, update, create = client.query_batch_points, client.update_collection, client.create_collection

    def searching(collection: str, requests: list[models.QueryRequest]) -> Any:
        asked_for.extend(requests)
        plain = [one.model_copy(update={"params": None}) for one in requests]
        for one in plain:
            if isinstance(one.prefetch, models.Prefetch):
                one.prefetch = one.prefetch.model_copy(update={"params": None})
        return search(collection, plain)

    def updating(collection: str, **asked: Any) -> Any:
        asked_for.extend(asked.get("vectors_config", {}).items())
        return update(collection, **asked)

    def creating(collection: str, **asked: Any) -> Any:
        asked_for.extend(asked["vectors_config"].items())
        return create(collection, **asked)

    monkeypatch.setattr(client, "query_batch_points", searching)
    monkeypatch.setattr(client, "update_collection", updating)
    monkeypatch.setattr(client, "create_collection", creating)
    monkeypatch.setattr(client, "create_payload_index", lambda *_, **__: None)
    return asked_for


def on_server(client: QdrantClient, **asked: Any) -> QdrantStore:
    store = QdrantStore(client, "papers", **asked)
    store._engine.local = False
    return store


def test_codes_are_asked_for_in_every_generation(client: QdrantClient, server: list[Any]) -> None:
    store = created(lambda: on_server(client, quantization="int8", hnsw=Hnsw(m=24, ef_construct=200, ef=300)))
    ((name, params),) = server
    assert name == newest(client)
    assert (params.hnsw_config.m, params.hnsw_config.ef_construct) == (24, 200)
    assert params.quantization_config.scalar.type == models.ScalarType.INT8
    del server[:]
    on_server(client).create_generation(fingerprint=OTHER, context=b"other")  # whoever opens it knows nothing of codes
    ((name, diff),) = server
    assert (name, diff.hnsw_config.m) == (newest(client), 24)
    assert diff.quantization_config == params.quantization_config
    del server[:]
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    store.search(EXACT[:1], 1, fingerprint=SPACE)
    store.search(EXACT[:1], 2, fingerprint=SPACE)
    walked, _, exact = server  # HNSW found one of two, so that all are looked at
    assert (walked.params.exact, walked.params.hnsw_ef, walked.params.quantization.rescore) == (False, 300, True)
    assert walked.params.quantization.oversampling > 1
    assert (exact.params.exact, exact.params.quantization.ignore) == (True, True)


def test_a_graph_of_prefixes_and_none_of_whole_vectors(client: QdrantClient, server: list[Any]) -> None:
    store = created(lambda: on_server(client, quantization=PREFIX, hnsw=Hnsw(m=24)))
    asked = {name: (params.size, params.hnsw_config.m) for name, params in server}
    short = prefix_name(newest(client), 2)
    assert asked == {newest(client): (DIM, 0), short: (2, 24)}
    del server[:]
    on_server(client).create_generation(fingerprint=OTHER, context=b"other")
    diffs = {name: diff.hnsw_config.m for name, diff in server}
    assert diffs == {newest(client): 0, prefix_name(newest(client), 2): 24}
    del server[:]
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    assert_hits(store, [row("a"), row("b")], EXACT[:2], EXACT[0], 2, fingerprint=SPACE, where={"not": {"year": 1}})
    (walked,) = server
    assert (walked.prefetch.using, walked.prefetch.query) == (short, [1.0, 0.0])
    assert walked.prefetch.limit >= 4 * walked.limit
    assert walked.prefetch.filter == walked.filter is not None


def test_a_plain_store_asks_for_nothing_new(client: QdrantClient, server: list[Any]) -> None:
    created(lambda: on_server(client)).create_generation(fingerprint=OTHER, context=b"other")
    ((_, params),) = server
    assert (params.hnsw_config, params.quantization_config) == (None, None)


def test_paths_are_indexed_once_and_not_without_end(client: QdrantClient, server: list[Any]) -> None:
    asked: list[tuple[str, str]] = []
    client.create_payload_index = lambda collection, key, schema, wait: asked.append((key, schema.value))
    store = created(lambda: on_server(client))
    del asked[:]
    store.add([row("a", year=2020, name="x"), row("b", year=2021)], EXACT[:2], fingerprint=SPACE)
    assert asked == [("metadata.year", "float"), ("metadata.name", "keyword")]
    del asked[:]
    store.update_metadata({"a": {"year": 1, "price": {"net": 2.5}, "done": True, "on": "2024-01-31"}})
    assert asked == [
        ("metadata.price", "keyword"),
        ("metadata.price.net", "float"),
        ("metadata.price[].net", "float"),
        ("metadata.done", "bool"),
        ("metadata.on", "datetime"),
        ('metadata."price.net"', "float"),
    ]
    del asked[:]
    store.update_metadata({"b": {"author.name": "Ann"}})  # a filter asks for all paths of a name
    assert asked == [
        ('metadata."author.name"', "keyword"),
        ("metadata.author.name", "keyword"),
        ("metadata.author[].name", "keyword"),
    ]
    store.add([row("c", **{f"n{number}": number for number in range(200)})], EXACT[:1], fingerprint=SPACE)
    assert len(set(asked)) == len(asked) <= MOST_INDEXED + 5  # memory tells of no index that is there
    assert store.count({"n7": {"gte": 7}}) == store.count({"n199": {"gte": 7}}) == 1


@pytest.mark.long
def test_a_shard_indexes_paths_and_not_without_end(tmp_path: Path) -> None:
    store = created(lambda: QdrantEdgeStore(tmp_path / "papers"))
    always = store._engine.points.indexed().keys()
    store.add([row("a", year=2020, name="x"), row("b", year=2021)], EXACT[:2], fingerprint=SPACE)
    found = store._engine.points.indexed()
    assert {key: found[key] for key in found.keys() - always} == {"metadata.year": "float", "metadata.name": "keyword"}
    store.create_generation(fingerprint=OTHER, context=b"other")
    store.update_metadata({"a": {"year": 1, "price": {"net": 2.5}}})
    assert store._engine.points.indexed().keys() >= {
        "metadata.price.net",
        "metadata.price[].net",
        'metadata."price.net"',
    }
    store.close()
    store.add([row("c", **{f"n{number}": number for number in range(200)})], EXACT[:1], fingerprint=SPACE)
    assert len(store._engine.points.indexed()) == MOST_INDEXED
    for number in range(0, 200, 50):
        assert store.count({f"n{number}": {"gte": number, "lt": number + 1}}) == 1
    assert store.count({"price.net": {"gt": 2}}) == 1
    assert store.verify() == []


@pytest.mark.parametrize("first", [2024, "2024-01-31"])
def test_an_index_of_numbers_hides_no_dates_nor_the_other_way_round(tmp_path: Path, first: object) -> None:
    """The engine answers ranges by an index of the other kind with nothing."""
    store = created(lambda: QdrantEdgeStore(tmp_path / "papers"))
    store.add([row("a", on=first)], EXACT[:1], fingerprint=SPACE)
    store.add([row("b", on=2024), row("c", on="2024-01-31")], EXACT[1:3], fingerprint=SPACE)
    assert store.count({"on": {"gte": 2000}}) == (2 if first == 2024 else 1)
    assert store.count({"on": {"gte": {"date": "2024-01-01"}}}) == (1 if first == 2024 else 2)
