"""A dataset that is indexed on Ray's workers gives the collection that one process makes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from cde_rag import CDEModel, Collection, ContextualEmbedder
from cde_rag.context.sampling import sample_random
from cde_rag.embedders.plain_embedders import FunctionEmbedder
from cde_rag.errors import ContextMismatchError, CorpusError, PoolError, StoreError
from cde_rag.indexing.upsert import AddReport
from cde_rag.readers import Fields, RecordReader

ray = pytest.importorskip("ray")

from cde_rag.cli import app  # noqa: E402 -- after the skip
from cde_rag.distributed import RayPool, index, read_sources  # noqa: E402
from cde_rag.distributed.ray_index import sample_dataset  # noqa: E402
from cde_rag.distributed.ray_records import records_of  # noqa: E402
from cde_rag.distributed.shards import Shard, read_shard, shard_name, write_shard  # noqa: E402
from cde_rag.records import Record, Row  # noqa: E402
from cde_rag.stores.faiss import FaissStore  # noqa: E402

# of Ray itself
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore:.*Ray", "ignore:.*StreamingExecutor"
)
Rows = list[dict[str, Any]]
BOOKS = Fields(parent="book")


def rows(count: int = 400) -> Rows:
    """Passages of books of seven, some without a book, some equal."""
    return [
        {
            "id": f"r{number}",
            "title": "Birds" if number % 3 else "",
            "text": f"Passage {number % 390} is about bird number {number % 13}, seen in {1900 + number % 90}.",
            "book": None if number % 10 == 9 else f"book {number // 7}",
            "year": number % 5,
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two workers on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    # A thread that still computes a dataset, of a run that failed, would end this process when Ray is gone.
    for thread in threading.enumerate():
        if thread.name == "cde-rag-rows" or type(thread).__name__ == "StreamingExecutor":
            thread.join(timeout=120)
    ray.shutdown()


@pytest.fixture(scope="module")
def model() -> CDEModel:
    return CDEModel.from_pretrained("cde-mini", dtype="float32")


def dataset(some: Rows, blocks: int = 5) -> Any:
    return ray.data.from_items(some, override_num_blocks=blocks)


def contents(collection: Collection) -> dict[str, Row]:
    return {row.record.id: row for row in collection.store.scroll()}


def vectors(collection: Collection, ids: list[str]) -> np.ndarray:
    return np.asarray(collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint))


@pytest.fixture(scope="module")
def one(model: CDEModel, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The collection that one process makes."""
    some = rows()
    texts = [f"{row['title']} {row['text']}".strip() for row in some]
    embedder = ContextualEmbedder.from_corpus(texts, model=model, context_size=64)
    made = Collection.create(tmp_path_factory.mktemp("one") / "one.faiss", embedder, parent_key="book")
    made.add_records(
        Record(row["id"], row["text"], row["title"], {k: row[k] for k in ("book", "year") if row[k] is not None})
        for row in some
    )
    return made


def check_equal(found: Collection, one: Collection) -> None:
    """Same records, digests over siblings, vectors, and hits."""
    assert found.embedder.fingerprint == one.embedder.fingerprint
    assert contents(found) == contents(one)
    ids = sorted(contents(one))
    np.testing.assert_allclose(vectors(found, ids), vectors(one, ids), atol=1e-5)
    for query in ("bird number 7", "seen in 1950", "passage 77"):
        for by in ("vectors", "hybrid"):
            ours, theirs = found.search(query, by=by), one.search(query, by=by)
            scores = [[hit.score for hit in hits] for hits in (ours, theirs)]
            if by == "hybrid":  # on scales that other samples of the same records made
                scores = [[score / some[0] for score in some] for some in scores]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.long
def test_dataset_becomes_the_collection_of_one_process(one: Collection, model: CDEModel, tmp_path: Path):
    place, some = tmp_path / "two.faiss", rows()
    seen: list[int] = []
    made = index(
        dataset(some),
        place,
        fields=BOOKS,
        model=model,
        context_size=64,
        bucket_rows=64,
        on_progress=lambda progress: seen.append(progress.done),
    )
    assert (made.documents, made.report.added, made.reused) == (400, 400, 0)
    assert seen == sorted(seen)
    assert seen[-1] == 400
    assert made.buckets == len(list((tmp_path / "two.faiss.shards").glob("*.parquet")))
    with Collection.open(place, model=model) as found:
        check_equal(found, one)
    # again, with a shard truncated and one changed: only these are made again
    shards = sorted((tmp_path / "two.faiss.shards").glob("*.parquet"))
    whole = [shard.read_bytes() for shard in shards]
    shards[0].write_bytes(whole[0][: len(whole[0]) // 2])
    middle = len(whole[1]) // 2
    shards[1].write_bytes(whole[1][:middle] + bytes([whole[1][middle] ^ 1]) + whole[1][middle + 1 :])
    shutil.rmtree(place)
    again = index(dataset(some, 3), place, fields=BOOKS, model=model, context_size=64, bucket_rows=64, workers=1)
    assert (again.reused, again.buckets) == (made.buckets - 2, made.buckets)
    with Collection.open(place, model=model) as found:
        check_equal(found, one)
    # and a third time nothing is left to do
    some[5] = some[5] | {"year": 77}
    third = index(dataset(some), place, fields=BOOKS, model=model, bucket_rows=64, workers=1)
    assert (third.report.unchanged, third.report.updated, third.report.replaced) == (399, 1, 0)


@pytest.mark.long  # a folder is written above
def test_workers_write_to_a_server(one: Collection, model: CDEModel, postgres: str, tmp_path: Path):
    base, _, query = postgres.partition("?")
    place = f"{base}/ray{f'?{query}' if query else ''}"
    made = index(dataset(rows()), place, one.embedder, fields=BOOKS, bucket_rows=64)  # type: ignore[arg-type]
    assert (made.documents, made.report.added) == (400, 400)
    with Collection.open(place, model=model) as found:
        check_equal(found, one)
    again = index(dataset(rows(), 2), place, fields=BOOKS, bucket_rows=64)
    assert (again.documents, again.report.unchanged) == (400, 400)
    assert not Path(f"{place}.shards").exists()


def kill_first_worker(folder: Path) -> None:
    """Kill the worker processes that embed, once the first shard is there."""
    while not list(folder.glob("*.parquet")):
        time.sleep(0.05)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::") and b"BucketWriter" in name:
            os.kill(int(process.name), signal.SIGKILL)
            return


@pytest.mark.long
def test_killed_worker(one: Collection, model: CDEModel, tmp_path: Path):
    place = tmp_path / "two.faiss"
    killer = threading.Thread(target=kill_first_worker, args=(tmp_path / "two.faiss.shards",))
    killer.start()
    index(dataset(rows()), place, one.embedder, fields=BOOKS, bucket_rows=20, workers=1)  # type: ignore[arg-type]
    killer.join(60)
    assert not killer.is_alive()
    with Collection.open(place, model=model) as found:
        check_equal(found, one)


SCRIPT = """
import sys
from pathlib import Path
import ray, ray.data
from cde_rag import CDEModel
from cde_rag.distributed import index
from cde_rag.readers import Fields
sys.path.insert(0, {tests!r})
from test_ray import rows
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
model = CDEModel.from_pretrained("cde-mini", dtype="float32")
dataset = ray.data.from_items(rows(), override_num_blocks=5)
done = index(dataset, Path({place!r}), fields=Fields(parent="book"), model=model, context_size=64, bucket_rows=20)
print("reused", done.reused)
"""


@pytest.mark.long  # two clusters; test_dataset_becomes… goes on from shards that are there
def test_killed_driver_is_resumed(one: Collection, model: CDEModel, tmp_path: Path):
    place, script = tmp_path / "two.faiss", tmp_path / "script.py"
    script.write_text(SCRIPT.format(place=str(place), tests=str(Path(__file__).parent)))
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen([sys.executable, str(script)], env=environment, start_new_session=True) as process:
        while not list((tmp_path / "two.faiss.shards").glob("*.parquet")):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    again = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert int(again.stdout.split("reused ")[1]) > 0, again.stderr
    with Collection.open(place, model=model) as found:
        check_equal(found, one)


@pytest.mark.long
def test_a_run_that_failed_does_not_go_on(model: CDEModel, tmp_path: Path):
    def fail(_: object) -> None:
        raise KeyError("the user's own")

    place = tmp_path / "two.faiss"
    with pytest.raises(KeyError) as raised:
        index(dataset(rows(800)), place, model=model, context_size=64, bucket_rows=4, on_progress=fail)
    waited = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < waited:
        time.sleep(0.2)
    assert ray.available_resources().get("CPU") == 2  # the workers are given back
    assert 0 < len(list(Path(f"{place}.shards").glob("*.parquet"))) < 150
    assert raised.tb  # a notebook keeps the traceback too, with all that it refers to


@pytest.mark.parametrize("blocks", [1, 4, 11])
def test_sample_is_that_of_one_process(model: CDEModel, blocks: int):
    some = rows(100)
    texts = [f"{row['title']} {row['text']}".strip() for row in some]
    assert sample_dataset(dataset(some, blocks), BOOKS, model, 16, seed=3) == sample_random(texts, 16, seed=3)


@pytest.mark.long
def test_pool_of_a_cluster(one: Collection, model: CDEModel, tmp_path: Path):
    texts = [row["text"] for row in rows()]
    embedder = one.embedder
    assert isinstance(embedder, ContextualEmbedder)
    with RayPool(2) as pool:
        np.testing.assert_allclose(
            embedder.with_pool(pool).embed_documents(texts), embedder.embed_documents(texts), atol=1e-5
        )
    with pytest.raises(PoolError, match="The pool is closed"):
        embedder.with_pool(pool).embed_documents(texts)
    with RayPool(1, num_cpus=64.0, timeout_s=1.0) as never, pytest.raises(PoolError, match="look at `ray status`"):
        embedder.with_pool(never).embed_documents(texts)


def test_command(tmp_path: Path):
    lines = tmp_path / "birds.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows(150)))
    one, two = tmp_path / "one.faiss", tmp_path / "two.faiss"
    for place, options in ((one, ["--workers", "1"]), (two, ["--ray", "local", "--workers", "1"])):
        done = CliRunner().invoke(app, ["index", str(lines), str(place), "--parent-key", "book", *options])
        assert done.exit_code == 0, done.output
        assert "150 passages (150 added" in done.output
    assert "The shards stay in" in done.output
    with Collection.open(one) as ours, Collection.open(two) as theirs:
        assert contents(ours) == contents(theirs)
    moved = CliRunner().invoke(app, ["recontextualize", str(two), "--seed", "1", "--ray", "local", "--workers", "1"])
    assert moved.exit_code == 0, moved.output
    refused = CliRunner().invoke(app, ["index", str(lines), str(two), "--ray", "local", "--sync"])
    assert refused.exit_code == 2
    assert "do not go with it" in refused.output
    other = CliRunner().invoke(app, ["index", str(lines), str(two), "--ray", "local", "--parent-key", "year"])
    assert other.exit_code == 1
    assert "was made with the parent key 'book', not 'year'" in " ".join(other.output.split())


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        ("folder", "source"),
        *(pytest.param("folder", parent, marks=pytest.mark.long) for parent in ("section", None)),
        *(pytest.param("server", parent, marks=pytest.mark.long) for parent in ("source", "section", None)),
    ],
)
def test_documents_that_are_read_again_replace_their_passages(
    kind: str, parent: str | None, model: CDEModel, tmp_path: Path, request: pytest.FixtureRequest
):
    """Also those whose passages are on several workers, and those that had another name."""
    docs, sections = tmp_path / "docs", [f"## Part {part}\n\n" + f"Birds of part {part}. " * 9 for part in range(9)]
    docs.mkdir()
    for name in "abc":
        (docs / f"{name}.md").write_text(f"# {name}\n\n" + "\n\n".join(sections))
    place = str(tmp_path / "two.faiss")
    if kind == "server":
        base, _, query = request.getfixturevalue("postgres").partition("?")
        place = f"{base}/replaced_{parent}{f'?{query}' if query else ''}"
    fields = Fields(parent=parent)

    def indexed(*sources: Path, workers: int = 2) -> AddReport:
        read = read_sources(list(map(str, sources)), fields, max_characters=300, max_line_bytes=2**20, roots=[docs])
        return index(read, place, fields=fields, model=model, context_size=8, bucket_rows=4, workers=workers).report

    assert indexed(docs, workers=1).added == 27
    (docs / "a.md").write_text("# a\n\n" + "\n\n".join(sections[:2]))
    report = indexed(docs)
    assert (report.added, report.deleted) == (0, 7)
    (docs / "b.md").write_text("# b\n\n" + "\n\n".join(sections[:4]))
    assert indexed(docs / "b.md", workers=1).deleted == 5
    with Collection.open(place, model=model) as found:
        assert found.count() == 15
        with Collection.create(FaissStore(tmp_path / "one"), found.embedder, parent_key=parent) as one:
            one.add_records(RecordReader(docs, fields=fields, max_characters=300))
            assert {key: row.record for key, row in contents(found).items()} == {
                key: row.record for key, row in contents(one).items()
            }
            if parent != "section":  # whose passages of several documents may be in another order
                assert contents(found) == contents(one)
        assert found.verify() == []


@pytest.mark.long
def test_a_dataset_without_ids_gets_those_of_add(one: Collection, tmp_path: Path):
    """So that a second run finds everything there."""
    some = [{name: value for name, value in row.items() if name != "id"} for row in rows(60)]
    place, embedder = tmp_path / "many.faiss", one.embedder
    assert isinstance(embedder, ContextualEmbedder)
    alone = Collection.create(tmp_path / "alone.faiss", embedder)
    alone.add(
        [row["text"] for row in some],
        titles=[row["title"] for row in some],
        metadata=[{k: row[k] for k in ("book", "year") if row[k] is not None} for row in some],
    )
    assert index(dataset(some), place, embedder).report.added == 60
    with Collection.open(place, model=embedder.model) as found:
        assert {id_: row.record.text for id_, row in contents(found).items()} == {
            id_: row.record.text for id_, row in contents(alone).items()
        }
    assert index(dataset(some), place, embedder).report.added == 0


def test_a_null_among_the_ids_of_a_block_is_refused_with_its_row():
    table = pa.table({"id": ["a", None], "text": ["first", "second"]})
    with pytest.raises(CorpusError, match=r"row 2 of a block, 'second': expected .* in 'id', found null; give each"):
        list(records_of(table, Fields()))
    assert len({record.id for record in records_of(table.drop_columns(["id"]), Fields())}) == 2


def wrong(some: Rows, change: dict[str, Any]) -> Rows:
    return [some[0] | change, *some[1:]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda place, one: index(dataset([{"name": "a"}]), place), CorpusError, "no field 'text'.*found: 'name'"),
        (lambda place, one: index(dataset([{"id": "1", "text": " "}]), place), CorpusError, "is blank"),
        (
            lambda place, one: index(dataset(rows(20)), place, fields=Fields(id="isbn")),
            CorpusError,
            r"no field 'isbn' \(found: 'id', .*Fields\(id=…",
        ),
        (
            lambda place, one: index(dataset(wrong(rows(20), {"id": None})), place, fields=Fields(id="id")),
            CorpusError,
            r"row 1 of a block, 'Passage 0 .*expected a string or a whole number in 'id', found null; give each record",
        ),
        (lambda place, one: index(ray.data.from_items([]), place), CorpusError, "found an empty dataset"),
        (
            lambda place, one: index(dataset([*rows(20), rows()[1] | {"text": "other"}], 1), place, one.embedder),
            CorpusError,
            "The id 'r1' stands at position",
        ),
        (
            lambda place, one: index(dataset(rows(20)), one.store.folder, fields=Fields(parent="year")),
            StoreError,
            r"parent key 'book'.*Fields\(parent='book'\)",
        ),
        (
            lambda place, one: index(
                dataset(rows(20)), one.store.folder, ContextualEmbedder.from_corpus(["a text"] * 3, context_size=1)
            ),
            ContextMismatchError,
            "These vectors were made in",
        ),
        (lambda place, one: index(dataset(rows(20)), place, bucket_rows=0), ValueError, "bucket_rows"),
        (lambda place, one: index(dataset(rows(20)), place, workers=0), ValueError, "workers must be at least 1"),
        (
            lambda place, one: index(dataset(rows(20)), place, one.embedder, fields=Fields(text="body")),
            CorpusError,
            "no field 'body'",
        ),
        (
            lambda place, one: index(
                dataset(rows(20)), place, FunctionEmbedder(lambda texts: [[1.0]] * len(texts), name="f")
            ),
            PoolError,
            "Expected a contextual model",
        ),
        pytest.param(
            lambda place, one: index(dataset(rows(20)), place, one.embedder, num_cpus=64.0, timeout_s=3.0),
            PoolError,
            "look at `ray status`",
            marks=pytest.mark.long,  # its thread waits for workers for ever, and ends the process with Ray
        ),
    ],
)
def test_bad_input(call: Callable[..., Any], error: type[Exception], message: str, one: Collection, tmp_path: Path):
    with pytest.raises(error, match=message):
        call(tmp_path / "bad.faiss", one)
    assert not (tmp_path / "bad.faiss").exists()  # an empty collection would refuse the right call


@pytest.mark.long
def test_every_changed_byte_of_a_shard_is_noticed(tmp_path: Path):
    found = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    some = [Row(Record(str(number), f"text {number}", "t", {"a": number}), f"d{number}") for number in range(5)]
    name = shard_name("f", some)
    write_shard(tmp_path, name, Shard(some, found, np.array([True, False, True, False, True])))
    path, whole = tmp_path / name, (tmp_path / name).read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        shard = read_shard(tmp_path, name, "f")
        assert shard is None or (
            shard.rows == some
            and np.array_equal(shard.vectors, found)
            and shard.truncated.tolist() == [True, False, True, False, True]
        )
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert read_shard(tmp_path, name, "f") is None
    path.write_bytes(whole)
    assert read_shard(tmp_path, name, "g") is None
    assert read_shard(tmp_path, name, "f") is not None
