"""Whatever index a FaissStore has, it answers nearly as brute force does; which one it is, is kept and can change."""

import itertools
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import SPACE, row, units

from cde_rag.errors import StoreError
from cde_rag.records import Row
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.faiss import FLAT_ROWS, FaissStore
from cde_rag.stores.faiss import search as readers
from cde_rag.stores.faiss.index import Index, IndexConfig
from cde_rag.stores.faiss.vectors import VectorBlocks, extended
from cde_rag.stores.filters import matches

DIM, ROWS, CLUSTERS = 32, 2000, 40
MEMORY = Path("/dev/shm")
QUANTIZATIONS = (None, "int8", "binary", "prefix-20")
KINDS = [kind for kind in itertools.product(("flat", "hnsw", "ivf"), QUANTIZATIONS) if kind != ("flat", None)]
# `make test` tries each index and each quantization once.
QUICK = {("hnsw", None), ("ivf", "binary"), ("flat", "int8"), ("hnsw", "prefix-20")}
every_kind = pytest.mark.parametrize(
    ("index", "quantization"),
    [kind if kind in QUICK else pytest.param(*kind, marks=pytest.mark.long) for kind in KINDS],
)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def clustered(rows: int, seed: int = 0, *, spread: float = 0.6) -> np.ndarray:
    """Vectors around `CLUSTERS` centres, one centre after another."""
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, DIM))
    near = np.random.default_rng(seed).standard_normal((rows, DIM))
    vectors = (centres[np.arange(rows) * CLUSTERS // rows] + spread * near).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows_of(count: int, *, first: int = 0) -> list[Row]:
    return [row(str(first + place), tenth=place % 10, cluster=place * CLUSTERS // count) for place in range(count)]


@pytest.fixture(scope="module")
def plain() -> Iterator[Path]:
    """A store of `ROWS` records without an index, to copy."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        store = FaissStore(Path(folder) / "papers.faiss", index="flat")
        store.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
        store.add(rows_of(ROWS), clustered(ROWS), fingerprint=SPACE)
        store.close()
        yield store.folder


@pytest.fixture
def store(plain: Path, scratch: Path) -> FaissStore:
    return FaissStore(shutil.copytree(plain, scratch / "papers.faiss"))


def recall(
    store: FaissStore, rows: list[Row], matrix: np.ndarray, where: dict[str, Any] | None = None, k: int = 10
) -> float:
    """The share of the best that is found; there are as many hits as can be, and their scores are exact."""
    kept = [place for place, row in enumerate(rows) if where is None or matches(where, row.record.metadata)]
    place_of = {rows[place].record.id: number for number, place in enumerate(kept)}
    found = 0
    queries = clustered(16 if k < 100 else 1, seed=9)
    scores = queries.astype(np.float64) @ matrix[kept].T.astype(np.float64)
    for exact, hits in zip(scores, store.search(queries, k, fingerprint=SPACE, where=where), strict=True):
        best = np.argsort(-exact, kind="stable")[:k]
        assert len(hits) == len(best)
        places = [place_of[hit.id] for hit in hits]
        np.testing.assert_allclose([hit.score for hit in hits], exact[places], atol=1e-9)
        assert places == sorted(places, key=lambda place: (-round(exact[place], 12), place))
        found += len(set(places) & set(best.tolist()))
    return found / (len(queries) * min(k, len(kept))) if kept else 1.0


@every_kind
def test_finds_nearly_all_under_every_filter(
    store: FaissStore, index: str, quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters by what vectors know nothing of, and by where they lie; an index of codes is scanned for the latter."""
    monkeypatch.setattr(readers, "_SCANNED_ROWS", 100)
    rows, matrix = rows_of(ROWS), clustered(ROWS)
    store.reindex(index=index, quantization=quantization)
    for where in (
        None,
        {"tenth": {"lt": 7}},
        {"tenth": {"lt": 3}},
        {"tenth": 3, "cluster": 1},
        {"cluster": {"lt": 30}},
        {"cluster": {"gte": 30}},
        {"cluster": {"lt": 3}},
        {"cluster": 99},
    ):
        assert recall(store, rows, matrix, where) >= 0.95, where
    assert recall(store, rows, matrix, k=ROWS // 10 + 1) == 1
    assert recall(store, rows, matrix, k=ROWS + 1) == 1


@pytest.mark.parametrize(("index", "spread"), [("hnsw", 0.6), ("ivf", 3.0)])
def test_the_search_is_wider_under_a_strict_filter(tmp_path: Path, index: str, spread: float) -> None:
    """With the beam, or the cells, of a search without a filter, 92 % of the best are found."""
    matrix, queries = clustered(4000, spread=spread), clustered(32, seed=5, spread=spread)
    checksums = np.array([checksum for _, checksum in extended(matrix, rows=0, last=0)])
    vectors = VectorBlocks(tmp_path / "vectors", matrix, checksums, {})
    ann_index = Index.empty(IndexConfig(index), vectors)
    ann_index.extend(vectors)
    among = np.random.default_rng(3).random(len(matrix)) < 0.02
    allowed = np.flatnonzero(among)
    found = ann_index.search(queries, 10, among=among)
    best = [allowed[np.argsort(-line)[:10]] for line in queries @ matrix[allowed].T]
    assert np.mean([np.isin(rows, hits).mean() for rows, hits in zip(best, found, strict=True)]) >= 0.99


@every_kind
def test_knows_what_came_and_went_since(store: FaissStore, index: str, quantization: str | None) -> None:
    rows, matrix = rows_of(ROWS), clustered(ROWS)
    store.reindex(index=index, quantization=quantization)
    (file,) = store.folder.glob("index-*")
    store.delete([row.record.id for row in rows[:50]])
    store.add(rows[100:150], -matrix[100:150], fingerprint=SPACE)
    more = rows_of(100, first=ROWS)
    store.add(more, clustered(100, seed=3), fingerprint=SPACE)
    assert list(store.folder.glob("index-*")) == [file], "a tenth may be missing"
    matrix[100:150] *= -1
    rows, matrix = [*rows[50:], *more], np.concatenate([matrix[50:], clustered(100, seed=3)])
    assert recall(store, rows, matrix) >= 0.95
    assert recall(store, rows, matrix, {"tenth": {"gte": 3}}) >= 0.95
    store.compact()
    assert list(store.folder.glob("index-*")) != [file]
    assert recall(store, rows, matrix) >= 0.95
    assert store.verify() == []


@every_kind
@pytest.mark.parametrize("dim", [2, 21])
def test_begins_with_one_record(scratch: Path, index: str, quantization: str | None, dim: int) -> None:
    quantization = "prefix-1" if quantization == "prefix-20" and dim == 2 else quantization
    store = FaissStore(scratch / "papers.faiss", index=index, quantization=quantization)
    store.create(dim=dim, fingerprint=SPACE, context=b"", settings={})
    matrix = units(40, dim)
    for some in (slice(0, 1), slice(1, 2), slice(2, 40)):
        store.add(rows_of(40)[some], matrix[some], fingerprint=SPACE)
        for k in (1, 3, 50):
            hits = store.search(matrix[:1], k, fingerprint=SPACE)[0]
            assert len(hits) == min(k, store.count())
    assert store.search(matrix[:1], 1, fingerprint=SPACE)[0][0].id == "0"
    assert store.verify() == []


def test_too_few_candidates_are_not_the_end(store: FaissStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, matrix, search = rows_of(ROWS), clustered(ROWS), Index.search
    store.reindex(index="hnsw")
    monkeypatch.setattr(Index, "search", lambda *asked, **named: [found[:9] for found in search(*asked, **named)])
    assert recall(store, rows, matrix) == 1
    assert recall(store, rows, matrix, {"tenth": {"lt": 7}}) == 1


def test_a_deletion_that_moves_the_vectors_renews_it(store: FaissStore) -> None:
    store.reindex(index="hnsw", quantization="int8")
    store.delete([row.record.id for row in rows_of(ROWS)[: ROWS * 3 // 4]])
    state = manifest(store)["generations"][0]
    assert state["rows"] == state["index"]["rows"] == ROWS // 4
    assert recall(store, rows_of(ROWS)[ROWS * 3 // 4 :], clustered(ROWS)[ROWS * 3 // 4 :]) >= 0.95


@pytest.mark.parametrize(("index", "quantization"), [("hnsw", None), ("ivf", "int8")])
def test_is_extended_and_at_last_fitted_again(scratch: Path, index: str, quantization: str | None) -> None:
    store = FaissStore(scratch / "papers.faiss", index=index, quantization=quantization)
    store.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
    fitted = []
    for number in range(6):
        store.add(rows_of(400, first=number * 400), clustered(400, seed=number), fingerprint=SPACE)
        file = manifest(store)["generations"][0]["index"]
        assert file["rows"] == (number + 1) * 400
        fitted.append(file["trained"])
    assert fitted == ([0] * 6 if index == "hnsw" else [400, 400, 1200, 1200, 1200, 1200])
    all_rows = [row for number in range(6) for row in rows_of(400, first=number * 400)]
    assert recall(store, all_rows, np.concatenate([clustered(400, seed=number) for number in range(6)])) >= 0.95


def manifest(store: FaissStore) -> dict[str, Any]:
    connection = sqlite3.connect(store.folder / "collection.sqlite")
    ((found,),) = connection.execute("SELECT json FROM manifest")
    connection.close()
    return json.loads(found)


def test_each_becomes_each_without_a_vector_written(store: FaissStore) -> None:
    rows, matrix, other = rows_of(ROWS), clustered(ROWS), FaissStore(store.folder)
    (vectors,) = store.folder.glob("vectors-*")
    before = vectors.stat().st_mtime_ns
    for index, quantization in [*KINDS, ("flat", None), ("hnsw", "binary"), ("auto", None)]:
        store.reindex(index=index, quantization=quantization)
        (state,) = manifest(store)["generations"]
        if IndexConfig(index, quantization).at(ROWS).has_file:
            assert (state["index"]["index"], state["index"]["quantization"]) == (index, quantization)
            assert [path.name for path in store.folder.glob("index-*")] == [state["index"]["name"]]
        else:
            assert state["index"] is None
            assert list(store.folder.glob("index-*")) == []
        assert recall(other, rows, matrix) >= 0.95, "a reader follows"
        assert store.verify() == []
    assert vectors.stat().st_mtime_ns == before


def test_is_kept_and_not_asked_for_again(plain: Path, scratch: Path) -> None:
    store = FaissStore(scratch / "papers.faiss", index="ivf", quantization="int8")
    store.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
    FaissStore(store.folder).add(rows_of(ROWS), clustered(ROWS), fingerprint=SPACE)
    assert manifest(store)["generations"][0]["index"]["index"] == "ivf"
    for asked in ({"index": "ivf"}, {"quantization": "int8"}, {"index": "ivf", "quantization": "int8"}):
        assert FaissStore(store.folder, **asked).count() == ROWS
    for asked in ({"index": "hnsw"}, {"index": "auto"}, {"quantization": "binary"}):
        with pytest.raises(StoreError, match=r"found one with index='ivf', quantization='int8'\. .* reindex"):
            FaissStore(store.folder, **asked).count()
        with pytest.raises(StoreError, match="reindex"):
            FaissStore(store.folder, **asked).add(rows_of(1), clustered(1), fingerprint=SPACE)
    store.reindex(index="flat")
    assert store.count() == ROWS, "whoever was there goes on"


def test_a_new_generation_has_the_same_kind(store: FaissStore) -> None:
    rows, matrix = rows_of(ROWS), clustered(ROWS)
    number = store.create_generation(fingerprint="b" * 64, context=b"")
    store.add_to_generation(number, rows, [row.digest for row in rows], matrix)
    store.reindex(index="ivf", quantization="binary")
    store.activate(number)
    kinds = [(state["index"]["index"], state["index"]["quantization"]) for state in manifest(store)["generations"]]
    assert kinds == [("ivf", "binary")] * 2
    store.reindex(index="flat", quantization="int8")
    store.activate(1)
    assert recall(store, rows, matrix) >= 0.95
    kinds = [(state["index"]["index"], state["index"]["quantization"]) for state in manifest(store)["generations"]]
    assert kinds == [("flat", "int8")] * 2


def test_a_failed_change_leaves_what_was(store: FaissStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, matrix = rows_of(ROWS), clustered(ROWS)
    store.reindex(index="hnsw", quantization="int8")
    before, files = manifest(store), sorted(store.folder.iterdir())
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left"):
        store.reindex(index="ivf")
    monkeypatch.undo()
    assert manifest(store) == before
    assert sorted(store.folder.iterdir()) == files
    assert recall(store, rows, matrix) >= 0.95


def test_a_store_of_an_older_version_has_what_it_is_opened_with(store: FaissStore, plain: Path) -> None:
    older = manifest(store)
    del older["indexing"]
    data = json.dumps(older).encode()
    connection = sqlite3.connect(store.folder / "collection.sqlite")
    connection.execute("UPDATE manifest SET json = ?, checksum = ?", (data.decode(), checksum_of(data)))
    connection.commit()
    connection.close()
    store = FaissStore(store.folder, index="hnsw")
    store.add(rows_of(1, first=ROWS), clustered(1), fingerprint=SPACE)
    file = manifest(store)["generations"][0]["index"]
    assert file["index"] == "hnsw"
    with sqlite3.connect(store.folder / "collection.sqlite") as connection:
        older = manifest(store)
        for new in ("index", "quantization", "trained"):
            del older["generations"][0]["index"][new]
        data = json.dumps(older).encode()
        connection.execute("UPDATE manifest SET json = ?, checksum = ?", (data.decode(), checksum_of(data)))
    connection.close()
    rows, matrix = [*rows_of(ROWS), *rows_of(1, first=ROWS)], np.concatenate([clustered(ROWS), clustered(1)])
    assert recall(FaissStore(store.folder, index="hnsw"), rows, matrix) >= 0.95
    assert recall(FaissStore(store.folder), rows, matrix) == 1, "auto, and few"


@every_kind
def test_is_read_where_it_lies(store: FaissStore, index: str, quantization: str | None) -> None:
    """A file that is searched is mapped into memory, not copied (Linux)."""
    store.reindex(index=index, quantization=quantization)
    store.search(clustered(1), 1, fingerprint=SPACE)
    (file,) = store.folder.glob("index-*")
    assert str(file) in Path("/proc/self/maps").read_text()


@every_kind
def test_one_more_record_writes_little_beside_an_index(store: FaissStore, index: str, quantization: str | None) -> None:
    store.reindex(index=index, quantization=quantization)
    (file,) = store.folder.glob("index-*")
    for number in range(5):
        before = bytes_written()
        store.add(rows_of(1, first=ROWS + number), clustered(1), fingerprint=SPACE)
        assert bytes_written() - before < 500_000
    assert list(store.folder.glob("index-*")) == [file]


def bytes_written() -> int:
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])


def test_auto_follows_its_rule() -> None:
    for quantization in QUANTIZATIONS:
        auto = IndexConfig("auto", quantization)
        assert auto.at(FLAT_ROWS) == IndexConfig("flat", quantization)
        assert auto.at(FLAT_ROWS + 1) == IndexConfig("hnsw", quantization)
    assert not IndexConfig().at(FLAT_ROWS).has_file
    assert IndexConfig(quantization="int8").at(1).has_file


@pytest.mark.parametrize(
    "asked", [{"index": "HNSW32"}, {"quantization": "int4"}, {"quantization": "prefix-0"}, {"quantization": "prefix"}]
)
@pytest.mark.usefixtures("unchecked")
def test_an_unknown_name_is_refused(store: FaissStore, scratch: Path, asked: dict[str, str]) -> None:
    (name,) = asked
    with pytest.raises(ValueError, match=name):
        FaissStore(scratch, **asked)
    with pytest.raises(ValueError, match=name):
        store.reindex(**{"index": "flat"} | asked)


def test_a_prefix_is_shorter_than_the_vectors(store: FaissStore, scratch: Path) -> None:
    with pytest.raises(ValueError, match="shorter than vectors of 32"):
        store.reindex(index="flat", quantization="prefix-32")
    new = FaissStore(scratch / "new.faiss", quantization="prefix-32")
    with pytest.raises(ValueError, match="shorter than vectors of 32"):
        new.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
    assert not new.exists()


def counted(name: str, work: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The same method; its name goes into `calls`."""

    def method(*asked: Any, **named: Any) -> Any:
        calls.append(name)
        return work(*asked, **named)

    return method


def test_the_index_is_used(store: FaissStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_SCANNED_ROWS", 100)
    calls: list[str] = []
    for name in ("search", "scan"):
        monkeypatch.setattr(Index, name, counted(name, getattr(Index, name), calls))
    for index, quantization in KINDS:
        store.reindex(index=index, quantization=quantization)
        for where in (None, {"tenth": {"lt": 3}}, {"cluster": 0}):
            store.search(clustered(1), 5, fingerprint=SPACE, where=where)
        expected = ["search"] if quantization is None else ["search", "scan"]
        assert calls == expected, (index, quantization)
        calls.clear()
