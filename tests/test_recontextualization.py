"""Moving a collection to a new context: it serves all the while, loses nothing, and ends as if built in it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from intact import damages
from qdrant_client import QdrantClient
from tiny import WORDS, tiny_cde_model, tiny_network, tiny_tokenizer

from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.protocol import Embedded, EmbedderOptions
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError
from cde_rag.indexing import backfill as generations
from cde_rag.indexing import recontextualization, upsert
from cde_rag.indexing.backfill import Recontextualization
from cde_rag.indexing.recontextualization import estimate
from cde_rag.indexing.upsert import Progress
from cde_rag.models import CDEModel, cde_model
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.runtimes.torch_runner import TorchRunner
from cde_rag.records import Record, Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

SIZE = 8  # context documents


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with mock.patch.object(generations, "ROWS_AT_ONCE", 4):
        yield


def records(count: int, *, seed: int = 0) -> list[Record]:
    draw = np.random.default_rng(seed)
    return [
        Record(f"{seed}-{i}", " ".join(draw.choice(WORDS, 6)), metadata={"page": f"p{i // 3}", "i": i})
        for i in range(count)
    ]


def made(place: Path, model: CDEModel, *, parent_key: str | None = None, count: int = 30) -> Collection:
    papers = records(count)
    texts = [record.text for record in papers]
    embedder = ContextualEmbedder.from_corpus(texts, model=model, context_size=SIZE, seed=0)
    collection = Collection.create(FaissStore(place), embedder, parent_key=parent_key)
    collection.add_records(papers)
    return collection


@pytest.fixture(params=[None, "page"])
def papers(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: CDEModel) -> Collection:
    return made(tmp_path / "papers", tiny_model, parent_key=request.param)


def opened(collection: Collection, model: CDEModel) -> Collection:
    return Collection.open(FaissStore(collection.store.folder), model=model)


def move(collection: Collection, seed: int = 1, **more: Any) -> Recontextualization:
    return collection.recontextualize(seed=seed, context_size=SIZE, **more)


def assert_as_if_built(collection: Collection, place: Path) -> None:
    """All vectors are those of a collection that was built in the active context from the same records."""
    found = list(collection.scroll())
    fresh = Collection.create(FaissStore(place), collection.embedder, parent_key=collection.parent_key)
    fresh.add_records(found)
    ids = [record.id for record in found]
    np.testing.assert_allclose(
        collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint),
        fresh.store.vectors(ids, fingerprint=fresh.embedder.fingerprint),
        atol=1e-5,
    )
    assert [row.digest for row in collection.store.get(ids)] == [row.digest for row in fresh.store.get(ids)]
    assert damages(collection) == []


def test_it_ends_as_if_built_in_the_new_context(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    before = papers.embedder.fingerprint
    ids = [record.id for record in papers.scroll()]
    old = papers.store.vectors(ids, fingerprint=papers.embedder.fingerprint)
    report = move(papers)
    assert (report.documents, report.embedded, report.generation) == (30, 30, 2)
    assert report.fingerprint == papers.inspect().fingerprint == papers.embedder.fingerprint != before
    assert papers.inspect().context_seed == 1
    assert np.abs(papers.store.vectors(ids, fingerprint=papers.embedder.fingerprint) - old).max() > 1e-2
    assert_as_if_built(papers, tmp_path / "fresh")
    assert opened(papers, tiny_model).search("river bank") == papers.search("river bank")


def test_who_opened_it_before_follows(papers: Collection, tiny_model: CDEModel):
    reader, writer, diverse = (opened(papers, tiny_model) for _ in range(3))
    move(papers)
    assert reader.search("river bank", 5) == papers.search("river bank", 5)
    assert writer.add(["money loan"], ids=["new"], metadata=[{"page": "p0"}]).added == 1
    assert diverse.search_diverse("money", 3) == papers.search_diverse("money", 3)
    assert {reader.embedder.fingerprint, writer.embedder.fingerprint} == {papers.embedder.fingerprint}
    assert papers.search("money loan", 1, where={"page": "p0"})[0].id == "new"


def test_a_collection_of_before_keeps_its_sibling_rule_until_it_is_moved(tmp_path: Path, tiny_model: CDEModel):
    texts = [record.text for record in records(40)]
    embedder = ContextualEmbedder.from_corpus(texts, model=tiny_model, context_size=SIZE)
    manifest = replace(embedder.context.manifest, format=1, sibling_rule=1)
    before = embedder.with_context(replace(embedder.context, manifest=manifest))
    papers = Collection.create(FaissStore(tmp_path / "papers"), before, parent_key="page")
    same_page = [replace(record, metadata={"page": "one"}) for record in records(40)]
    papers.add_records(same_page)
    papers = opened(papers, tiny_model)
    assert papers.embedder.context.manifest.sibling_rule == 1
    by_position = before.embed_documents(texts, parents=["one"] * 40)
    np.testing.assert_allclose(
        papers.store.vectors([record.id for record in same_page], fingerprint=papers.embedder.fingerprint),
        by_position,
        atol=1e-5,
    )
    with mock.patch.object(ContextualEmbedder, "embed_passages", side_effect=AssertionError("embedded")):
        assert papers.add_records(same_page).unchanged == 40
    move(papers)
    assert papers.embedder.context.manifest.sibling_rule == 2
    by_digest = papers.embedder.embed_documents(texts, parents=["one"] * 40)
    np.testing.assert_allclose(
        papers.store.vectors([record.id for record in same_page], fingerprint=papers.embedder.fingerprint),
        by_digest,
        atol=1e-5,
    )
    papers.rollback()
    np.testing.assert_allclose(
        papers.store.vectors([record.id for record in same_page], fingerprint=papers.embedder.fingerprint),
        by_position,
        atol=1e-5,
    )
    assert not np.allclose(by_position, by_digest, atol=1e-2)


def test_options_go_with_the_embedder_everywhere(tmp_path: Path):
    """Batch size, dtype and device stay through every way to another embedder; batches are counted."""
    folder = tmp_path / "model"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    options = EmbedderOptions(device="cpu", dtype="bfloat16", mini_batch_size=3)
    texts = [record.text for record in records(40)]
    embedder = ContextualEmbedder.from_corpus(
        texts, model=folder, context_size=SIZE, options=EmbedderOptions(device="cpu")
    )
    Collection.create(FaissStore(tmp_path / "papers"), embedder).add_records(records(40))
    papers = Collection.open(FaissStore(tmp_path / "papers"), model=folder, options=options)
    follower = Collection.open(FaissStore(tmp_path / "papers"), model=folder, options=options)
    batches: list[int] = []
    embed = TorchRunner.embed

    def spy(stages: TorchRunner, rows: Sequence[Sequence[int]], *others: Any) -> np.ndarray:
        batches.append(len(rows))
        return embed(stages, rows, *others)

    with mock.patch.object(TorchRunner, "embed", spy):
        move(papers)
        assert papers.embedder.options == options
        move(papers, seed=2, model=folder)
        assert papers.embedder.options == options
        papers.rollback()
        assert papers.embedder.options == follower.embedder.options == options
        papers.add(["money loan"])
        follower.add(["river boat", *texts[:9]], ids=map(str, range(10)))
    assert max(batches) == 3


def test_a_dtype_that_the_device_chose_is_not_chosen_for_another_model(tmp_path: Path):
    """A plain model that a collection goes back to embeds queries in the dtype that it had."""
    folder = tmp_path / "model"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    with mock.patch.object(cde_model, "native_dtype", return_value="bfloat16"):
        model = CDEModel.from_pretrained(folder, device="cpu")
    assert model.dtype == "bfloat16"
    assert ContextualEmbedder(model, Context.null(model)).options == EmbedderOptions(device="cpu", mini_batch_size=32)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.5, TypeError)])
def test_a_batch_size_that_is_none(size: Any, error: type[Exception]):
    with pytest.raises(error, match="mini_batch_size"):
        EmbedderOptions(mini_batch_size=size)


def test_the_same_documents_are_no_new_context(papers: Collection):
    report = move(papers, seed=0)
    assert (report.embedded, report.generation) == (0, 1)


def changing(papers: Collection, at: int) -> Callable[[Progress], None]:
    """Changes everything that can change, in the middle of a run."""

    def change(progress: Progress) -> None:
        if progress.done == at:
            papers.add_records([Record("0-1", "flood of risk", metadata={"page": "p0"})])
            papers.add_records([Record("0-25", "flood of credit", metadata={"page": "p8"})])
            papers.add_records(records(5, seed=7))
            papers.delete(["0-0", "0-29"])
            papers.add_records([Record("0-9", next(iter(papers.get(["0-9"]))).text, metadata={"page": "p0"})])

    return change


def test_what_changes_meanwhile_is_right_afterwards(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    other = opened(papers, tiny_model)
    report = move(papers, on_progress=changing(other, 12))
    assert report.documents == 33
    texts = {record.id: record.text for record in papers.scroll()}
    assert texts["0-1"] == "flood of risk"
    assert texts["0-25"] == "flood of credit"
    assert "7-4" in texts
    assert not {"0-0", "0-29"} & set(texts)
    assert_as_if_built(papers, tmp_path / "fresh")


@pytest.mark.parametrize("call", [1, 4, 8])
def test_what_changes_while_it_is_embedded_is_embedded_again(
    papers: Collection, tmp_path: Path, tiny_model: CDEModel, call: int
):
    """Rows are read with their siblings well before their vectors are written."""
    other, serving, embed = opened(papers, tiny_model), papers.embedder.fingerprint, ContextualEmbedder.embed_passages
    change, calls = changing(other, 1), list[int]()

    def meanwhile(self: ContextualEmbedder, *given: Any, **named: Any) -> Any:
        if self.fingerprint != serving:
            calls.append(1)
            if len(calls) == call:
                change(Progress(1, 30, 0.0))
        return embed(self, *given, **named)

    with mock.patch.object(ContextualEmbedder, "embed_passages", meanwhile):
        report = move(papers)
    assert report.embedded >= report.documents == 33  # those that the switch embeds count, too
    assert {record.id: record.text for record in papers.scroll()}["0-25"] == "flood of credit"
    assert_as_if_built(papers, tmp_path / "fresh")


class KilledError(Exception):
    pass


def killed_at(done: int) -> Callable[[Progress], None]:
    def kill(progress: Progress) -> None:
        if progress.done >= done:
            raise KilledError

    return kill


def test_an_interrupted_run_continues_with_its_context(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    before = papers.search("river bank", 5)
    with pytest.raises(KilledError):
        move(papers, on_progress=killed_at(12))
    assert papers.search("river bank", 5) == before
    context = papers.store.context(2)
    papers.add_records(records(40, seed=3))  # another sample would be drawn now
    papers = opened(papers, tiny_model)
    report = move(papers)
    assert papers.store.context() == context
    assert report.documents == 70
    if papers.parent_key is None:
        assert report.embedded == 58
    assert_as_if_built(papers, tmp_path / "fresh")


def test_other_arguments_begin_anew(papers: Collection):
    with pytest.raises(KilledError):
        move(papers, seed=1, on_progress=killed_at(12))
    report = move(papers, seed=2)
    assert (report.embedded, report.generation) == (30, 3)
    assert [one.number for one in papers.store.generations()] == [1, 3]


def test_two_generations_are_kept(papers: Collection):
    for seed in (1, 2, 3):
        move(papers, seed=seed)
    assert [(one.number, one.active) for one in papers.store.generations()] == [(3, False), (4, True)]


def test_a_space_that_is_still_there_is_gone_back_to(papers: Collection, tmp_path: Path):
    first = papers.embedder
    move(papers, seed=1)
    papers.add_records(records(5, seed=7))
    report = papers.recontextualize(embedder=first)
    assert (report.generation, report.documents) == (3, 35)
    assert [(one.number, one.active) for one in papers.store.generations()] == [(2, False), (3, True)]
    assert_as_if_built(papers, tmp_path / "fresh")
    assert papers.rollback().generation == 2


def test_rollback_keeps_what_came_and_what_went(papers: Collection, tmp_path: Path):
    before = papers.embedder.fingerprint
    move(papers)
    papers.add_records(records(5, seed=7))
    papers.delete(["0-0", "0-29"])
    papers.add_records([Record("0-1", "flood of risk", metadata={"page": "p0"})])
    report = papers.rollback()
    assert (report.documents, report.generation) == (33, 1)
    assert papers.embedder.fingerprint == before
    assert_as_if_built(papers, tmp_path / "fresh")
    if papers.parent_key is None:
        assert report.embedded == 6
    with pytest.raises(StoreError, match="To return to generation 2, repeat the recontextualize"):
        papers.rollback()
    papers.delete(["7-0"])
    forward = move(papers)
    assert forward.generation == 2
    assert forward.embedded == (0 if papers.parent_key is None else 4)  # the passages beside it on its page
    assert forward.documents == 32
    assert_as_if_built(papers, tmp_path / "again")


def test_nothing_to_roll_back_to(papers: Collection):
    with pytest.raises(StoreError, match="nothing to roll back to"):
        papers.rollback()


def test_a_second_run_is_told_and_the_first_goes_on(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    other, told = opened(papers, tiny_model), list[str]()

    def begin_another(progress: Progress) -> None:
        for run in (lambda: move(other), other.rollback):
            with pytest.raises(StoreError, match="another run holds the lease") as raised:
                run()
            told.append(str(raised.value))

    move(papers, on_progress=begin_another)
    assert told
    assert_as_if_built(papers, tmp_path / "fresh")


def test_searches_meanwhile_never_fail_nor_mix(papers: Collection, tiny_model: CDEModel):
    """Each answer is wholly that of the one context or of the other."""
    expected = [papers.search("river bank", 5)]
    reader, done, answers = opened(papers, tiny_model), threading.Event(), list[Any]()

    def search() -> None:
        while not done.is_set():
            answers.append(reader.search("river bank", 5))

    thread = threading.Thread(target=search)
    thread.start()
    move(papers)
    expected.append(papers.search("river bank", 5))
    done.set()
    thread.join()
    assert len(answers) > 1
    assert all(answer in expected for answer in answers)


def test_another_model_takes_over_and_the_old_one_is_told(papers: Collection, tmp_path: Path, tiny_model: CDEModel):
    reader, other = opened(papers, tiny_model), tiny_cde_model(seed=1)
    report = move(papers, seed=0, model=other)
    assert (report.embedded, report.generation) == (30, 2)
    with pytest.raises(ContextMismatchError, match=r"made by 'tiny'"):
        reader.search("river")
    assert_as_if_built(opened(papers, other), tmp_path / "fresh")


def test_the_other_model_may_be_a_folder(papers: Collection, tmp_path: Path):
    checkpoints.write(tmp_path / "other", tiny_cde_model(seed=1).network, tiny_tokenizer())
    report = papers.recontextualize(model=tmp_path / "other", context_size=SIZE)
    assert (report.embedded, report.generation) == (30, 2)
    assert papers.embedder.context.identity == CDEModel.from_pretrained(tmp_path / "other").identity


def test_an_empty_collection(tmp_path: Path, tiny_model: CDEModel):
    empty = Collection.create(FaissStore(tmp_path / "empty"), ContextualEmbedder(tiny_model, Context.null(tiny_model)))
    with pytest.raises(CorpusError):
        empty.recontextualize()
    with pytest.raises(StoreError, match="empty collection"):
        estimate(empty.store, empty.embedder, empty.parent_key)


def test_the_estimate_reads_and_embeds_a_sample_with_its_siblings(tmp_path: Path, tiny_model: CDEModel):
    papers = made(tmp_path / "papers", tiny_model, parent_key="page", count=300)
    read: list[int] = []
    scroll, embed, embedded = papers.store.scroll, ContextualEmbedder.embed_passages, []

    def counted(**asked: Any) -> Iterator[Row]:
        for row in scroll(**asked):
            read.append(1)
            yield row

    def spy(embedder: ContextualEmbedder, texts: Sequence[str], siblings: Sequence[Sequence[str]]) -> Embedded:
        embedded.append([*map(len, siblings)])
        return embed(embedder, texts, siblings)

    with (
        mock.patch.object(papers.store, "scroll", counted),
        mock.patch.object(ContextualEmbedder, "embed_passages", spy),
    ):
        found = estimate(papers.store, papers.embedder, papers.parent_key, sample=12)
    assert found.documents == 300
    assert [len(each) for each in embedded] == [8, 12]
    assert set(embedded[1]) == {2}  # of three passages on each page
    assert len(read) <= 12 * 3


def test_the_estimate_changes_nothing(papers: Collection):
    found = estimate(papers.store, papers.embedder, papers.parent_key, sample=10)
    assert (found.documents, found.vector_bytes) == (30, 30 * 16 * 4)
    assert found.tokens == pytest.approx(30 * 8, rel=0.5)
    assert found.seconds > 0
    assert len(papers.store.generations()) == 1


def steps_of_sqlite(store: FaissStore, work: Callable[[], object]) -> int:
    """Instructions of SQLite's machine, in thousands, that the work takes."""
    steps = 0

    def stepped() -> int:
        nonlocal steps
        steps += 1
        return 0

    def connected(path: Path, place: Any, connect: Callable[..., Any] = store._engine.database._connect) -> Any:
        connection = connect(path, place)
        connection.set_progress_handler(stepped, 1000)
        return connection

    with mock.patch.object(store._engine.database, "_connect", connected):
        work()
    return steps


@pytest.mark.long
def test_a_run_reads_what_it_has_done_no_more(tmp_path: Path, tiny_model: CDEModel) -> None:
    """The statements of a run over twice the records take about twice the steps: nothing is scanned at each chunk."""
    steps: list[int] = []
    for count in (400, 800):
        made(tmp_path / str(count), tiny_model, count=count).close()
        store = FaissStore(tmp_path / str(count))
        collection = Collection.open(store, model=tiny_model)
        store.close()
        steps.append(steps_of_sqlite(store, lambda collection=collection: move(collection)))
    assert steps[0] > 0
    assert steps[1] / steps[0] < 2.5


def test_a_run_reads_each_point_once_and_once_more(tiny_model: CDEModel) -> None:
    """In Qdrant: once to sample the context, and once to embed it."""
    client = QdrantClient(":memory:")
    papers = records(200)
    embedder = ContextualEmbedder.from_corpus([one.text for one in papers], model=tiny_model, context_size=SIZE)
    collection = Collection.create(QdrantStore(client, "papers"), embedder)
    collection.add_records(papers)
    read, scroll = 0, client.scroll

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal read
        found = scroll(*arguments, **more)
        read += len(found[0])
        return found

    with mock.patch.object(client, "scroll", counted), mock.patch.object(generations, "ROWS_AT_ONCE", 20):
        move(collection)
    assert 400 <= read <= 400 + 2 * 200 / 20  # of each page the last point comes with the next one, too


def test_a_generation_that_another_run_dropped_ends_the_run_in_words(tmp_path: Path, tiny_model: CDEModel) -> None:
    store = made(tmp_path / "papers", tiny_model).store
    with pytest.raises(StoreError, match="Expected generation 7, found that it was dropped"):
        generations._vectors(store, 7)


def test_a_generation_that_is_never_complete_is_given_up(papers: Collection) -> None:
    """Where somebody else's records come faster than a run can give them vectors; the next call continues it."""
    tries: list[int] = []

    def refused(number: int, **_: Any) -> None:
        tries.append(number)
        papers.add(["late " + str(len(tries))], ids=[f"late{len(tries)}"], metadata=[{"page": "p0"}])
        raise StoreError("Expected a vector for each record.")

    with mock.patch.object(papers.store, "activate", refused), pytest.raises(StoreError, match="a vector for each"):
        move(papers)
    assert len(tries) == generations.ACTIVATIONS
    assert move(papers).documents == 30 + len(tries)
    assert damages(papers) == []


def test_a_run_can_be_ended_while_it_samples_and_after_each_part(papers: Collection):
    told: list[int] = []

    def kill(progress: Progress) -> None:
        told.append(progress.done)
        if len(told) == 2:
            raise KilledError

    with mock.patch.object(recontextualization, "ROWS_SAMPLED", 8), pytest.raises(KilledError):
        move(papers, on_progress=kill)
    assert told == [0, 0]
    assert [one.number for one in papers.store.generations()] == [1]
    told.clear()
    rows: Any = {"ROWS_AT_ONCE": 1024, "FIRST_PART": 8}
    parts: Any = {"SMALLEST_PART": 5, "PART_S": 0.0}
    with (
        mock.patch.multiple(generations, **rows),
        mock.patch.multiple(upsert, **parts),
        pytest.raises(KilledError),
    ):
        move(papers, on_progress=kill)
    assert told == [8, 13]
    assert move(papers).generation == 2
