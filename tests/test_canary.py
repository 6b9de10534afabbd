"""What keeps a run from going wrong at its end: canaries, writers that never rest, the last seconds of what was."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from intact import damages
from tiny import WORDS
from typer.main import get_command
from typer.testing import CliRunner

from cde_rag.cli import app
from cde_rag.collection.collection import Collection
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CanaryError, CorpusError, StoreError
from cde_rag.indexing import backfill as generations
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.upsert import Progress
from cde_rag.models import CDEModel
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

SIZE = 8  # context documents


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    with mock.patch.object(generations, "ROWS_AT_ONCE", 4):
        yield


@pytest.fixture
def papers(tmp_path: Path, tiny_model: CDEModel) -> Collection:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, 6)) for _ in range(30)]
    embedder = ContextualEmbedder.from_corpus(texts, model=tiny_model, context_size=SIZE, seed=0)
    collection = Collection.create(FaissStore(tmp_path / "papers"), embedder)
    collection.add(texts, ids=[str(number) for number in range(30)])
    return collection


def move(collection: Collection, seed: int = 1, **more: Any) -> generations.Recontextualization:
    return collection.recontextualize(seed=seed, context_size=SIZE, **more)


def lost_queries(papers: Collection) -> dict[str, list[str]]:
    """Queries with the best hit of the context that serves, where another context has another one."""
    new = ContextualEmbedder.from_corpus(
        [record.text for record in papers.scroll()], model=papers.embedder.model, context_size=SIZE, seed=1
    )
    texts = [record.text for record in papers.scroll()]
    vectors = new.embed_documents(texts)
    found: dict[str, list[str]] = {}
    for query in itertools.combinations(WORDS, 2):
        (hit,) = papers.search(" ".join(query), 1, by="vectors")
        if int(hit.id) != int(np.argmax(vectors @ new.embed_queries([" ".join(query)])[0])):
            found[" ".join(query)] = [hit.id]
    return found


def test_a_context_that_loses_what_is_known_does_not_serve(papers: Collection):
    lost = lost_queries(papers)
    assert len(lost) > 2
    before, fingerprint = papers.search("river bank"), papers.embedder.fingerprint
    with pytest.raises(CanaryError, match=f"{len(lost)} canary queries .* found {len(lost)}, such as"):
        move(papers, canary=Canary(lost, k=1, may_lose=len(lost) - 1))
    assert (papers.inspect().fingerprint, papers.search("river bank")) == (fingerprint, before)
    assert [one.vectors for one in papers.store.generations()] == [30, 30]
    report = move(papers, canary=Canary(lost, k=1, may_lose=len(lost)))
    assert (report.generation, report.embedded) == (2, 0)  # what was embedded for the canary is used
    assert papers.inspect().fingerprint != fingerprint


def test_the_documentation_says_that_a_canary_ranks_by_vectors():
    recontextualizing: Any = get_command(app).commands["recontextualize"]  # pyright: ignore[reportAttributeAccessIssue]
    (option,) = [one for one in recontextualizing.params if one.name == "canary"]
    for documented in (Canary.__doc__, Collection.recontextualize.__doc__, option.help):
        assert "by vectors" in str(documented)


def test_what_is_still_found_is_no_hindrance(papers: Collection):
    ids = [str(number) for number in range(30)]
    known = {"river bank": ids, "money": [*ids, "nobody"]}
    assert move(papers, canary=Canary(known, k=1)).generation == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(({},), ValueError), (({"a": []},), ValueError), (({"a": "12"},), TypeError), (({"a": ["1"]}, 0), ValueError),
     (({"a": ["1"]}, 1, -1), ValueError)],
)  # fmt: skip
def test_senseless_canaries_are_refused(wrong: tuple[Any, ...], error: type[Exception]):
    with pytest.raises(error):
        Canary(*wrong)


def test_a_canary_of_documents_that_are_not_there_is_refused_before_anything_is_done(papers: Collection):
    known = papers.search("river", 1)[0].id
    with pytest.raises(CorpusError, match=r"'bank'.*'nosuch'"):
        papers.recontextualize(seed=1, context_size=8, canary=Canary({"river": [known, "gone"], "bank": ["nosuch"]}))
    assert len(papers.store.generations()) == 1


def test_the_command_asks_a_canary(papers: Collection, tmp_path: Path):
    place, file = str(papers.store.folder), tmp_path / "known.jsonl"
    for content in ("", "{", '{"query": "a"}', '{"query": "a", "ids": []}', "[1]", '{"query": 1, "ids": ["2"]}'):
        file.write_text(content)
        found = CliRunner().invoke(app, ["recontextualize", place, "--canary", str(file)])
        assert found.exit_code == 1
        assert "known.jsonl" in found.output
    file.write_text('{"query": "a", "ids": ["1"], "ids": ["2"]}')
    found = CliRunner().invoke(app, ["recontextualize", place, "--canary", str(file)])
    assert "the key 'ids' stands twice" in found.output
    lost = lost_queries(papers)
    file.write_text("\n".join(json.dumps({"query": query, "ids": ids}) for query, ids in lost.items()))
    asked: list[Canary] = []

    def run(*_: object, canary: Canary, **__: object) -> mock.Mock:
        asked.append(canary)
        return mock.Mock(generation=2)

    with (
        mock.patch("cde_rag.cli.contexts.open_collection", return_value=papers),
        mock.patch.object(Collection, "recontextualize", run),
        mock.patch("cde_rag.cli.contexts._print_report"),
    ):
        assert (
            CliRunner().invoke(app, ["recontextualize", place, "--canary", str(file), "--may-lose", "3"]).exit_code == 0
        )
        text_of = {record.id: record.text for record in papers.scroll()}
        quoted = [
            {"question": query, "answers": [{"page": id_, "quote": text_of[id_]}]} for query, (id_,) in lost.items()
        ]
        file.write_text("\n".join(map(json.dumps, quoted)))
        assert CliRunner().invoke(app, ["recontextualize", place, "--canary", str(file)]).exit_code == 0
        file.write_text(json.dumps({"question": "a", "answers": [{"page": "1", "quote": "nowhere"}]}))
        found = CliRunner().invoke(app, ["recontextualize", place, "--canary", str(file)])
        assert "a quote that its page does not have" in found.output
    assert asked == [Canary(lost, k=10, may_lose=3), Canary(lost)]


def test_a_run_ends_although_more_comes_in_all_the_time(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    """After every write of the run something new is there, as it is where writers never rest."""
    numbers, store = itertools.count(), papers.store
    real = store.add_to_generation

    def followed(*arguments: Any) -> int:
        taken = real(*arguments)
        call = next(numbers)
        assert call < 60, "the run does not end"
        papers.add([f"river {call}"])
        return taken

    monkeypatch.setattr(store, "add_to_generation", followed)
    report = move(papers)
    assert report.generation == 2
    assert report.documents == papers.count() == report.embedded > 30
    assert store.generations()[1].vectors == report.documents
    assert damages(papers) == []


def test_vectors_of_an_activation_that_is_repeated_count_once(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    """The case of a transaction that PostgreSQL undoes and has repeated."""
    store, undone = papers.store, list[int]()
    write = store._engine.write

    def undo(work: Any, **named: Any) -> Any:
        def failing(session: Any) -> None:
            work(session)
            raise InterruptedError

        if session_activates(work) and not undone:
            undone.append(1)
            with pytest.raises(InterruptedError):
                write(failing, **named)
        return write(work, **named)

    def last(now: Progress) -> None:
        if now.done == 30 and papers.count() == 30:
            papers.add(["river", "money"])

    monkeypatch.setattr(store._engine, "write", undo)
    report = move(papers, on_progress=last)
    assert undone
    assert (report.documents, report.embedded) == (32, 32)


def session_activates(work: Any) -> bool:
    return work.__qualname__.startswith("StoreCalls.activate")


def test_a_run_ends_although_more_comes_in_than_it_can_embed(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    numbers, store = itertools.count(), papers.store
    real = store.add_to_generation

    def followed(*arguments: Any) -> int:
        taken = real(*arguments)
        call = next(numbers)
        assert call < 60, "the run does not end"
        papers.add([f"river {call} {place}" for place in range(6)])
        return taken

    monkeypatch.setattr(generations, "LAST_ROWS", 2)
    monkeypatch.setattr(store, "add_to_generation", followed)
    report = move(papers)
    assert (report.generation, report.embedded) == (2, papers.count())


def test_writers_that_never_rest_lose_nothing(papers: Collection, tiny_model: CDEModel):
    writer = Collection.open(FaissStore(papers.store.folder), model=tiny_model)
    done, added = threading.Event(), list[str]()

    def write() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            writer.add([f"money {number}"], ids=[f"new {number}"])
            added.append(f"new {number}")

    thread = threading.Thread(target=write)
    thread.start()
    report = move(papers)
    done.set()
    thread.join()
    assert report.generation == 2
    assert {record.id for record in papers.scroll()} == {*(str(number) for number in range(30)), *added}
    assert damages(papers) == []
    assert all(papers.get([id_]) for id_ in added)
    assert papers.rollback().generation == 1
    assert papers.count() == 30 + len(added)


def test_a_run_ends_where_its_last_rows_cannot_be_written(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    """A disk that is full when only what came meanwhile is lacking."""
    calls, store = itertools.count(), papers.store

    def full(*_: Any, **__: Any) -> Any:
        assert next(calls) < 9, "the run does not end"
        raise StoreError("the disk is full")

    def last(now: Progress) -> None:
        if now.done == 30:
            papers.add(["river"])
            monkeypatch.setattr(store, "add_to_generation", full)
            monkeypatch.setattr(store, "activate", full)

    with pytest.raises(StoreError, match="the disk is full"):
        move(papers, on_progress=last)
    monkeypatch.undo()
    assert move(papers).documents == 31


def test_older_generations_get_their_last_seconds(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    move(papers, seed=1)
    monkeypatch.setattr(time, "sleep", slept.append)
    move(papers, seed=2, grace_s=3600.0)
    assert 3000 < slept[-1] <= 3600
    assert [one.number for one in papers.store.generations()] == [2, 3]


@pytest.mark.parametrize("grace_s", [float("nan"), float("inf"), -1.0])
def test_a_senseless_grace_is_refused_before_anything_is_done(papers: Collection, grace_s: float):
    with pytest.raises(ValueError, match="grace_s"):
        move(papers, grace_s=grace_s)
    assert papers.inspect().generation == 1


def test_progress_tells_speed_and_time_left(papers: Collection):
    assert (Progress(30, 100, 2.0, 10).per_second, Progress(30, 100, 2.0, 10).left_s) == (10, 7)
    assert (Progress(0, 100, 0.0).left_s, Progress(10, None, 1.0).left_s, Progress(5, 9, 1.0, 5).left_s) == (None,) * 3

    def killed(now: Progress) -> None:
        if now.done >= 12:
            raise StoreError("killed")

    with pytest.raises(StoreError, match="killed"):
        move(papers, on_progress=killed)
    told: list[Progress] = []
    move(papers, on_progress=told.append)
    assert {now.before for now in told} == {12}
    assert [now.done for now in told] == [16, 20, 24, 28, 30]
    assert told[-1].left_s == 0
