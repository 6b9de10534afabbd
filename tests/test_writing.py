"""Upserts and deletes of several threads: they embed side by side, and every vector is right in the end."""

import random
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import QdrantClient
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, ContextualEmbedder, Record
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import StoreError, TruncationWarning
from cde_rag.indexing import made_vectors
from cde_rag.records import PartialRecord, Positions
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.store import Store

TEXTS = [" ".join(random.Random(number).choices(WORDS, k=6)) for number in range(64)]


class Embedder(ContextualEmbedder):
    """Real vectors; `begin` is called before each batch of passages, `embedded` are the texts of all batches."""

    embedded: list[str]

    def begin(self, texts: Sequence[str]) -> None: ...

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        self.begin(texts)
        self.embedded += texts
        return super().embed_passages(texts, siblings, progress=progress)


@pytest.fixture
def embedder() -> Embedder:
    bound = ContextualEmbedder.from_corpus(TEXTS, model=tiny_cde_model(), context_size=64)
    found = Embedder(bound.model, bound.context)
    found.embedded = []
    return found


@pytest.fixture
def papers(tmp_path: Path, embedder: Embedder) -> Iterator[Collection]:
    with Collection.create(FaissStore(tmp_path / "papers.faiss"), embedder, parent_key="page") as papers:
        yield papers


def page(name: str, count: int, *, first: int = 0) -> list[Record]:
    return [
        Record(f"{name}{place}", f"{TEXTS[place % 64]} {name} {place}", metadata={"page": name})
        for place in range(first, first + count)
    ]


def assert_true_vectors(papers: Collection) -> None:
    """Every vector is the one that its text and siblings get in one call."""
    records = list(papers.scroll())
    fresh = papers.embedder.embed_documents(
        [record.text for record in records], parents=[str(record.metadata["page"]) for record in records]
    )
    stored = papers.store.vectors([record.id for record in records], fingerprint=papers.embedder.fingerprint)
    np.testing.assert_allclose(stored, fresh, atol=1e-5)


def run(*calls: object) -> None:
    """Run calls in threads; raises what one of them raised."""
    errors: list[BaseException] = []

    def caught(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=caught, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_threads_embed_side_by_side(papers: Collection, embedder: Embedder):
    both = threading.Barrier(2, timeout=30)  # breaks, where one thread embeds only after the other
    embedder.begin = lambda texts: both.wait()  # type: ignore[method-assign]
    run(lambda: papers.add_records(page("a", 3)), lambda: papers.add_records(page("b", 3)))
    assert papers.count() == 6
    assert_true_vectors_without(embedder, papers)


def assert_true_vectors_without(embedder: Embedder, papers: Collection) -> None:
    embedder.begin = lambda texts: None  # type: ignore[method-assign]
    assert_true_vectors(papers)


def test_a_delete_does_not_wait_for_an_upsert_that_embeds(papers: Collection, embedder: Embedder):
    papers.add_records([*page("a", 3), *page("b", 3)])
    embedding, deleted = threading.Event(), threading.Event()

    def begin(texts: Sequence[str]) -> None:
        if any(" c " in text for text in texts):
            embedding.set()
            assert deleted.wait(30), "the delete waited for the upsert"

    embedder.begin = begin  # type: ignore[method-assign]

    def delete() -> None:
        assert embedding.wait(30)
        assert papers.delete(["b0", "b1", "b2"]) == 3
        assert papers.delete(["a0"]) == 1
        deleted.set()

    run(lambda: papers.add_records(page("c", 3)), delete)
    assert [record.id for record in papers.scroll()] == ["a1", "a2", "c0", "c1", "c2"]
    assert_true_vectors_without(embedder, papers)


def test_what_another_thread_did_to_a_parent_meanwhile_is_embedded_again_and_no_more(
    papers: Collection, embedder: Embedder
):
    papers.add_records([*page("a", 4), *page("b", 4)])
    embedder.embedded.clear()
    meanwhile = [True]

    def begin(texts: Sequence[str]) -> None:
        if meanwhile.pop() if meanwhile else False:
            papers.add_records([Record("a9", "the last of a", metadata={"page": "a"})])

    embedder.begin = begin  # type: ignore[method-assign]
    papers.add_records([*page("a", 1, first=4), *page("b", 1, first=4)])
    a, b = 5 + 5 + 6, 5  # of a: what came meanwhile, what was planned before, and all again as they are now
    assert len(embedder.embedded) == a + b
    assert_true_vectors_without(embedder, papers)


def test_a_passage_that_moves_to_another_parent_while_it_is_embedded(papers: Collection, embedder: Embedder):
    papers.add_records([*page("a", 3), *page("b", 3), *page("c", 3)])
    (moved,) = papers.get(["a1"])
    meanwhile = [True]

    def begin(texts: Sequence[str]) -> None:
        if meanwhile.pop() if meanwhile else False:
            papers.add_records([Record("a1", moved.text, metadata={"page": "c"})])

    embedder.begin = begin  # type: ignore[method-assign]
    papers.add_records([Record("a1", "another text", metadata={"page": "b"})])
    assert papers.get(["a1"])[0].metadata == {"page": "b"}
    assert_true_vectors_without(embedder, papers)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", ["folder", "qdrant", "postgres"])
def test_a_field_that_was_not_given_keeps_what_another_call_wrote_meanwhile(
    tmp_path: Path, request: pytest.FixtureRequest, embedder: Embedder, kind: str, at_once: bool
):
    """While "new" is embedded, another call changes the title, the metadata or the parent of the record, or deletes it.

    The header in the title follows the metadata. The other call is made on another object, as by another process.
    """
    places: dict[str, Callable[[], Store]] = {
        "folder": lambda: FaissStore(tmp_path / "papers.faiss"),
        "qdrant": partial(QdrantStore, QdrantClient(":memory:"), "papers"),
        "postgres": lambda: PgVectorStore(request.getfixturevalue("postgres"), f"writing_{at_once}".lower()),
    }
    store, another = places[kind](), places[kind]()
    with (
        Collection.create(store, embedder, parent_key="page", headers=["section"]) as papers,
        Collection(another, embedder) as others,
    ):
        before = [Record(id_, f"old {id_}", "river", {"page": "p", "section": "loan"}) for id_ in "abcd"]
        after = [
            Record("a", "old a", "bank", {"page": "p", "section": "loan"}),
            Record("b", "old b", "river", {"page": "p", "section": "flood", "year": 2020}),
            Record("c", "old c", "river", {"page": "q", "section": "loan"}),
        ]
        expected = [
            Record("a", "new a", "bank > loan", after[0].metadata),
            Record("b", "new b", "river > flood", after[1].metadata),
            Record("c", "new c", "river > loan", after[2].metadata),
            Record("d", "new d"),
            Record("e", "new e"),
        ]
        papers.add_records(before)
        meanwhile = [True]

        def begin(texts: Sequence[str]) -> None:
            if meanwhile.pop() if meanwhile else False:
                others.add_records(after)
                others.delete(["d"])

        embedder.begin = begin  # type: ignore[method-assign]
        records = [PartialRecord(id_, f"new {id_}", kept=frozenset({"title", "metadata"})) for id_ in "abcde"]
        papers.add_records(records, at_once=at_once)
        assert papers.get(list("abcde")) == expected
        texts = [f"{record.title} {record.text}".strip() for record in expected]
        embedded = embedder.embed_passages(texts, [[texts[1]], [texts[0]], [], [], []]).vectors
        stored = papers.store.vectors(list("abcde"), fingerprint=embedder.fingerprint)
        np.testing.assert_allclose(stored, embedded, atol=1e-5)


def test_a_parent_that_changes_during_every_try_is_embedded_under_the_lock(papers: Collection, embedder: Embedder):
    papers.add_records(page("a", 3))
    others, tries = iter(range(100)), 0
    writing = threading.local()

    def begin(texts: Sequence[str]) -> None:
        nonlocal tries
        if getattr(writing, "other", False) or not any("arrives" in text for text in texts):
            return
        tries += 1
        done = threading.Event()

        def other() -> None:
            writing.other = True
            papers.add_records([Record(f"o{next(others)}", "of another call", metadata={"page": "a"})])
            done.set()

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        waiting.append(thread)
        done.wait(5 if tries <= 8 else 0.2)  # the ninth time it waits for the lock

    waiting: list[threading.Thread] = []
    embedder.begin = begin  # type: ignore[method-assign]
    papers.add_records([Record("new", "it arrives", metadata={"page": "a"})])
    embedder.begin = lambda texts: None  # type: ignore[method-assign]
    for thread in waiting:
        thread.join(30)
    assert tries == 9
    assert papers.count() == 3 + 9 + 1
    assert_true_vectors(papers)


def test_parents_that_another_process_changes_in_every_try_are_an_error(papers: Collection, embedder: Embedder):
    """The other process is another collection on the same folder: it has a lock of its own."""
    papers.add_records(page("a", 3))
    other = Collection.open(FaissStore(papers.store.folder), model=embedder.model)  # type: ignore[attr-defined]
    numbers = iter(range(10, 100))
    embedder.begin = lambda texts: other.add_records(  # type: ignore[method-assign]
        page("a", 1, first=next(numbers))
    )
    with pytest.raises(
        StoreError, match=r"Another process kept changing the same documents \(16 attempts\)\. No data was lost"
    ):
        papers.add_records([Record("new", "it arrives", metadata={"page": "a"})])
    embedder.begin = lambda texts: None  # type: ignore[method-assign]
    assert papers.get(["new"]) == []
    papers.add_records([Record("new", "it arrives", metadata={"page": "a"})])
    assert papers.count() == 3 + 16 + 1
    assert_true_vectors(papers)


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_change_the_same_parents_leave_true_vectors(papers: Collection, embedder: Embedder, seed: int):
    def work(worker: int) -> None:
        order = random.Random(f"{seed} {worker}")
        for step in range(12):
            name, place = order.choice("ab"), order.randrange(24)
            match order.randrange(4):
                case 0:
                    papers.delete([f"a{place}", f"b{place}"])
                case 1:
                    moved = Record(f"a{place}", f"moved by {worker}", metadata={"page": name})
                    papers.add_records([moved])
                case _:
                    papers.add_records(
                        page(name, order.randrange(1, 5), first=place) + page("own", 1, first=worker * 20 + step)
                    )

    papers.add_records([*page("a", 24), *page("b", 24)])
    run(*(lambda worker=worker: work(worker) for worker in range(3)))
    assert papers.count({"page": "own"}) > 0
    assert_true_vectors(papers)


@pytest.mark.parametrize("step", [1, 10])
def test_appending_to_a_parent_embeds_ten_passages_for_each_at_most(papers: Collection, embedder: Embedder, step: int):
    records = page("a", 40)
    for first in range(0, 40, step):
        papers.add_records(records[first : first + step])
        assert len(embedder.embedded) <= 10 * (first + step)
    assert_true_vectors(papers)
    embedder.embedded.clear()
    for record in reversed(records):
        papers.delete([record.id])
    assert len(embedder.embedded) <= 10 * 40


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("way", ["ids", "where"])
def test_a_delete_of_many_passages_embeds_each_that_stays_once(papers: Collection, embedder: Embedder, way: str):
    """Also one that goes in several writes: every part knows all that leave."""
    gone = [Record(one.id, one.text, metadata={**one.metadata, "gone": True}) for one in page("a", 100)]
    papers.add_records([*gone, *page("a", 40, first=100), *page("b", 10)])
    embedder.embedded.clear()
    with mock.patch.object(made_vectors, "LARGEST_WRITE", 30):
        ids = [one.id for one in gone]
        assert (papers.delete(ids) if way == "ids" else papers.delete(where={"gone": True})) == 100
        assert sorted(embedder.embedded) == sorted({*embedder.embedded})
        assert 0 < len(embedder.embedded) <= 40
        assert_true_vectors(papers)
        embedder.embedded.clear()
        assert papers.delete([one.id for one in page("a", 40, first=100)]) == 40
    assert embedder.embedded == []
    assert papers.count() == 10


def test_a_warning_that_is_an_error_hides_no_error(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cde_rag.records.CHUNK", 4)

    def records(name: str) -> Iterator[Record]:
        yield Record(name, "the river bank " * 40, metadata={"page": name})
        yield from (page(other, 1)[0] for other in "bcdefgh")
        raise RuntimeError("the source broke")

    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncationWarning)
        with pytest.raises(RuntimeError, match="the source broke"):
            papers.add_records(records("long"))
    with pytest.warns(TruncationWarning, match="1 of "), pytest.raises(RuntimeError, match="the source broke"):
        papers.add_records(records("another"))


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=5), min_size=1, max_size=12))
def test_positions_are_the_first_of_each_id(parts: list[list[str]]):
    positions, seen = Positions(), list[str]()
    for part in parts:
        positions.extend(part)
        seen += part
        assert positions.first(part) == [seen.index(each) for each in part]
    assert positions.first([]) == []


def test_positions_of_a_long_call_are_not_read_for_each_chunk():
    """A call that updates all of its records: elements that are sorted, and that lookups go through."""
    sorted_, looked_up = [0], [0]
    unique, search = np.unique, np.searchsorted

    def count_sorted(values: np.ndarray, **more: bool) -> tuple[np.ndarray, np.ndarray]:
        sorted_[0] += len(values)
        return unique(values, **more)

    def count_lookups(run: np.ndarray, asked: np.ndarray) -> np.ndarray:
        looked_up[0] += len(asked)
        return search(run, asked)

    positions, chunks, size = Positions(), 256, 64
    with mock.patch.object(np, "unique", count_sorted), mock.patch.object(np, "searchsorted", count_lookups):
        for chunk in range(chunks):
            ids = [f"{chunk} {place}" for place in range(size)]
            positions.extend(ids)
            assert positions.first(ids)[-1] == (chunk + 1) * size - 1
    assert sorted_[0] <= 10 * chunks * size
    assert looked_up[0] <= 9 * chunks * size


def test_what_is_written_at_once_has_all_vectors_before_also_of_passages_that_move(tmp_path: Path, embedder: Embedder):
    with Collection.create(FaissStore(tmp_path / "papers.faiss"), embedder, parent_key="page") as papers:
        papers.add_records([*page("a", 4), *page("b", 4)])
        before, calls = list(papers.scroll()), list[int]()

        def begin(texts: Sequence[str]) -> None:
            calls.append(len(texts))
            assert list(papers.scroll()) == before

        moved = [replace(record, metadata={"page": "b"}) for record in before[1:3]]
        records = [*moved, replace(before[3], text="another text"), Record("new", "a new one", metadata={"page": "b"})]
        planned = papers.add_records(records, dry_run=True).embedded
        embedder.begin = begin
        papers.add_records(records, at_once=True)
        assert calls == [planned]
        embedder.begin = lambda _: None
        assert papers.audit(sample=100).others == ()
