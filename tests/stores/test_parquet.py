"""A collection as one file: what comes out of it is what went in, whatever store it goes to, or an error."""

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest
from contract import units
from filter_cases import metadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from cde_rag import Collection, Context
from cde_rag.collection.info import inspect, verify
from cde_rag.errors import ContextFormatError, StoreError, StoreFormatError
from cde_rag.model import CDEModel
from cde_rag.records import Record, Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.transfer import parquet as transfer
from cde_rag.transfer import parquet_columns
from cde_rag.transfer.parquet import export_collection, import_collection

DIM = 16
REFERENCE = Path(__file__).parents[1] / "reference"
MEMORY = Path("/dev/shm")
KINDS = ("faiss", "edge", "qdrant")
Places = Callable[[str], Store]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is such a folder, since waiting for a disk thousands of times tests nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """Makes empty places of each kind; they are closed at the end."""
    numbers, client, made = itertools.count(), QdrantClient(":memory:"), list[Store]()

    def place(kind: str) -> Store:
        name = f"papers {next(numbers)}"
        match kind:
            case "faiss":
                made.append(FaissStore(tmp_path / name))
            case "edge":
                made.append(QdrantEdgeStore(tmp_path / name))
            case _:
                made.append(QdrantStore(client, name))
        return made[-1]

    yield place
    for store in made:
        store.close()


@pytest.fixture(autouse=True)
def small_groups() -> Iterator[None]:
    with mock.patch.object(transfer, "ROWS", 3):
        yield


def filled(store: Store, model: CDEModel, records: list[Record], *, seed: int = 0) -> Store:
    context = Context.null(model)
    store.create(
        dim=DIM,
        fingerprint=context.fingerprint,
        context=context.to_bytes(),
        settings={"parent_key": "a", "model": "tiny", "library_version": "0"},
    )
    rows = [Row(record, f"digest of {record.id}") for record in records]
    store.add(rows, units(len(rows), DIM, seed), fingerprint=context.fingerprint)
    return store


def some(count: int = 10) -> list[Record]:
    return [
        Record(f"id {i}", f"text {i} ß\n\0", f"title {i}" * (i % 2), {"a": i, "b": [i / 7, None]}) for i in range(count)
    ]


def answers(store: Store) -> dict[str, object]:
    manifest = store.manifest()
    rows = list(store.scroll())
    found = [row.record.id for row in rows]
    return {
        "dim": manifest.dim,
        "fingerprint": manifest.fingerprint,
        "settings": manifest.settings,
        "context": store.context(),
        "rows": rows,
        "vectors": store.vectors(found, fingerprint=manifest.fingerprint).tobytes(),
        "hits": store.search(units(3, DIM, 9), 5, fingerprint=manifest.fingerprint),
        "filtered": store.count({"a": {"gte": 4}}),
        "spaces": [generation.fingerprint for generation in store.generations()],
    }


@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, KINDS)))
def test_what_went_in_comes_out(places: Places, tiny_model: CDEModel, tmp_path: Path, source: str, target: str):
    store, copy = filled(places(source), tiny_model, some()), places(target)
    file = tmp_path / "papers.parquet"
    done = []
    exported = export_collection(store, file, on_progress=lambda progress: done.append(progress.done))
    assert exported.documents == 10
    assert done == [3, 6, 9, 10]
    assert import_collection(file, copy) == exported
    there, here = answers(store), answers(copy)
    hits, expected = here.pop("hits"), there.pop("hits")
    assert here == there
    for one, other in zip(hits, expected, strict=True):
        assert [hit.id for hit in one] == [hit.id for hit in other]
        np.testing.assert_allclose([hit.score for hit in one], [hit.score for hit in other], atol=1e-6)
    assert verify(copy) == []
    assert sorted(path.name for path in tmp_path.glob("*parquet*")) == ["papers.parquet"]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(Record, st.text(min_size=1), st.text(), st.text(), metadata), max_size=8, unique_by=lambda one: one.id
    )
)
def test_any_record_comes_back(places: Places, tiny_model: CDEModel, tmp_path: Path, records: list[Record]):
    store, copy, file = filled(places("faiss"), tiny_model, records), places("faiss"), tmp_path / "papers.parquet"
    file.unlink(missing_ok=True)
    export_collection(store, file)
    import_collection(file, copy)
    assert answers(copy) == answers(store)


def test_other_tools_read_it(places: Places, tiny_model: CDEModel, tmp_path: Path):
    export_collection(filled(places("faiss"), tiny_model, some(2)), tmp_path / "papers.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "papers.parquet").to_pydict()
    assert table["id"] == ["id 0", "id 1"]
    assert table["metadata"] == ['{"a": 0, "b": [0.0, null]}', '{"a": 1, "b": [0.14285714285714285, null]}']
    np.testing.assert_array_equal(np.array(table["vector"], np.float32), units(2, DIM))


@pytest.fixture
def exported(places: Places, tiny_model: CDEModel, tmp_path: Path) -> Path:
    export_collection(filled(places("faiss"), tiny_model, some(5)), tmp_path / "papers.parquet")
    return tmp_path / "papers.parquet"


def assert_refused(file: Path, store: Store) -> None:
    with pytest.raises(StoreFormatError, match="expected an intact export of a collection"):
        import_collection(file, store)
    assert not store.exists()


def test_every_flip_and_truncation_is_found_or_changes_nothing(exported: Path, places: Places):
    """A flip in what nobody reads, such as the name of the program that wrote the file, leaves the contents."""
    data, expected, draw = exported.read_bytes(), places("faiss"), np.random.default_rng(0)
    import_collection(exported, expected)
    wanted, found = answers(expected), 0
    for place in [*draw.integers(0, len(data), 150).tolist(), *range(len(data) - 12, len(data))]:
        exported.write_bytes(data[:place] + bytes([data[place] ^ 1 << int(draw.integers(8))]) + data[place + 1 :])
        store = places("faiss")
        try:
            import_collection(exported, store)
        except (StoreFormatError, ContextFormatError):
            assert not store.exists()
            found += 1
        else:
            assert answers(store) == wanted
        exported.write_bytes(data[:place])
        assert_refused(exported, store if not store.exists() else places("faiss"))
    assert found > 80
    exported.write_bytes(data + b"\0")
    assert_refused(exported, places("faiss"))


def read(file: Path) -> pyarrow.Table:
    """The rows of a file with the footer's key, which a tool that writes the file anew has to keep."""
    kept = pyarrow.parquet.read_metadata(file).metadata[b"cde_rag"]
    return pyarrow.parquet.read_table(file).replace_schema_metadata({"cde_rag": kept})


@pytest.mark.parametrize("column", ["id", "title", "text", "metadata", "digest", "vector"])
def test_contents_that_another_tool_changed_are_refused(exported: Path, places: Places, column: str):
    table = read(exported)
    values = table[column].to_pylist()
    swapped = pyarrow.array([values[1], values[0], *values[2:]], table.schema.field(column).type)
    place = table.schema.get_field_index(column)
    changed = table.set_column(place, table.schema.field(column), swapped)
    pyarrow.parquet.write_table(changed, exported)
    with pytest.raises(StoreFormatError, match="contents that were changed: their sha256 is another"):
        import_collection(exported, store := places("faiss"))
    assert not store.exists()


def test_other_tools_may_write_it_anew(exported: Path, places: Places):
    """With another compression and other row groups it is the same collection."""
    before, after = places("faiss"), places("faiss")
    import_collection(exported, before)
    pyarrow.parquet.write_table(read(exported), exported, compression="zstd", row_group_size=2, use_dictionary=False)
    import_collection(exported, after)
    assert answers(after) == answers(before)


def test_a_file_of_format_1_is_read_and_its_checksum_verified(tmp_path: Path, places: Places):
    """`format-1.parquet` was exported before the checksum became one of the contents."""
    kept, file, store = REFERENCE / "format-1.parquet", tmp_path / "papers.parquet", places("faiss")
    assert import_collection(kept, store).documents == 5
    assert [row.record for row in store.scroll()] == some(5)
    data = kept.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(data), 40).tolist():
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert_refused(file, places("faiss"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (units(5, DIM)[2].tobytes(), (units(5, DIM)[2] * 2).tobytes()),  # a norm
        (units(5, DIM)[2].tobytes(), np.full(DIM, np.nan, np.float32).tobytes()),
        (b'"documents":5', b'"documents":6'),
        (b'{"a": 1', b'["a", 1'),
        (b'"format":2', b'"format":3'),
        (b'"dim":16', b'"dim":15'),
    ],
)
def test_what_no_store_gave_is_refused_before_anything_is_written(
    tmp_path: Path, places: Places, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes
):
    """Each of these is refused for itself, without the checksum."""
    file, store = tmp_path / "papers.parquet", filled(places("faiss"), tiny_model, some(5))
    with mock.patch.object(pyarrow.parquet, "ParquetWriter", plain_writer):
        export_collection(store, file)
    data = file.read_bytes()
    assert data.count(old) == 1
    stated = parquet_columns.Export.open(file).integrity
    file.write_bytes(data.replace(old, new))
    monkeypatch.setattr(parquet_columns.Checksum, "of", lambda self, fields: stated)
    assert_refused(file, places("edge"))


def plain_writer(
    *given: object, writer: Callable[..., object] = pyarrow.parquet.ParquetWriter, **asked: object
) -> object:
    """Writes the values as they are, so that a test finds them in the file."""
    return writer(*given, **asked, compression="none", use_dictionary=False)


def test_another_parquet_file_is_refused(tmp_path: Path, places: Places):
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a"]}), tmp_path / "other.parquet")
    assert_refused(tmp_path / "other.parquet", places("faiss"))
    with pytest.raises(StoreError, match="not readable"):
        import_collection(tmp_path / "missing.parquet", places("faiss"))


def test_neither_files_nor_collections_are_written_over(exported: Path, places: Places, tiny_model: CDEModel):
    store = filled(places("faiss"), tiny_model, some(2), seed=1)
    before = exported.read_bytes(), answers(store)
    with pytest.raises(StoreError, match="expected no file, found one"):
        export_collection(store, exported)
    with pytest.raises(StoreError, match="Expected a store without a collection"):
        import_collection(exported, store)
    assert (exported.read_bytes(), answers(store)) == before


class KilledError(BaseException):
    pass


def dying(store: Store, at: int) -> Store:
    """Dies at its n-th write."""
    left = itertools.count(1)

    def mortal(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*given: object, **asked: object) -> object:
            if next(left) == at:
                raise KilledError
            return call(*given, **asked)

        return wrapped

    for name in ("create", "create_generation", "add", "add_to_generation", "activate", "drop"):
        setattr(store, name, mortal(getattr(store, name)))
    return store


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_import_is_no_collection_and_goes_on(
    exported: Path, places: Places, tiny_model: CDEModel, kind: str
):
    expected = places(kind)
    import_collection(exported, expected)
    with mock.patch("cde_rag.transfer.parquet_columns.ROWS", 3):
        for at in range(1, 9):  # create, a generation, two times two batches, activate, drop
            store = places(kind)
            try:
                import_collection(exported, dying(store, at))
            except KilledError:
                if store.exists() and at < 8:
                    with pytest.raises(StoreError, match="an import that did not finish"):
                        Collection.open(store, model=tiny_model)
                    with pytest.raises(StoreError, match="an import that did not finish"):
                        inspect(store)
            else:
                pytest.fail(f"there are fewer than {at} writes")
            import_collection(exported, store)
            assert answers(store) == answers(expected)


def test_a_killed_export_leaves_no_file(places: Places, tiny_model: CDEModel, tmp_path: Path):
    folder = tmp_path / "papers"
    filled(FaissStore(folder), tiny_model, some(50)).close()
    code = (
        "import os, sys; from cde_rag.stores.faiss import FaissStore; from cde_rag.transfer import parquet\n"
        "parquet.ROWS = 10\n"
        "kill = lambda now: os.kill(os.getpid(), 9) if now.done == 30 else None\n"
        "parquet.export_collection(FaissStore(sys.argv[1]), sys.argv[2], on_progress=kill)\n"
    )
    file = tmp_path / "papers.parquet"
    killed = subprocess.run([sys.executable, "-c", code, folder, file], env={**os.environ}, check=False)
    assert killed.returncode == -9
    assert not file.exists()
    assert export_collection(FaissStore(folder), file).documents == 50


def test_records_that_change_meanwhile_have_their_own_vectors(places: Places, tiny_model: CDEModel, tmp_path: Path):
    """Of each record there are two versions, each with a vector of its own; the file has one of the two, whole."""
    store, copy, file = filled(places("faiss"), tiny_model, some(40)), places("faiss"), tmp_path / "papers.parquet"
    versions = {"old": units(40, DIM), "new": units(40, DIM, 1)}
    space, ended = store.manifest().fingerprint, threading.Event()
    for row, vector in zip(list(store.scroll()), versions["old"], strict=True):
        store.add([Row(row.record, "old")], vector[None], fingerprint=space)

    def change() -> None:
        draw = np.random.default_rng(0)
        while not ended.is_set():
            place, version = int(draw.integers(35)), ("old", "new")[int(draw.integers(2))]
            if place % 7 == 0:
                store.delete([f"id {place}"])
            row = Row(Record(f"id {place}", version, "", {"a": place}), version)
            store.add([row], versions[version][place][None], fingerprint=space)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        export_collection(store, file)
    finally:
        ended.set()
        writer.join()
    import_collection(file, copy)
    rows = list(copy.scroll())
    matrix = copy.vectors([row.record.id for row in rows], fingerprint=space)
    assert len(rows) >= 35 - 5
    for row, vector in zip(rows, matrix, strict=True):
        np.testing.assert_array_equal(vector, versions[row.digest][int(row.record.id.split()[1])])


def test_records_that_change_all_the_time_end_an_export(
    places: Places, tiny_model: CDEModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = filled(places("faiss"), tiny_model, some(5))
    space, get, calls = store.manifest().fingerprint, store.get, itertools.count()

    def changing(ids: list[str]) -> list[Row]:
        row = get(["id 3"])[0]
        store.add([Row(row.record, str(next(calls)))], units(1, DIM), fingerprint=space)
        return get(ids)

    monkeypatch.setattr(store, "get", changing)
    with pytest.raises(StoreError, match=r"found 1 changed in each of 32 tries, such as 'id 3'"):
        export_collection(store, tmp_path / "papers.parquet")
    assert 32 <= next(calls) < 40
    assert not (tmp_path / "papers.parquet").exists()


def test_records_that_are_all_deleted_meanwhile_are_none(
    places: Places, tiny_model: CDEModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = filled(places("faiss"), tiny_model, some(5))
    vectors = store.vectors

    def emptied(ids: list[str], *, fingerprint: str) -> np.ndarray:
        store.delete(ids)
        return vectors(ids, fingerprint=fingerprint)

    monkeypatch.setattr(store, "vectors", emptied)
    assert export_collection(store, tmp_path / "papers.parquet").documents == 0
