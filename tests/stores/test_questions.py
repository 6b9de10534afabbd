"""Number of questions that a call asks its store: transactions in a folder, statements, requests on a server."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from qdrant_client import QdrantClient
from test_collection import StubEmbedder, collection

from cde_rag import Collection
from cde_rag.indexing import backfill
from cde_rag.records import Record
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.faiss.database import Database
from cde_rag.stores.faiss.search import View
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.store_calls import StoreState

BOUNDS = {  # of `add`: of a record with a parent, and of one that is there already
    "folder": (2, 1),
    "postgres": (22, 8),
    "qdrant": (12, 3),
}
MOVES = {  # of `recontextualize`: of 4 rows, one part of one page; and of 32 rows more, eight parts of two pages
    "folder": (13, 10),
    "postgres": (52, 38),
    "qdrant": (91, 40),
}
NUMBERS = count()
PASSAGES = [Record(f"book#{number}", f"passage {number}", "title", {"parent": "book"}) for number in range(8)]
Counting = Callable[[Callable[[], Any]], int]


@contextmanager
def counted(owner: Any, *names: str) -> Generator[list[str], None, None]:
    """Names of the calls of some methods, those that others of them make left out."""
    calls, inside = list[str](), 0

    def counting(name: str) -> Any:
        method = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            nonlocal inside
            if not inside:
                calls.append(name)
            inside += 1
            try:
                return method(*given, **named)
            finally:
                inside -= 1

        return call

    with mock.patch.multiple(owner, **{name: counting(name) for name in names}):
        yield calls


@pytest.fixture(params=["folder", "postgres", "qdrant"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Collection, Counting]]:
    """A kind of store, a collection in one with passages of a book, and what counts the questions of a call."""
    kind: str = request.param
    if kind == "folder":
        owner, names, store = Database, ("reading", "writing"), FaissStore(tmp_path / "papers")
    elif kind == "postgres":
        address = request.getfixturevalue("postgres")
        owner, names, store = (
            psycopg.Cursor,
            ("execute", "executemany"),
            PgVectorStore(address, f"questions_{next(NUMBERS)}"),
        )
    else:
        owner = QdrantClient(":memory:")
        names = tuple(name for name in dir(QdrantClient) if name[0] != "_" and callable(getattr(QdrantClient, name)))
        store = QdrantStore(owner, "papers")
    papers = collection(store)
    papers.add_records(PASSAGES[:4])

    def number(call: Callable[[], Any]) -> int:
        with counted(owner, *names) as calls:
            call()
        return len(calls)

    with papers:
        yield kind, papers, number


def test_a_record_with_a_parent_is_added_with_few_questions(asked: tuple[str, Collection, Counting]) -> None:
    kind, papers, number = asked
    papers.add_records(PASSAGES[4:5])  # which may build what the first call of a kind builds
    for passage in PASSAGES[5:7]:
        assert 0 < number(lambda passage=passage: papers.add_records([passage])) <= BOUNDS[kind][0]
    assert papers.count({"parent": "book"}) == 7
    assert papers.store.verify() == []


def test_a_record_that_is_there_is_found_with_few_questions(asked: tuple[str, Collection, Counting]) -> None:
    kind, papers, number = asked
    papers.add_records(PASSAGES[:1])
    assert 0 < number(lambda: papers.add_records(PASSAGES[:1])) <= BOUNDS[kind][1]


def test_a_collection_moves_with_one_question_for_each_part_and_each_page(
    asked: tuple[str, Collection, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read with their siblings, page by page, embedded in parts outside of any session, and written."""
    kind, papers, number = asked
    for name, value in {"ROWS_AT_ONCE": 16, "FIRST_PART": 4, "next_part": lambda *_: 4}.items():
        monkeypatch.setattr(backfill, name, value)
    papers.recontextualize(embedder=StubEmbedder(["first"]))
    few = number(lambda: papers.recontextualize(embedder=StubEmbedder(["of 4"])))
    papers.add_records(Record(f"{place}", f"passage {place}", "", {"parent": str(place // 4)}) for place in range(32))
    many = number(lambda: papers.recontextualize(embedder=StubEmbedder(["of 36"])))
    assert 0 < few <= MOVES[kind][0]
    assert 0 < many - few <= MOVES[kind][1]
    assert papers.inspect().generation == 4
    assert papers.store.verify() == []


def test_hybrid_search_reads_the_records_that_it_returns(tmp_path: Path) -> None:
    papers = collection(FaissStore(tmp_path / "papers"))
    papers.add_records(Record(str(number), f"passage {number}") for number in range(40))
    read, at = list[int](), View.at

    def counting(self: View, positions: Any) -> Any:
        read.append(len(positions))
        return at(self, positions)

    with mock.patch.object(View, "at", counting):
        found = papers.searcher("hybrid").search("passage 7", 5)
    assert len(found) == 5
    assert sum(read) == 5


def test_candidates_of_a_hybrid_search_come_without_their_records(asked: tuple[str, Collection, Counting]) -> None:
    _, papers, _ = asked
    found, hits = list[Any](), StoreState.hits

    def noting(self: StoreState, some: Any) -> Any:
        found.extend(some)
        return hits(self, some)

    with mock.patch.object(StoreState, "hits", noting):
        assert len(papers.search("passage 1", 2, where={"parent": "book"})) == 2
        assert len(papers.search_groups("passage 1", 1, group_by="parent")) == 1
    assert len(found) > 2
    assert [each.record for each in found] == [None] * len(found)
