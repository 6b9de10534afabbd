"""Collection: whatever was added, updated and deleted, in whatever pieces, every vector is that of its record's text
given the siblings it has now, and the records stand in order of first insertion."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from brute_force_store import BruteForceStore
from hypothesis import given, settings
from hypothesis import strategies as st
from intact import damages

from cde_rag._validation import digest
from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context, ModelIdentity
from cde_rag.context.siblings import choose_siblings
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import (
    CDEWarning,
    ContextMismatchError,
    CorpusError,
    FilterError,
    StoreError,
    TruncationWarning,
    UnknownFieldWarning,
)
from cde_rag.field_names import key_of
from cde_rag.indexing.upsert import AddReport
from cde_rag.records import MAX_LEVELS, Record, Row
from cde_rag.server.search_results import neighbours_of
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreCalls

DIM = 16
MAX_LENGTH = 50  # characters, for the stub
MAX_SIBLINGS = 4
IDENTITY = ModelIdentity(
    name="stub",
    weights_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    attention="one_way",
    semantics="stub",
    roles="vector",
    prefixes={"query": "", "document": ""},
    max_length=MAX_LENGTH,
    pooling="mean",
    normalisation="unit",
    dim=DIM,
)


def direction(text: str) -> np.ndarray:
    """A vector for a text, the same in every process."""
    return np.random.default_rng(list(text.encode())).normal(size=DIM)


class StubEmbedder(ContextualEmbedder):
    """Vectors made of a text, its siblings, the first of them apart, and the context; remembers what it was given."""

    def __init__(self, documents: Sequence[str] = ("a", "b")) -> None:
        facts = {"device": "cpu", "given_dtype": None, "given_runtime": None, "plain_vectors": None}
        self.model = SimpleNamespace(**facts, runtime="torch", dtype="float32", max_siblings=MAX_SIBLINGS)  # type: ignore[assignment]
        self.mini_batch_size, self.pool = 32, None
        embeddings = np.zeros((len(documents), DIM), dtype=np.float32)
        self.context = Context.create(
            IDENTITY, documents, embeddings, sampling="random", seed=0, documents_seen=len(documents)
        )
        self.embedded: list[str] = []

    @property
    def dim(self) -> int:
        return DIM

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.vector(text, []) for text in texts])

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]], *, progress: bool = False
    ) -> Embedded:
        self.embedded += texts
        vectors = np.stack([self.vector(text, given) for text, given in zip(texts, siblings, strict=True)])
        return Embedded(vectors, np.array([len(text) > MAX_LENGTH for text in texts]))

    def vector(self, text: str, siblings: Sequence[str]) -> np.ndarray:
        mixed = direction(text) + 0.3 * direction(self.fingerprint)
        for sibling in [*(f"first: {text}" for text in siblings[:1]), *sorted(siblings[1:])]:
            mixed += 0.3 * direction(sibling)
        return (mixed / np.linalg.norm(mixed)).astype(np.float32)


def collection(store: Store | None = None, *, parent_key: str | None = "parent") -> Collection:
    return Collection.create(store or BruteForceStore(), StubEmbedder(), parent_key=parent_key)


@pytest.fixture(params=["brute force", "faiss"])
def papers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collection]:
    with collection(BruteForceStore() if request.param == "brute force" else FaissStore(tmp_path / "papers")) as papers:
        yield papers


def small_chunks() -> Any:
    """Chunks of four records, prolonged to eight at most."""
    return mock.patch.multiple("cde_rag.records", CHUNK=4, LONGEST_CHUNK=8)


def embedded(record: Record) -> str:
    return f"{record.title} {record.text}" if record.title else record.text


def assert_true_vectors(papers: Collection) -> None:
    """Every vector is that of its record's text given the siblings that it has now."""
    records = list(papers.scroll())
    embedder = papers.embedder
    assert isinstance(embedder, StubEmbedder)
    for record in records:
        parent = record.metadata.get(papers.parent_key or "")
        group = [record] if parent is None else [each for each in records if each.metadata.get("parent") == parent]
        place = [each.id for each in group].index(record.id)
        digests, rule = [digest(embedded(each)) for each in group], embedder.context.manifest.sibling_rule
        chosen = choose_siblings(digests, MAX_SIBLINGS, rule=rule)[place]
        siblings = [embedded(group[other]) for other in chosen]
        (stored,) = papers.store.vectors([record.id], fingerprint=papers.embedder.fingerprint)
        np.testing.assert_allclose(stored, embedder.vector(embedded(record), siblings), atol=1e-6)


def passages(parent: str, count: int, *, first: int = 0) -> list[Record]:
    return [
        Record(f"{parent}{place}", f"passage {place} of {parent}", metadata={"parent": parent})
        for place in range(first, first + count)
    ]


def contents(papers: Collection) -> list[tuple[Record, str]]:
    return [(row.record, row.digest) for row in papers.store.scroll()]


# --- adding


@pytest.mark.parametrize(("name", "kind"), [("a.faiss", FaissStore), ("a.qdrant", QdrantEdgeStore), ("a", FaissStore)])
def test_a_path_is_a_place_for_a_collection(name: str, kind: type, tmp_path: Path):
    with Collection.create(tmp_path / name, StubEmbedder()) as made:
        made.add(["a river"], ids=["a"])
        assert isinstance(made.store, kind)
    with mock.patch("cde_rag.collection.collection.loaded", return_value=StubEmbedder()):
        with Collection.open(str(tmp_path / name)) as opened:
            assert opened.search("a river")[0].id == "a"
        with pytest.raises(StoreError, match="nowhere"):
            Collection.open(tmp_path / "nowhere")


def test_added_records_come_back(papers: Collection):
    report = papers.add(
        ["one", "two"], ids=["1", "2"], titles=["", "Second"], metadata=[{"year": 2020}, {"tags": ["a", None]}]
    )
    assert report == AddReport(added=2)
    assert papers.get(["2", "missing", "1"]) == [
        Record("2", "two", "Second", {"tags": ["a", None]}),
        Record("1", "one", "", {"year": 2020}),
    ]
    assert papers.count() == 2
    assert papers.count({"year": {"gte": 2020}}) == 1
    assert [record.id for record in papers.scroll({"tags": "a"})] == ["2"]


def test_title_is_embedded_before_the_text(papers: Collection):
    papers.add(["text"], titles=["Title"])
    papers.add(["text"])
    assert papers.embedder.embedded == ["Title text", "text"]
    assert_true_vectors(papers)


def test_adding_twice_is_adding_once(papers: Collection):
    for _ in range(2):
        report = papers.add(["one", "two"], titles=["", "T"], metadata=[{"parent": 1}, {"parent": 1}])
    assert report == AddReport(unchanged=2)
    assert papers.count() == 2
    assert len(papers.embedder.embedded) == 2


def test_default_ids_tell_texts_titles_and_parents_apart(papers: Collection):
    with pytest.warns(CDEWarning, match="Found 1 record with the id of an earlier one of this call"):
        papers.add([*["same"] * 4], titles=["", "T", "", ""], metadata=[{}, {}, {"parent": 1}, {"n": 1}])
    assert papers.count() == 3
    assert papers.add(["other"]).added == 1


def test_metadata_alone_keeps_the_vector(papers: Collection):
    papers.add(["one"], ids=["1"], metadata=[{"n": 1}])
    assert papers.add(["one"], ids=["1"], metadata=[{"n": True}]) == AddReport(updated=1)
    assert papers.get(["1"])[0].metadata["n"] is True
    assert papers.embedder.embedded == ["one"]


def test_another_text_or_title_replaces(papers: Collection):
    papers.add(["one", "two"], ids=["1", "2"])
    assert papers.add(["uno"], ids=["1"]) == AddReport(replaced=1)
    assert papers.add(["two"], ids=["2"], titles=["T"]) == AddReport(replaced=1)
    assert [record.id for record in papers.scroll()] == ["1", "2"]
    assert_true_vectors(papers)


def test_what_is_not_given_stays_as_it_is_stored(papers: Collection):
    papers.add(["one", "two"], ids=["1", "2"], titles=["T", "U"], metadata=[{"parent": "a"}, {"parent": "a", "n": 2}])
    assert papers.add(["one", "other"], ids=["1", "2"]) == AddReport(unchanged=1, replaced=1)
    assert papers.get(["1", "2"]) == [
        Record("1", "one", "T", {"parent": "a"}),
        Record("2", "other", "U", {"parent": "a", "n": 2}),
    ]
    papers.add(["one"], ids=["1"], titles=[""])
    papers.add(["other"], ids=["2"], metadata=[{}])
    assert papers.get(["1", "2"]) == [Record("1", "one", "", {"parent": "a"}), Record("2", "other", "U", {})]
    papers.add(["new", "one"], ids=["3", "1"])
    assert papers.get(["3", "1"]) == [Record("3", "new", "", {}), Record("1", "one", "", {"parent": "a"})]
    assert papers.add_records([Record("1", "one")]) == AddReport(updated=1)  # a record is complete
    assert papers.get(["1"]) == [Record("1", "one")]


def test_metadata_is_what_json_gives_back(papers: Collection):
    papers.add(["one"], ids=["1"], metadata=[{"pair": (1, 2)}])
    assert papers.get(["1"])[0].metadata == {"pair": [1, 2]}
    assert papers.add(["one"], ids=["1"], metadata=[{"pair": (1, 2)}]) == AddReport(unchanged=1)


def test_nothing_to_add(papers: Collection):
    assert papers.add([]) == AddReport()
    assert papers.add_records(iter([])) == AddReport()
    assert papers.search("anything") == []
    assert list(papers.scroll()) == []


def test_progress_is_told_after_each_chunk(papers: Collection):
    told = []
    with small_chunks():
        papers.add([f"text {i}" for i in range(10)], on_progress=told.append)
        papers.add_records((Record(str(i), "text") for i in range(3)), on_progress=told.append)
    assert [(progress.done, progress.total) for progress in told] == [(4, 10), (8, 10), (10, 10), (3, None)]
    assert all(progress.elapsed_s >= 0 for progress in told)


def test_truncation_is_counted_and_warned_of(papers: Collection):
    with (
        small_chunks(),
        pytest.warns(TruncationWarning, match="3 of 10 embedded records exceed the model's limit of 50 tokens"),
    ):
        report = papers.add([str(i) + "long " * (20 if i % 4 == 1 else 1) for i in range(10)])
    assert report.truncated == 3


def test_truncation_is_told_although_a_later_record_fails(papers: Collection):
    with small_chunks(), pytest.warns(TruncationWarning, match="1 of 4"), pytest.raises(CorpusError):
        papers.add(["long " * 20, "b", "c", "d", "e", " "])


def test_what_was_there_before_does_not_count_as_embedded(papers: Collection):
    papers.add(["a", "b"])
    with pytest.warns(TruncationWarning, match="1 of 2 embedded records"):
        papers.add(["a", "b", "c", "long " * 20])


def test_equal_texts_with_other_metadata_are_told(papers: Collection):
    with small_chunks(), pytest.warns(CDEWarning, match="Found 2 records with the id of an earlier one of this call"):
        report = papers.add([*"abcdefab"], metadata=[{"page": page} for page in range(8)])
    assert (report.added, report.updated) == (6, 2)
    assert [record.metadata["page"] for record in papers.scroll()] == [6, 7, 2, 3, 4, 5]
    assert papers.add([*"abab"], metadata=[{"page": page} for page in (6, 7, 6, 7)]).unchanged == 4
    assert papers.add([*"ab"], metadata=[{"page": page} for page in (1, 1)]).updated == 2


def test_large_texts_and_nul(papers: Collection):
    text = "before\0after " + "x" * 1_000_000
    with pytest.warns(TruncationWarning):
        papers.add([text, "a\0"], ids=["large", "n\0l"])
    assert papers.get(["large", "n\0l"]) == [Record("large", text), Record("n\0l", "a\0")]


# --- parents


def test_passages_are_embedded_with_their_siblings(papers: Collection):
    papers.add_records([*passages("a", 3), *passages("b", 1), Record("alone", "no parent")])
    assert_true_vectors(papers)
    assert len(papers.embedder.embedded) == 5


def test_without_parent_key_there_are_no_siblings():
    papers = collection(parent_key=None)
    papers.add_records(passages("a", 3))
    assert_true_vectors(papers)


def test_new_passages_reembed_their_parent_alone(papers: Collection):
    papers.add_records([*passages("a", 3), *passages("b", 2)])
    papers.embedder.embedded.clear()
    assert papers.add_records(passages("a", 1, first=3)) == AddReport(added=1)
    assert sorted(papers.embedder.embedded) == [f"passage {place} of a" for place in range(4)]
    assert_true_vectors(papers)


def test_passages_that_change_places_reembed_their_parent(papers: Collection):
    """The first one counts apart, so that the others' vectors change with it."""
    first, second, *others = passages("a", 4)
    papers.add_records([first, second, *others])
    swapped = [Record(first.id, second.text, "", first.metadata), Record(second.id, first.text, "", second.metadata)]
    assert papers.add_records([*swapped, *others]) == AddReport(replaced=2, unchanged=2)
    assert_true_vectors(papers)
    papers.embedder.embedded.clear()
    papers.add_records([*swapped, *others])
    assert papers.embedder.embedded == []


def test_deleted_passages_reembed_their_parent(papers: Collection):
    papers.add_records([*passages("a", 3), *passages("b", 2)])
    papers.embedder.embedded.clear()
    assert papers.delete(["a1", "unknown"]) == 1
    assert sorted(papers.embedder.embedded) == ["passage 0 of a", "passage 2 of a"]
    assert_true_vectors(papers)


def test_deleting_a_whole_parent_embeds_nothing(papers: Collection):
    papers.add_records([*passages("a", 30), *passages("b", 2)])
    papers.embedder.embedded.clear()
    with mock.patch("cde_rag.indexing.made_vectors.LARGEST_WRITE", 8):
        assert papers.delete(where={"parent": "a"}) == 30
    assert papers.embedder.embedded == []
    assert papers.count() == 2


def test_passage_that_changes_its_parent_keeps_its_place(papers: Collection):
    papers.add_records([*passages("a", 3), *passages("b", 3), Record("free", "free text"), *passages("c", 2)])
    moved = [Record("a1", "passage 1 of a", metadata={"parent": "c"}), Record("free", "free text", "", {"parent": "c"})]
    assert papers.add_records(moved) == AddReport(updated=2)
    assert [record.id for record in papers.scroll({"parent": "c"})] == ["a1", "free", "c0", "c1"]
    assert_true_vectors(papers)


@pytest.mark.parametrize("parent", [17, "17", "ünï \0 'x'", "a.b"])
def test_parents_are_strings_or_whole_numbers(papers: Collection, parent: str | int):
    papers.add(["one", "two"], metadata=[{"parent": parent}, {"parent": parent}])
    papers.add(["three"], metadata=[{"parent": parent}])
    assert_true_vectors(papers)


@pytest.mark.parametrize("parent", [None, ""])
def test_no_parent(papers: Collection, parent: str | None):
    papers.add(["one", "two"], metadata=[{"parent": parent}, {"parent": parent}])
    digests = {row.digest for row in papers.store.scroll()}
    alone = collection()
    alone.add(["one", "two"])
    assert digests == {row.digest for row in alone.store.scroll()}


@pytest.mark.parametrize("parent", [True, 1.5, 2**63, -(10**400), ["a"], {"a": 1}])
def test_what_is_no_parent(papers: Collection, parent: object):
    with pytest.raises(CorpusError, match=r"Record 0 \('x'\): its 'parent' has to be a string or a whole number"):
        papers.add(["one"], ids=["x"], metadata=[{"parent": parent}])
    assert papers.count() == 0


def test_chunks_end_where_parents_end(papers: Collection):
    told = []
    with small_chunks():
        records = [*passages("a", 3), *passages("b", 5), *passages("c", 2), *passages("d", 3), *passages("e", 30)]
        papers.add_records(records[:13], on_progress=told.append)
        assert len(papers.embedder.embedded) == 13  # each once
        papers.add_records(records[13:], on_progress=told.append)
    assert [progress.done for progress in told] == [8, 13, 8, 16, 24, 30]
    assert_true_vectors(papers)


def test_interrupted_delete_is_finished_by_another(papers: Collection):
    papers.add_records(passages("a", 4))
    owner = StoreCalls if isinstance(papers.store, FaissStore) else BruteForceStore
    with mock.patch.object(owner, "delete", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        papers.delete(["a1"])
    assert papers.count() == 4
    assert papers.delete(["a1"]) == 1
    assert_true_vectors(papers)


ids = st.sampled_from([str(i) for i in range(12)])
words = st.sampled_from(["x", "y", "z"])
parents = st.sampled_from(["a", "b", "c", 1, None])


@st.composite
def record(draw: st.DrawFn) -> Record:
    parent = draw(parents)
    metadata = ({} if parent is None else {"parent": parent}) | draw(st.sampled_from([{}, {"n": 1}]))
    return Record(draw(ids), draw(words), draw(st.sampled_from(["", "T"])), metadata)


batch = st.lists(record(), max_size=14, unique_by=lambda each: each.id)
steps = st.lists(st.one_of(batch, st.sets(ids, max_size=5)), max_size=6)


@given(steps)
def test_after_any_changes_every_vector_is_true(steps: list[list[Record] | set[str]]):
    papers, expected = collection(), dict[str, Record]()
    with small_chunks():
        for step in steps:
            if isinstance(step, set):
                assert papers.delete(sorted(step)) == len(expected.keys() & step)
                expected = {id_: each for id_, each in expected.items() if id_ not in step}
            else:
                before = dict(expected)
                expected |= {each.id: each for each in step}
                report = papers.add_records(iter(step))
                changed = [(before.get(each.id), each) for each in step]
                texts_stay = [old is not None and embedded(old) == embedded(new) for old, new in changed]
                assert report.added == sum(old is None for old, _ in changed)
                assert report.replaced == len(step) - report.added - sum(texts_stay)
                assert report.unchanged == sum(old == new for old, new in changed)
    assert list(papers.scroll()) == list(expected.values())
    assert_true_vectors(papers)


@given(st.lists(record(), max_size=40, unique_by=lambda each: each.text + each.id), st.integers(1, 9), st.data())
def test_any_cut_of_a_stream_gives_the_same_collection(records: list[Record], size: int, data: st.DataObject):
    records = list({each.id: each for each in records}.values())
    whole, pieces = collection(), collection()
    whole.add_records(records)
    cut = data.draw(st.integers(0, len(records)))
    with mock.patch.multiple("cde_rag.records", CHUNK=size, LONGEST_CHUNK=2 * size):
        pieces.add_records(records[:cut])
        pieces.add_records(iter(records[cut:]))
    assert contents(pieces) == contents(whole)
    stored = [each.id for each in records]
    if stored:
        np.testing.assert_array_equal(
            *(papers.store.vectors(stored, fingerprint=papers.embedder.fingerprint) for papers in (whole, pieces))
        )


class Killed(BaseException):
    """Ends a call at one of its writes, as a kill would."""


class MortalStore(BruteForceStore):
    """Lets some writes pass and dies before the next."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1_000_000

    def _write(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise Killed

    def add(self, rows: Sequence[Row], vectors: np.ndarray, *, fingerprint: str) -> None:
        self._write()
        super().add(rows, vectors, fingerprint=fingerprint)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        self._write()
        super().update_metadata(metadata)

    def delete(self, ids: Sequence[str]) -> int:
        self._write()
        return super().delete(ids)


@given(batch, st.one_of(batch, st.sets(ids, max_size=5)), st.integers(0, 5))
def test_killed_call_is_finished_by_the_same_call(before: list[Record], change: list[Record] | set[str], writes: int):
    def apply(papers: Collection) -> None:
        if isinstance(change, set):
            papers.delete(sorted(change))
        else:
            papers.add_records(change)

    store = MortalStore()
    killed, whole = collection(store), collection()
    with small_chunks(), mock.patch("cde_rag.indexing.made_vectors.LARGEST_WRITE", 3):
        for papers in (killed, whole):
            papers.add_records(before)
        store.writes_left = writes
        with contextlib.suppress(Killed):
            apply(killed)
        store.writes_left = 1_000_000
        for papers in (killed, whole):
            apply(papers)
    assert contents(killed) == contents(whole)
    assert_true_vectors(killed)


@pytest.mark.filterwarnings("ignore::cde_rag.errors.UnknownFieldWarning")  # filters that match nothing
@settings(max_examples=15)
@given(steps)
def test_faiss_agrees_with_brute_force(steps: list[list[Record] | set[str]]):
    with tempfile.TemporaryDirectory() as folder, small_chunks():
        both = [collection(), collection(FaissStore(Path(folder) / "papers"))]
        for step in steps:
            reports = [
                papers.delete(sorted(step)) if isinstance(step, set) else papers.add_records(step) for papers in both
            ]
            assert reports[0] == reports[1]
            assert contents(both[0]) == contents(both[1])
        oracle, found = ([hit.id for hit in papers.search("T x", k=20, where={"n": 1})] for papers in both)
        assert sorted(found) == sorted(oracle)
        assert_true_vectors(both[1])
        both[1].close()


# --- records that cannot be used


def add_in_small_chunks(papers: Collection, records: Sequence[Record]) -> None:
    with small_chunks():
        papers.add_records(records)


GOOD = [Record(f"good {i}", f"text {i}") for i in range(4)]


def nested(levels: int) -> Any:
    """Lists and objects in each other, by turns."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"": value}
    return value


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (Record("5", ""), r"Record 5 \('5'\): its text is empty or blank"),
        (Record("5", " \t\n"), r"Record 5 \('5'\): its text is empty or blank"),
        (Record("", "text"), r"Record 5 \(''\): its id is empty"),
        (Record("5", "a\ud800"), r"Record 5 \('5'\): its text is not valid Unicode.*at character 1"),
        (Record("\udfff", "text"), r"Record 5 .*: its id is not valid Unicode"),
        (Record("5", "text", "\udfff"), r"Record 5 \('5'\): its title is not valid Unicode"),
        (Record("5", "text", "", {"a": "\udfff"}), r"Record 5 \('5'\): its metadata.*not valid Unicode"),
        (Record("5", "text", "", {"a": float("nan")}), r"Record 5 \('5'\): its metadata has to be a JSON object"),
        (Record("5", "text", "", {"a": object()}), r"Record 5 \('5'\): its metadata has to be a JSON object"),
        (
            Record("5", "text", "", {"a": nested(MAX_LEVELS)}),
            r"Record 5 \('5'\): its metadata has .* more than 100 lists",
        ),
        (Record("5", "text", "", {"parent": 0.5}), r"Record 5 \('5'\): its 'parent' has to be a string or a whole"),
        (Record("good 1", "other text"), "The id 'good 1' stands at position 1 and, with another text, at 5"),
        (Record("good 4", "other text"), "The id 'good 4' stands at position 4 and, with another text, at 5"),
        (Record("good 1", "text 1", "T"), "The id 'good 1' stands at position 1 and, with another text, at 5"),
    ],
)
def test_bad_record_stops_before_its_chunk(papers: Collection, bad: Record, found: str):
    with pytest.raises(CorpusError, match=found):
        add_in_small_chunks(papers, [*GOOD, Record("good 4", "text 4"), bad, Record("after", "text")])
    assert list(papers.scroll()) == GOOD  # the chunk of four before it stays


def test_an_id_that_nothing_can_have_is_unknown(papers: Collection):
    assert papers.get(["\ud800"]) == []
    assert papers.delete(["\ud800"]) == 0


def test_metadata_may_be_as_deep_as_is_said(papers: Collection):
    papers.add(["text"], ids=["deep"], metadata=[{"a": nested(MAX_LEVELS - 1)}])
    assert papers.get(["deep"])[0].metadata == {"a": nested(MAX_LEVELS - 1)}


def test_values_of_wrong_types():
    """In a process of its own: here beartype would refuse them before they come to the collection."""
    code = """
from tokenizers import Tokenizer, models

from cde_rag import Collection, Context, ContextualEmbedder, Record
from cde_rag.errors import StoreError
from cde_rag.records import checked, from_columns
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.context.sampling import sample_random
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.qdrant import QdrantStore

def message(call):
    try:
        return call()
    except (TypeError, ValueError, StoreError) as error:
        return f"{type(error).__name__}: {error}"

a_dict = {"id": "1", "text": "a"}
for record in (a_dict, Record(5, "a"), Record("5", None), Record("5", "a", None), Record("5", "a", "", [1])):
    print(message(lambda: checked(record, 3, "parent")))
print(message(lambda: from_columns(["a"], ids=None, titles=None, metadata={"year": 1}, parent_key=None)))
tokenizer = TextTokenizer(Tokenizer(models.WordLevel({"a": 0}, "a")).to_str())
print(message(lambda: tokenizer(["a", None], 8, first=3)))
print(message(lambda: from_columns(None, ids=None, titles=None, metadata=None, parent_key=None)))
print(message(lambda: sample_random(["a", None], 5, seed=0)))
print(message(lambda: sample_random(None, 5, seed=0)))
print(message(lambda: Collection.open("https://localhost/papers")))
print(message(lambda: Collection.create(5, Context)))
print(message(lambda: Collection.create(FaissStore("papers.faiss"), "cde-mini")))
print(message(lambda: QdrantStore("http://localhost:6333", "papers")))
print(message(lambda: Context.null("cde-mini")))
print(message(lambda: Context.generic("cde-mini")))
refused = message(lambda: ContextualEmbedder.from_corpus(["a"], model=len))
print(refused.split(" ")[0], "FunctionEmbedder(function, name=" in refused)
"""
    found = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert found[:4] == [
        "TypeError: Record 3 has to be a cde_rag.Record, found dict.",
        "CorpusError: Record 3 (5): its id has to be a str, found int; give str(…) of it.",
        "CorpusError: Record 3 ('5'): its text has to be a str, found NoneType.",
        "CorpusError: Record 3 ('5'): its title has to be a str, found NoneType.",
    ]
    assert found[4].startswith("CorpusError: Record 3 ('5'): its metadata has to be a JSON object")
    assert found[5] == "TypeError: add takes a list of metadata, one for each text, and was given one mapping."
    a_store = 'TypeError: Expected a store, such as QdrantStore(client, "papers"), a folder or an address, found'
    an_embedder = "TypeError: Expected an embedder, such as ContextualEmbedder.from_corpus(texts), found"
    a_model = 'TypeError: Expected a model, such as CDEModel.from_pretrained("cde-mini"), found'
    a_client = "TypeError: Expected a qdrant_client.QdrantClient, such as QdrantClient(url), found"
    assert found[6:] == [
        "TypeError: Text 4 has to be a str, found NoneType.",
        "TypeError: add takes a list of texts and was given NoneType.",
        "TypeError: from_corpus: text 1 has to be a str, found NoneType.",
        "TypeError: from_corpus takes a list of texts and was given NoneType.",
        "StoreError: Expected a folder or an address that begins with postgresql://, postgres://, found https://.",
        f"{a_store} 5.",
        f"{an_embedder} 'cde-mini'.",
        f"{a_client} 'http://localhost:6333'.",
        f"{a_model} 'cde-mini'.",
        f"{a_model} 'cde-mini'.",
        "TypeError: True",
    ]


def test_empty_id_is_not_made_up_for(papers: Collection):
    with pytest.raises(CorpusError, match="its id is empty"):
        papers.add(["text"], ids=[""])


def test_id_that_comes_twice_with_the_same_text(papers: Collection):
    records = [Record("1", "text", "", {"n": 1}), Record("1", "text", "", {"n": 1}), Record("1", "text", "", {"n": 2})]
    with pytest.warns(CDEWarning, match="Found 1 record with the id of an earlier one of this call"):
        assert papers.add_records(records) == AddReport(added=1, unchanged=1, updated=1)
    assert papers.get(["1"])[0].metadata == {"n": 2}


def test_id_replaced_in_another_call_may_be_replaced_again(papers: Collection):
    for text in ("one", "two", "three"):
        papers.add([text, "x"], ids=["1", "x"])
    assert papers.get(["1"])[0].text == "three"


@pytest.mark.parametrize("column", ["ids", "titles", "metadata"])
def test_columns_of_other_lengths(papers: Collection, column: str):
    values = [{}] if column == "metadata" else ["one"]
    with pytest.raises(CorpusError, match=rf"equally many, found \{{'texts': 2, '{column}': 1\}}"):
        papers.add(["a", "b"], **{column: values})
    with pytest.raises(CorpusError, match=f"{column} ended at position 1, before the other columns"):
        papers.add(iter(["a", "b"]), **{column: iter(values)})
    with pytest.raises(CorpusError, match="texts ended at position 0"):
        papers.add(iter([]), **{column: iter(values)})
    assert papers.count() == 0


def test_one_str_where_a_list_is_due(papers: Collection):
    with pytest.raises(TypeError, match=r"add takes a list of texts.*pass"):
        papers.add("text")
    with pytest.raises(TypeError, match=r"add takes a list of ids.*pass"):
        papers.add(["text"], ids="1")
    with pytest.raises(TypeError, match=r"get takes a list of ids.*pass"):
        papers.get("1")
    with pytest.raises(TypeError, match=r"delete takes a list of ids.*pass"):
        papers.delete("1")
    with pytest.raises(TypeError, match=r"search_batch takes a list of queries.*pass"):
        papers.search_batch("query")


# --- searching and the rest


def test_search_finds_the_text_itself(papers: Collection):
    papers.add([f"text {i}" for i in range(20)], titles=["T"] * 20, metadata=[{"even": i % 2 == 0} for i in range(20)])
    hits = papers.search("T text 3", k=3)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert (hits[0].title, hits[0].text, hits[0].metadata) == ("T", "text 3", {"even": False})
    assert len(hits) == 3
    (first, second) = papers.search_batch(["T text 3", "T text 4"], 1, where={"even": True})
    assert first[0].text != "text 3"
    assert second[0].text == "text 4"


def test_k_beyond_the_collection(papers: Collection):
    papers.add(["a", "b"])
    assert len(papers.search("a", k=100)) == 2
    with pytest.warns(UnknownFieldWarning, match="field 'year'"):
        assert papers.search("a", k=100, where={"year": 1}) == []


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one(papers: Collection, k: int):
    with pytest.raises(ValueError, match=f"k must be at least 1, not {k}"):
        papers.search("a", k)


def test_no_queries(papers: Collection):
    assert papers.search_batch([]) == []


def test_unknown_operator(papers: Collection):
    papers.add(["a"])
    for call in (papers.count, lambda where: papers.search("a", where=where), lambda where: papers.delete(where=where)):
        with pytest.raises(FilterError):
            call({"year": {"above": 1}})
    assert papers.count() == 1


def test_delete_takes_ids_or_a_filter(papers: Collection):
    papers.add(["a", "b", "c"], ids=["a", "b", "c"], metadata=[{"n": 1}, {"n": 2}, {"n": 2}])
    with pytest.raises(ValueError, match="exactly one of them"):
        papers.delete()
    with pytest.raises(ValueError, match="exactly one of them"):
        papers.delete(["a"], where={})
    assert papers.delete(["a", "a"]) == 1
    assert papers.delete(where={"n": 2}) == 2
    assert papers.delete([]) == 0


@pytest.mark.parametrize(
    ("key", "error", "said"),
    [
        ("", ValueError, "empty"),
        ("and", ValueError, r"'\.and'"),
        ("not", ValueError, r"'\.not'"),
        (5, TypeError, "str"),
    ],
)
def test_parent_key_that_names_no_field(key: Any, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        collection(parent_key=key)


@pytest.mark.parametrize("key", ["doc.name", ".and", "$in"])
def test_parents_by_any_field(key: str):
    papers = collection(parent_key=key)
    top = key_of(key)
    papers.add(["a", "b"], ids=["a", "b"], metadata=[{top: "p"}, {top: "q"}])
    nested = {"doc": {"name": "p"}} if key == "doc.name" else {top: "p"}
    alone = papers.store.get(["a"])[0].digest
    papers.add(["c"], ids=["c"], metadata=[nested])
    assert papers.store.get(["a"])[0].digest != alone  # embedded with its sibling
    (parent, *_) = [found for found in papers.search_parents("a") if found.parent == "p"]
    assert [passage.id for passage in parent.passages] == ["a", "c"]
    assert [record.id for record in neighbours_of(papers, "c", 1)] == ["a", "c"]


def test_a_record_with_two_values_of_the_parent_field_is_refused():
    papers = collection(parent_key="doc.name")
    with pytest.raises(CorpusError, match=r"'doc\.name'.*\[\"p\", \"q\"\]"):
        papers.add(["a"], metadata=[{"doc.name": "p", "doc": {"name": "q"}}])


def test_foreign_embedder_is_refused(papers: Collection):
    with pytest.raises(ContextMismatchError, match=r"Collection\.open"):
        Collection(papers.store, StubEmbedder(["another", "corpus"]))
    assert Collection(papers.store, StubEmbedder(["b", "a"])).parent_key == "parent"


def test_create_twice(papers: Collection):
    with pytest.raises(StoreError):
        Collection.create(papers.store, papers.embedder)


def test_collection_without_a_store():
    with pytest.raises(StoreError):
        Collection(BruteForceStore(), StubEmbedder())


def test_inspection_is_json(papers: Collection):
    papers.add(["a", "b", "c"])
    found = json.loads(json.dumps(dataclasses.asdict(papers.inspect())))
    expected = {"documents": 3, "fingerprint": papers.embedder.fingerprint, "model": "stub", "context_size": 2}
    assert found.items() >= (expected | {"generation": 1, "parent_key": "parent", "dim": DIM}).items()


def test_what_scroll_gave_may_be_deleted(papers: Collection):
    papers.add([f"text {i}" for i in range(1020)])
    for place, record in enumerate(papers.scroll()):
        if place >= 980:  # before and behind the end of the store's first page
            papers.delete([record.id])
    assert papers.count() == 980


def test_verify_reads_the_context(papers: Collection):
    assert damages(papers) == []
    data = bytearray(papers.store.context())
    data[-1] ^= 1
    with mock.patch.object(papers.store, "context", return_value=bytes(data)):
        assert [damage.where for damage in papers.verify()] == ["context"]
    other = StubEmbedder(["another"]).context.to_bytes()
    with mock.patch.object(papers.store, "context", return_value=other):
        assert ["fingerprint" in damage.found for damage in papers.verify()] == [True]


def test_with_closes_the_store(papers: Collection):
    with mock.patch.object(papers.store, "close") as close, papers as same:
        assert same is papers
        close.assert_not_called()
    close.assert_called_once_with()


def test_threads_add_and_search_at_once(papers: Collection):
    errors: list[BaseException] = []

    def add(parent: str) -> None:
        try:
            for place in range(12):
                papers.add_records(
                    passages(parent, 1, first=place) + passages("shared", 1, first=ord(parent) * 20 + place)
                )
                assert len(papers.search(f"passage {place} of {parent}", k=1)) == 1
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=add, args=[parent]) for parent in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert papers.count() == 96
    assert_true_vectors(papers)
