"""Plans of upserts, without a store and without a model; and the count of a plan equals what an upsert then does."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_cde_model

from cde_rag import Collection, Context, ContextualEmbedder, Record
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import CorpusError
from cde_rag.indexing.made_vectors import CallVectors, ReadyVectors
from cde_rag.indexing.upsert_plan import Stale, difference, groups_of, plan_upsert, stale_passages
from cde_rag.readers import PARENT_KEY
from cde_rag.records import Parent, Positions, Row
from cde_rag.stores.faiss import FaissStore

MODEL = tiny_cde_model()


class CountingEmbedder(ContextualEmbedder):
    """Real vectors; counts the passages that were embedded."""

    embedded = 0

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        self.embedded += len(texts)
        return super().embed_passages(texts, siblings, progress=progress)


def record(record_id: str, text: str, book: str | None = None, **metadata: object) -> Record:
    return Record(record_id, text, "", {**({} if book is None else {"book": book}), **metadata})


def groups(*rows: Row) -> "defaultdict[Parent, dict[str, Row]]":
    found: defaultdict[Parent, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        found[str(row.record.metadata["book"])][row.record.id] = row
    return found


def test_the_changes_by_a_chunk_are_counted():
    stored = {name: record(name, "old") for name in ("same", "text", "key")}
    chunk = [record("same", "old"), record("text", "new"), record("key", "old", year=1), record("new", "new")]
    positions = Positions()
    positions.extend(each.id for each in chunk)
    changes = difference(stored, chunk, 0, positions)
    assert changes == {"unchanged": 1, "replaced": 1, "updated": 1, "added": 1, "repeated": 0}


def test_two_texts_of_one_id_are_refused():
    chunk = [record("a", "one"), record("a", "two")]
    positions = Positions()
    positions.extend("aa")
    with pytest.raises(CorpusError, match="'a' stands at position 0 and, with another text, at 1"):
        difference({}, chunk, 0, positions)


def test_a_row_that_moves_leaves_one_parent_and_joins_another():
    stored = {"a": Row(record("a", "text", "old"), "digest"), "b": Row(record("b", "text", "old"), "digest")}
    plan = plan_upsert(stored, {"a": record("a", "text", "new"), "b": record("b", "other", "old")}, "book")
    assert (plan.moved, plan.left, plan.joined) == ({"a"}, set(), {"old", "new"})
    assert plan_upsert(stored, {"a": record("a", "text", "new")} | {"b": record("b", "text", "new")}, "book").left == {
        "old"
    }
    assert plan.metadata == {"a": {"book": "new"}}
    assert {row_id: row.digest for row_id, row in plan.arriving.items()} == {"a": "digest", "b": "digest"}


EMBEDDER = CountingEmbedder(MODEL, Context.null(MODEL))


def test_stale_are_the_passage_that_arrives_and_its_siblings():
    first = stale_passages(groups(), EMBEDDER, "book", arriving={"a": Row(record("a", "one", "x"), "")})
    (a,) = first
    assert a.siblings == []
    b = Row(record("b", "two", "x"), "")
    stale = stale_passages(groups(a.row), EMBEDDER, "book", arriving={"b": b})
    assert [(each.row.record.id, each.siblings) for each in stale] == [("a", ["two"]), ("b", ["one"])]
    assert stale_passages(groups(*(each.row for each in stale)), EMBEDDER, "book") == []
    left = stale_passages(groups(*(each.row for each in stale)), EMBEDDER, "book", leaving={"b"})
    (alone,) = left
    assert (alone.row, alone.siblings) == (a.row, a.siblings)
    assert (a.before, alone.before) == ("", stale[0].row.digest)


@settings(max_examples=15, deadline=None)
@given(
    before=st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 2), st.sampled_from("xyz"))),
    after=st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 2), st.sampled_from("xyz"))),
)
def test_a_plan_counts_what_the_upsert_does(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, tuple[int, str]],
    after: dict[str, tuple[int, str]],
):
    folder = Path(tmp_path_factory.mktemp("plan"))
    with Collection.create(FaissStore(folder / "books"), EMBEDDER, parent_key="book") as books:
        for wanted in (before, after):
            records = [record(name, f"river {text} {name}", book) for name, (text, book) in wanted.items()]
            plan, held = books.add_records(records, dry_run=True), books.count()
            assert books.count() == held
            EMBEDDER.embedded = 0
            report = books.add_records(records)
            counts = (report.added, report.replaced, report.updated, report.unchanged)
            assert (plan.added, plan.replaced, plan.updated, plan.unchanged) == counts
            assert plan.embedded == EMBEDDER.embedded
            assert books.add_records(records, dry_run=True).embedded == 0


def passage(record_id: str) -> Stale:
    """A passage of the document before the `#`, or a record without one."""
    source, _, number = record_id.partition("#")
    metadata = {PARENT_KEY: source} if number else {}
    return Stale(Row(Record(record_id, "text", "", metadata), "digest"), [])


def test_replaced_passages_of_a_document_are_one_write_after_its_others():
    """Killed between two writes, a collection has the old text of a document or the new one, and no part of each."""
    stale = [passage(name) for name in ("a#0", "row", "b#0", "a#1", "b#1", "a#2")]
    found = groups_of(stale, {"a#0", "a#2", "b#1", "row"})
    assert [[each.row.record.id for each in group] for group in found] == [
        ["row"], ["b#0"], ["a#1"], ["b#1"], ["a#0", "a#2"],
    ]  # fmt: skip
    assert groups_of(stale, set()) == [[each] for each in stale]


def test_ready_vectors_are_taken_in_their_own_space_and_cut_texts_are_reported():
    """Vectors that workers made go in as they are; a text that was cut there is reported as if it were cut here."""
    stale = [passage("whole"), passage("cut")]
    stale = [each._replace(row=replace(each.row, digest=each.row.record.id)) for each in stale]
    vectors = {
        name: (np.full(EMBEDDER.dim, number, np.float32), name == "cut") for number, name in enumerate(("whole", "cut"))
    }
    calls = CallVectors(ReadyVectors(EMBEDDER.fingerprint, vectors)).bind(EMBEDDER)
    EMBEDDER.embedded = 0
    calls.embed(stale)
    assert (EMBEDDER.embedded, calls.truncated) == (0, {"cut"})
    assert calls.vectors([each.row for each in stale])[:, 0].tolist() == [0, 1]
    other = CallVectors(ReadyVectors("of another space", vectors)).bind(EMBEDDER)
    other.embed(stale)
    assert (EMBEDDER.embedded, other.truncated) == (2, set())
