"""Records that wait for their vectors: found by words at once, embedded by a fill or by a search, never stale."""

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from test_collection import StubEmbedder, contents, passages, small_chunks

from cde_rag.collection.collection import Collection, _is_later
from cde_rag.collection.first_context import create_without_documents
from cde_rag.context.context import Context
from cde_rag.errors import CDEWarning, CorpusError, PendingVectorsWarning, ServiceError, StoreError, TruncationWarning
from cde_rag.indexing import pending
from cde_rag.indexing.pending import EmbedReport
from cde_rag.indexing.upsert import AddReport
from cde_rag.records import Hits, Record
from cde_rag.search.retrievers import ON_DEMAND, UNMADE
from cde_rag.stores.faiss import FaissStore


class Stub(StubEmbedder):
    """One that follows to another context."""

    def with_context(self, context: Context) -> "Stub":
        other = copy.copy(self)
        other.context = context
        return other


WORDS = "heron swift stork crane finch robin wren owl kite crow".split()


def made(place: Path, embedder: Stub | None = None, *, parent_key: str | None = "parent") -> Collection:
    return Collection.create(FaissStore(place), embedder or Stub(), parent_key=parent_key)


@pytest.fixture
def birds(tmp_path: Path) -> Iterator[Collection]:
    with made(tmp_path / "birds") as collection:
        yield collection


def birds_of(count: int, *, parents: int = 3) -> list[Record]:
    """Texts with some words in common; a third of them in each parent."""
    return [
        Record(str(n), f"{WORDS[n % 10]} and {WORDS[n * 7 % 10]} number {n}", metadata={"parent": f"p{n % parents}"})
        for n in range(count)
    ]


def vectors_of(collection: Collection) -> dict[str, np.ndarray]:
    """The vectors of records that have one."""
    ids = [row.record.id for row in collection.store.scroll() if row.digest]
    found = collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint) if ids else []
    return dict(zip(ids, found, strict=True))


def built(place: Path, collection: Collection) -> Collection:
    """The same records, embedded first in a collection of their own, with the same embedder."""
    other = made(place, Stub(), parent_key=collection.parent_key)
    with mock.patch.object(other, "_active", other._active):
        other.add_records(list(collection.scroll()))
    return other


def assert_vectors_are_of_the_finished_collection(collection: Collection, finished: Collection) -> None:
    """To the bit: those that are there already are those that filling or adding first would have made."""
    expected = vectors_of(finished)
    for id_, vector in vectors_of(collection).items():
        np.testing.assert_array_equal(vector, expected[id_])


def test_records_are_found_by_words_before_any_vector_is_made(birds: Collection):
    report = birds.add(["a heron", "a swift"], ids=["h", "s"], embed="later")
    assert report == AddReport(added=2)
    assert birds.embedder.embedded == []
    assert (birds.count(), birds.pending, birds.inspect().pending) == (2, 2, 2)
    assert [hit.id for hit in birds.search("heron", by="bm25")] == ["h"]
    assert birds.verify() == []
    assert birds.embed_pending() == EmbedReport(embedded=2, truncated=0, pending=0)
    assert (birds.pending, birds.inspect().pending) == (0, 0)
    assert not birds.store.manifest().may_wait
    assert birds.embed_pending() == EmbedReport(0, 0, 0)
    assert sorted(birds.embedder.embedded) == ["a heron", "a swift"]


def test_what_is_neither_first_nor_later_is_refused(birds: Collection):
    with pytest.raises(ValueError, match="'first' or 'later'"):
        _is_later("never")  # typed calls refuse it in tests
    with pytest.raises(ValueError, match="limit"):
        birds.embed_pending(limit=0)
    with pytest.raises(ValueError, match="hybrid"):
        birds.searcher("bm25", embed_budget_ms=5)
    with pytest.raises(ValueError, match="embed_budget_ms"):
        birds.searcher(embed_budget_ms=-1)


def test_filled_it_is_as_if_it_had_been_embedded_first(tmp_path: Path, birds: Collection):
    told = []
    with small_chunks(), mock.patch.object(pending, "_ROWS_AT_ONCE", 4):
        birds.add_records(birds_of(22), embed="later")
        assert birds.embed_pending(limit=5, on_progress=told.append) == EmbedReport(5, 0, 17)
        assert birds.embed_pending(on_progress=told.append) == EmbedReport(17, 0, 0)
    assert [(progress.done, progress.total) for progress in told][-1] == (22, 22)
    assert [progress.before for progress in told][-1] == 5
    with built(tmp_path / "first", birds) as first:
        assert contents(birds) == contents(first)
        assert_vectors_are_of_the_finished_collection(birds, first)
        assert birds.search("heron and crow", k=22) == first.search("heron and crow", k=22)


def test_a_changed_record_waits_again_and_so_do_those_whose_siblings_change(tmp_path: Path, birds: Collection):
    birds.add_records(passages("a", 4))
    birds.add_records(passages("b", 2))
    birds.add_records([Record("a1", "another", metadata={"parent": "a"})], embed="later")
    waiting = {row.record.id for row in birds.store.pending()}
    assert "a1" in waiting
    assert waiting <= {f"a{n}" for n in range(4)}
    with built(tmp_path / "first", birds) as first:
        assert_vectors_are_of_the_finished_collection(birds, first)
        birds.embed_pending()
        assert contents(birds) == contents(first)


def test_unchanged_records_keep_their_vectors_and_metadata_alone_embeds_nothing(birds: Collection):
    birds.add_records(birds_of(6))
    assert birds.add_records(birds_of(6), embed="later") == AddReport(unchanged=6)
    assert birds.pending == 0
    birds.add_records(birds_of(9), embed="later")
    before = birds.pending
    tagged = [Record(r.id, r.text, metadata={**r.metadata, "tag": 1}) for r in birds_of(9)]
    assert birds.add_records(tagged, embed="later") == AddReport(updated=9)
    assert birds.pending == before
    assert len(birds.embedder.embedded) == 6


def test_what_waits_and_does_not_change_is_not_written_again(birds: Collection):
    birds.add_records(birds_of(6), embed="later")
    with mock.patch.object(birds.store._engine.database, "writing", side_effect=AssertionError):
        assert birds.add_records(birds_of(6), dry_run=True).embedded == 6
    state_add = mock.Mock(side_effect=AssertionError)
    with mock.patch("cde_rag.stores.faiss.engine.FolderSession.put", state_add):
        assert birds.add_records(birds_of(6), embed="later") == AddReport(unchanged=6)
    assert birds.add_records(birds_of(6)) == AddReport(unchanged=6)  # this embeds what waits
    assert birds.pending == 0


def test_calls_about_others_leave_waiting_what_waits(birds: Collection):
    birds.add_records(passages("a", 4), embed="later")
    birds.delete(["a0"])
    assert (birds.pending, birds.embedder.embedded) == (3, [])
    birds.add_records(passages("b", 1))
    assert (birds.pending, len(birds.embedder.embedded)) == (3, 1)


def test_too_long_texts_are_told_of_when_they_are_embedded(birds: Collection):
    birds.add(["long " * 20, "short"], embed="later")
    with pytest.warns(TruncationWarning, match="1 of 2 embedded records"):
        assert birds.embed_pending() == EmbedReport(2, 1, 0)


# --- searching meanwhile


def test_a_search_embeds_its_best_candidates_and_writes_them(tmp_path: Path, birds: Collection):
    birds.add_records(birds_of(40), embed="later")
    hits = birds.search("heron", k=40)
    embedded = birds.embedder.embedded
    assert 0 < len(embedded) == len(set(embedded))
    assert all("heron" in text for text in embedded)
    assert isinstance(hits, Hits)
    assert hits.pending == birds.pending == 40 - len(embedded)
    with built(tmp_path / "first", birds) as first:
        assert_vectors_are_of_the_finished_collection(birds, first)
    again = birds.search("heron", k=40)
    assert (again, len(birds.embedder.embedded)) == (hits, len(embedded))
    by_vectors = {hit.id: hit.score for hit in birds.searcher(weight=1.0).search("heron", k=40)}
    assert by_vectors.keys() == {str(n) for n in range(40) if "heron" in birds.get([str(n)])[0].text}


def test_a_search_without_a_budget_embeds_nothing(birds: Collection):
    birds.add_records(birds_of(10), embed="later")
    birds.embed_budget_ms = 0
    assert [hit.id for hit in birds.search("heron")]
    assert birds.embedder.embedded == []
    birds.searcher(embed_budget_ms=1000).search("heron")
    assert birds.embedder.embedded


def test_waiting_hits_stand_by_their_words_where_no_vector_is_made(birds: Collection):
    """Passages that have vectors do not go before all that wait."""
    birds.add_records(birds_of(60), embed="later")
    birds.embed_pending(limit=30)
    birds.embed_budget_ms = 0
    waiting = {row.record.id for row in birds.store.scroll() if not row.digest}
    assert len(waiting) == 30
    for id_ in sorted(waiting):
        assert birds.search(f"number {id_}", k=1)[0].id == id_
    by_words = [hit.id for hit in birds.search("heron", k=60, by="bm25") if hit.id in waiting]
    assert [hit.id for hit in birds.search("heron", k=60) if hit.id in waiting] == by_words != []


@pytest.mark.parametrize("parent_key", [None, "parent"])
def test_the_budget_ends_the_embedding_in_the_order_of_bm25(tmp_path: Path, parent_key: str | None):
    """Pages whose passages have siblings come in the order of their best passage, and each at once."""
    with made(tmp_path / "birds", parent_key=parent_key) as birds:
        birds.add_records(birds_of(60), embed="later")
        clock = map(float, range(1000))
        with mock.patch.object(pending.time, "monotonic", side_effect=clock):
            birds.searcher(embed_budget_ms=3000).search("heron", k=60)
        best = birds.searcher("bm25").search("heron", k=60)
        if parent_key is not None:
            pages = list(dict.fromkeys(hit.metadata["parent"] for hit in best))
            best.sort(key=lambda hit: pages.index(hit.metadata["parent"]))
        embedded = birds.embedder.embedded
        assert 0 < len(embedded) < len(best)
        assert embedded == [hit.text for hit in best][: len(embedded)]


class Timed(Stub):
    """One that takes a second for a hundred characters of a text or of a sibling that it has not read before."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.read = 0.0, set[str]()

    def embed_passages(self, texts: Any, siblings: Any, *, progress: bool = False) -> Any:
        new = {text for group in siblings for text in group} - self.read
        self.read |= new
        self.now += sum(min(len(text), 5 * self.context.identity.max_length) / 100 for text in (*texts, *new))
        return super().embed_passages(texts, siblings, progress=progress)


def page_of(name: str, passages: int, *, length: int, herons: int, on_each: bool) -> list[Record]:
    """Return the passages of a page: each of them about herons, or the first alone."""
    return [
        Record(
            f"{name}-{n}",
            f"{'heron ' * (herons if on_each or not n else 0)}{name} {n}".ljust(length, "."),
            metadata={"parent": name},
        )
        for n in range(passages)
    ]


@pytest.mark.parametrize("found", ["many pages after one", "long texts after short ones"])
def test_the_budget_holds_where_the_next_texts_take_more_than_the_last(tmp_path: Path, found: str):
    if found == "many pages after one":  # of which each passage takes siblings with it
        records = page_of("best", 40, length=100, herons=6, on_each=True)
        records += [row for n in range(80) for row in page_of(f"p{n}", 17, length=100, herons=1, on_each=False)]
    else:
        records = page_of("best", 40, length=100, herons=6, on_each=True)
        records += [row for n in range(80) for row in page_of(f"p{n}", 1, length=5_000, herons=1, on_each=True)]
    with made(tmp_path / "timed", timed := Timed()) as birds:
        birds.add_records(records, embed="later")
        for budget_s in (200, 50):
            timed.now, before = 0.0, len(timed.embedded)
            with mock.patch.object(pending.time, "monotonic", side_effect=lambda: timed.now):
                birds.searcher(embed_budget_ms=budget_s * 1000).search("heron", k=10)
            assert 0.5 * budget_s < timed.now <= 1.2 * budget_s
            assert len(timed.embedded) > before


def test_reading_takes_a_small_part_of_the_budget(birds: Collection, monkeypatch: pytest.MonkeyPatch):
    """Many siblings let fewer hits be looked at; each of the fifty first ones in any case."""
    birds.add_records([Record(str(n), f"heron number {n}") for n in range(250)], embed="later")
    now, asked, waiting_of = 0.0, list[int](), pending.waiting_of

    def slow(state: Any, rows: Any, *others: Any) -> Any:
        nonlocal now
        now += 0.01 * len(rows)
        asked.append(len(rows))
        return waiting_of(state, rows, *others)

    monkeypatch.setattr(pending, "waiting_of", slow)
    monkeypatch.setattr(pending.time, "perf_counter", lambda: now)
    for budget_s, most in ((10, 100), (1, UNMADE), (100, ON_DEMAND)):
        with mock.patch.object(birds.embedder, "embed_passages", side_effect=ConnectionError):  # nothing is made
            asked.clear()
            birds.searcher(embed_budget_ms=budget_s * 1000).search("heron", k=1)
            assert asked[-1] == most


def test_a_text_that_takes_too_long_stops_no_others(tmp_path: Path):
    with made(tmp_path / "timed", timed := Timed()) as birds:
        birds.add_records(page_of("first", 3, length=100, herons=1, on_each=True), embed="later")
        with mock.patch.object(pending.time, "monotonic", side_effect=lambda: timed.now):
            birds.searcher(embed_budget_ms=60_000).search("heron")  # which measures the speed
            birds.add_records(page_of("long", 1, length=5_000, herons=9, on_each=True), embed="later")
            for name in ("next", "last"):
                birds.add_records(page_of(name, 1, length=100, herons=1, on_each=True), embed="later")
            start = timed.now
            birds.searcher(embed_budget_ms=2_400).search("heron", k=10)
        assert timed.now <= start + 2.4 * 1.2
        assert [row.record.id for row in birds.store.pending()] == ["long-0"]


def test_time_that_is_left_goes_to_hits_far_below_the_first_ones(tmp_path: Path):
    with made(tmp_path / "birds") as birds:
        birds.add_records([Record(str(n), f"heron number {n}") for n in range(250)], embed="later")
        birds.searcher(embed_budget_ms=60_000).search("heron", k=1)
        assert len(birds.embedder.embedded) == ON_DEMAND


def test_vectors_that_cannot_be_written_stay_in_memory_and_rank_alike(tmp_path: Path, birds: Collection):
    birds.add_records(birds_of(30), embed="later")
    birds.embed_pending(limit=7)
    with made(tmp_path / "twin") as twin:
        twin.add_records(birds_of(30), embed="later")
        twin.embed_pending(limit=7)
        expected = twin.search("heron", k=30)
    with mock.patch.object(birds.store, "write", side_effect=StoreError("the disk is full")):
        hits = birds.search("heron", k=30)
        count = len(birds.embedder.embedded)
        assert birds.search("heron", k=30) == hits == expected
        assert len(birds.embedder.embedded) == count
    assert birds.pending == 23


def test_a_search_does_not_wait_for_a_writer(birds: Collection):
    birds.add_records(birds_of(10), embed="later")
    entered, leave = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        entered.set()
        assert leave.wait(60)

    writer = threading.Thread(target=lambda: birds.store.write(hold))
    writer.start()
    try:
        assert entered.wait(60)
        assert birds.search("heron")
        assert birds.pending == 10
    finally:
        leave.set()
        writer.join()
    birds.search("heron")  # those in memory need no second embedding
    assert len(birds.embedder.embedded) == len(set(birds.embedder.embedded))


def test_a_search_by_vectors_says_what_it_misses_once(birds: Collection):
    birds.add_records(birds_of(4))
    birds.add(["a late heron"], ids=["late"], embed="later")
    with pytest.warns(PendingVectorsWarning, match=r"not found by them: 1 record\. Search"):
        hits = birds.search("heron", by="vectors")
    assert isinstance(hits, Hits)
    assert (len(hits), hits.pending) == (4, 1)
    assert isinstance(second := birds.search("heron", k=2, by="vectors"), Hits)  # without a warning
    assert second.pending == 1
    birds.embed_pending()
    assert isinstance(done := birds.search("heron", by="vectors"), Hits)
    assert (len(done), done.pending) == (5, 0)


def test_a_batch_shares_the_budget_among_its_queries(birds: Collection):
    birds.add_records(birds_of(30), embed="later")
    found = birds.searcher().search_batch(["heron", "owl"], k=5)
    assert [len(hits) for hits in found] == [5, 5]
    assert any("heron" in text for text in birds.embedder.embedded)
    assert any("owl" in text for text in birds.embedder.embedded)


class Picky(Stub):
    """One that cannot read a word, as a model of static vectors, and fails where it is `down`.

    Attributes:
        refusal: Its error, as of a model of ours, a user's function or an API.
        calls: How often it was called.
    """

    down = False
    refusal: Exception | None = None
    calls = 0

    def embed_passages(self, texts: Any, siblings: Any, *, progress: bool = False) -> Any:
        self.calls += 1
        if self.down:
            raise ConnectionError("The API is down.")
        if self.refusal is not None and any("zzz" in text for text in texts):
            raise self.refusal
        if bad := [place for place, text in enumerate(texts) if "zzz" in text]:
            raise CorpusError(f"Text {bad[0]} has no word that the model knows.")
        return super().embed_passages(texts, siblings, progress=progress)


REFUSALS = (None, ValueError("Text has no word: 400"), ServiceError("Text has no word: status 400"))


@pytest.mark.parametrize("refusal", REFUSALS)
def test_texts_that_the_model_cannot_read_stop_no_fill_and_no_search(
    tmp_path: Path, refusal: Exception | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Picky, "refusal", refusal)
    texts = [f"heron {n}" for n in range(40)]
    texts[3] = texts[17] = "heron zzz"
    with made(tmp_path / "picky", Picky()) as picky:
        picky.add(texts, ids=[str(n) for n in range(40)], embed="later")
        found = picky.search("heron", k=40)
        assert (len(found), picky.pending) == (40, 2)
        with mock.patch.object(picky.embedder, "embed_passages", side_effect=AssertionError):
            assert len(picky.search("heron", k=40)) == 40  # it is not tried again
    with made(tmp_path / "filled", Picky()) as picky, mock.patch.object(pending, "_ROWS_AT_ONCE", 4):
        picky.add(texts, ids=[str(n) for n in range(40)], embed="later")
        with pytest.raises(
            CorpusError, match=r"found 2 records without vectors still, such as '3': Text .*has no word"
        ):
            picky.embed_pending()
        assert {row.record.id for row in picky.store.pending()} == {"3", "17"}
        picky.delete(["3", "17"])
        assert picky.embed_pending() == EmbedReport(0, 0, 0)


def test_an_outage_ends_a_fill_at_once(tmp_path: Path):
    with made(tmp_path / "down", Picky()) as picky:
        picky.add([f"heron {n}" for n in range(40)], embed="later")
        picky.embedder.down = True
        with pytest.raises(ConnectionError, match="The API is down"):
            picky.embed_pending()
        assert (picky.embedder.calls, picky.pending) == (2, 40)  # its texts, and one of ours


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_move_leaves_waiting_what_waits_and_the_model_refuses(
    tmp_path: Path, refusal: Exception | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Picky, "refusal", refusal)
    with made(tmp_path / "moved", Picky(), parent_key=None) as picky:
        picky.add_records(birds_of(9))
        picky.add(["a zzz heron", "a late swift"], ids=["bad", "late"], embed="later")
        for move, generation in ((lambda: picky.recontextualize(embedder=Picky(("c", "d"))), 2), (picky.rollback, 1)):
            with pytest.warns(
                CDEWarning, match="found 1 record without vectors still, such as 'bad': Text .*has no word"
            ):
                assert move().generation == generation
            assert [row.record.id for row in picky.store.pending()] == ["bad"]
            assert (picky.verify(), picky.store.manifest().may_wait) == ([], True)
        picky.delete(["bad"])
        assert picky.embed_pending() == EmbedReport(0, 0, 0)


def test_a_move_that_would_lose_vectors_makes_all_others_first(tmp_path: Path):
    with made(tmp_path / "moved") as birds:
        birds.add(["a zzz heron", "a swift"], ids=["bad", "good"])
        with pytest.raises(
            CorpusError, match=r"1 record without vectors still, such as 'bad': .*the same call goes on"
        ):
            birds.recontextualize(embedder=(picky := Picky(("c", "d"))))
        assert (birds.store.manifest().generation, birds.pending) == (1, 0)
        birds.delete(["bad"])
        calls = picky.calls
        assert birds.recontextualize(embedder=picky).generation == 2
        assert picky.calls == calls


def test_an_answer_comes_though_the_model_fails(tmp_path: Path):
    with made(tmp_path / "down", Picky()) as picky:
        picky.add(["a heron", "a swift"], ids=["h", "s"], embed="later")
        picky.embedder.down = True
        assert [hit.id for hit in picky.search("heron")] == ["h"]
        picky.embedder.down = False
        picky.search("heron")
        assert picky.pending == 1


def test_a_slow_start_does_not_end_embedding_for_good(birds: Collection):
    birds.add_records(birds_of(60), embed="later")
    clock = map(float, range(0, 10_000, 10))
    with mock.patch.object(pending.time, "monotonic", side_effect=clock):
        birds.search("heron")
    begun = len(birds.embedder.embedded)
    for _ in range(8):
        birds.search("heron")
    assert len(birds.embedder.embedded) > begun


# --- other contexts, copies


def test_a_new_context_and_the_way_back_embed_what_waits(birds: Collection, tmp_path: Path):
    other = Stub(("c", "d"))
    birds.add_records(birds_of(9))
    birds.add_records([Record("0", "changed heron", metadata={"parent": "p0"}), *birds_of(12)[9:]], embed="later")
    assert birds.pending > 3
    moved = birds.recontextualize(embedder=other)
    assert (moved.documents, birds.pending, birds.store.manifest().may_wait) == (12, 0, False)
    birds.add_records([Record("1", "changed swift", metadata={"parent": "p1"})], embed="later")
    back = birds.rollback()
    assert back.generation == 1
    assert (birds.pending, birds.verify()) == (0, [])
    with built(tmp_path / "first", birds) as first:
        assert contents(birds) == contents(first)
        assert_vectors_are_of_the_finished_collection(birds, first)


def test_a_move_leaves_waiting_what_waits(birds: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the first rows that are read all wait."""
    monkeypatch.setattr("cde_rag.indexing.backfill.ROWS_AT_ONCE", 2)
    other = Stub(("c", "d"))
    birds.add_records(birds_of(6), embed="later")
    birds.add_records(birds_of(12)[6:], embed="first")
    before = birds.pending
    assert 6 <= before < 12
    moved = birds.recontextualize(embedder=other, embed="later")
    assert (moved.embedded, moved.generation, len(other.embedded)) == (12 - before, 2, 12 - before)
    assert (birds.pending, birds.verify(), birds.store.manifest().may_wait) == (before, [], True)
    assert birds.embed_pending().embedded == before
    assert birds.rollback().embedded == before
    with built(tmp_path / "first", birds) as first:
        assert_vectors_are_of_the_finished_collection(birds, first)


def test_a_collection_that_began_without_documents_moves_before_its_vectors_are_made(tmp_path: Path):
    with Collection(
        FaissStore(tmp_path / "x"), create_without_documents(FaissStore(tmp_path / "x"), "cde-mini", None)
    ) as made_:
        made_.add([f"{WORDS[n % 10]} number {n}" for n in range(70)], embed="later")
        null = made_.embedder.fingerprint
        report = made_.embed_pending(limit=3)
        assert report == EmbedReport(3, 0, 67)
        assert made_.embedder.fingerprint != null
        assert made_.embedder.context.manifest.documents_seen == 70
        assert made_.store.manifest().generation == 2


def test_what_changes_while_a_new_context_is_filled_is_embedded_as_it_is_then(birds: Collection):
    other = Stub(("c", "d"))
    birds.add_records(birds_of(12), embed="later")
    embed = other.embed_passages

    def embed_and_change(*asked: Any, **more: Any) -> Any:
        found = embed(*asked, **more)
        other.embed_passages = embed  # type: ignore[method-assign]
        birds.add_records([Record("3", "changed meanwhile", metadata={"parent": "p0"})], embed="later")
        return found

    other.embed_passages = embed_and_change  # type: ignore[method-assign]
    birds.recontextualize(embedder=other)
    (vector,) = birds.store.vectors(["3"], fingerprint=other.fingerprint)
    assert birds.get(["3"])[0].text == "changed meanwhile"
    rows = [row for row in birds.store.scroll() if row.record.metadata["parent"] == "p0"]
    from cde_rag.indexing.sibling_passages import passages as as_embedded

    for row, passage in zip(rows, as_embedded(rows, birds.embedder), strict=True):
        assert row.digest == passage.digest
        (vector,) = birds.store.vectors([row.record.id], fingerprint=other.fingerprint)
        np.testing.assert_array_equal(vector, other.vector(row.record.text, passage.siblings))


def test_a_copy_waits_as_well_and_an_export_refuses(birds: Collection, tmp_path: Path):
    birds.add_records(birds_of(6), embed="later")
    birds.embed_pending(limit=2)
    birds.backup(tmp_path / "backup")
    with mock.patch("cde_rag.collection.collection.loaded", return_value=Stub()):
        copy = Collection.restore(tmp_path / "backup", FaissStore(tmp_path / "copy"))
    assert (copy.count(), copy.pending) == (6, 4)
    assert contents(copy) == contents(birds)
    with pytest.raises(StoreError, match="4 that wait"):
        birds.export(tmp_path / "birds.parquet")
    assert not (tmp_path / "birds.parquet").exists()
    copy.embed_pending()
    assert copy.verify() == []
    assert copy.export(tmp_path / "copy.parquet").documents == 6


def test_an_audit_skips_what_waits(birds: Collection):
    birds.add_records(birds_of(6))
    birds.add(["late heron"], embed="later")
    audit = birds.audit(sample=100)
    assert audit.sample == 6 if hasattr(audit, "sample") else not audit.others


# --- whole lives


class Life(RuleBasedStateMachine):
    """A collection that is filled in any order, beside one of the same records that is embedded first."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place, self.number = place, 0
        self.own = made(place / "own")
        self.held: dict[str, Record] = {}

    batches = st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.sampled_from(WORDS[:4]), st.sampled_from(["p", "q", None])), min_size=1
    )

    @rule(batch=batches, embed=st.sampled_from(["first", "later", "later"]))
    def add(self, batch: dict[str, tuple[str, str | None]], embed: Any) -> None:
        new = [
            Record(id_, f"{word} {id_}", metadata={} if parent is None else {"parent": parent})
            for id_, (word, parent) in batch.items()
        ]
        self.own.add_records(new, embed=embed)
        self.held |= {record.id: record for record in new}
        if embed == "first":
            assert all(row.digest for row in self.own.store.get([record.id for record in new]))

    @rule(ids=st.sets(st.sampled_from("abcdef"), max_size=2))
    def delete(self, ids: set[str]) -> None:
        self.own.delete(sorted(ids))
        self.held = {id_: record for id_, record in self.held.items() if id_ not in ids}

    @rule(limit=st.integers(1, 3) | st.none())
    def fill(self, limit: int | None) -> None:
        waiting = self.own.pending
        report = self.own.embed_pending(limit=limit)
        assert report.embedded == (waiting if limit is None else min(limit, waiting))

    @rule(word=st.sampled_from(WORDS[:4]))
    def search(self, word: str) -> None:
        found = self.own.search(word, k=6)
        assert {hit.id for hit in found} >= {id_ for id_, record in self.held.items() if word in record.text}

    @precondition(lambda self: self.held)
    @rule(back=st.booleans(), space=st.sampled_from("xy"), embed=st.sampled_from(["first", "later"]))
    def move(self, back: bool, space: str, embed: Any) -> None:
        waiting = self.own.pending
        if back and len(self.own.store.generations()) > 1:
            try:
                self.own.rollback()
            except StoreError:  # there is none before
                return
        elif self.own.embedder.fingerprint != Stub((space,)).fingerprint:
            self.own.recontextualize(embedder=Stub((space,)), embed=embed)
            if embed == "later":
                assert self.own.pending == waiting
                return
        else:
            return
        assert self.own.pending == 0

    @invariant()
    def it_is_a_part_of_the_finished_collection(self) -> None:
        assert {record.id: record for record in self.own.scroll()} == self.held
        assert self.own.pending == sum(not row.digest for row in self.own.store.scroll())
        assert self.own.verify() == []
        from cde_rag.indexing.sibling_passages import with_siblings

        rows, embedder = list(self.own.store.scroll()), self.own.embedder
        vectors = vectors_of(self.own)
        for row, passage in zip(rows, with_siblings(self.own.store, rows, "parent", embedder), strict=True):
            if row.digest:
                assert row.digest == passage.digest
                expected = embedder.vector(row.record.text, passage.siblings)
                np.testing.assert_array_equal(vectors[row.record.id], expected)

    def teardown(self) -> None:
        self.own.close()


def test_life(tmp_path_factory: pytest.TempPathFactory):
    run_state_machine_as_test(
        lambda: Life(tmp_path_factory.mktemp("life")),
        settings=settings(max_examples=20, stateful_step_count=12, suppress_health_check=list(HealthCheck)),
    )
