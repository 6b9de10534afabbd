"""AsyncCollection: Collection's calls and signatures, side by side, and cancelled without a loss."""

import ast
import asyncio
import inspect
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, ContextualEmbedder
from cde_rag.collection import async_collection, collection
from cde_rag.collection.async_collection import AsyncCollection, AsyncSearcher
from cde_rag.errors import FilterError
from cde_rag.indexing.upsert import Progress
from cde_rag.search.searcher import Searcher
from cde_rag.stores.faiss import FaissStore

TEXTS = [f"{first} {second}" for first in WORDS[:8] for second in WORDS[:8]]
RESULTS = {  # classes of results that are others than Collection's
    "'Collection'": "'AsyncCollection'",
    "'Searcher'": "'AsyncSearcher'",
    "cde_rag.search.searcher.Searcher": "cde_rag.collection.async_collection.AsyncSearcher",
    "abc.Iterator": "abc.AsyncIterator",
}
AT_ONCE = {"scroll", "searcher"}  # calls that are not awaited
DEPRECATED = {"plan"}
OF_SEARCHES = {"traced", "with_ranker"}  # calls of the library itself


def names(kind: type) -> list[str]:
    return [name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))]


@pytest.fixture
def papers(tmp_path: Path) -> Iterator[AsyncCollection]:
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=tiny_cde_model(), context_size=64)
    with Collection.create(FaissStore(tmp_path / "papers.faiss"), embedder) as made:
        made.add(TEXTS, ids=map(str, range(len(TEXTS))), metadata=[{"n": n} for n in range(len(TEXTS))])
        yield AsyncCollection(made, threads=2)


def test_the_calls_are_those_of_a_collection() -> None:
    assert set(names(AsyncCollection)) == {*names(Collection), "pending"} - DEPRECATED
    assert set(names(AsyncSearcher)) == set(names(Searcher)) - OF_SEARCHES


@pytest.mark.parametrize(
    ("kind", "of", "name"),
    [
        (kind, of, name)
        for kind, of in ((AsyncCollection, Collection), (AsyncSearcher, Searcher))
        for name in names(kind)
        if hasattr(of, name) and name not in ("close", "pending")
    ],
)
def test_a_signature_is_that_of_the_collection(kind: type, of: type, name: str) -> None:
    own, theirs = (inspect.signature(getattr(each, name)) for each in (kind, of))
    assert list(own.parameters.values()) == list(theirs.parameters.values())
    assert not [each for each in own.parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    expected = inspect.formatannotation(theirs.return_annotation)
    for their_name, own_name in RESULTS.items():
        expected = expected.replace(their_name, own_name)
    assert inspect.formatannotation(own.return_annotation) == expected
    function = inspect.unwrap(inspect.getattr_static(kind, name))
    assert inspect.iscoroutinefunction(getattr(function, "__func__", function)) != (name in AT_ONCE)


def overloads(module: ModuleType) -> dict[str, list[str]]:
    """The arguments of each overload, as they are written: typing keeps none of functions that are checked."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "overload" in map(
            ast.unparse, node.decorator_list
        ):
            found.setdefault(node.name, []).append(ast.unparse(node.args))
    return found


def test_overloads_are_those_of_the_collection() -> None:
    """A checker knows a call by them, and not by the signature that all of them share."""
    assert overloads(async_collection) == overloads(collection)
    assert len(overloads(collection)["recontextualize"]) == 2


class Recorder:
    """Notes the arguments of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named)) or []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name", [name for name in names(AsyncCollection) if name not in ("close", "pending", "scroll")]
)
async def test_every_argument_arrives_under_its_name(name: str) -> None:
    signature = inspect.signature(getattr(Collection, name))
    given = {each: f"the {each}" for each in signature.parameters if each not in ("self", "cls")}
    recorder: Any = Recorder()
    of_class = isinstance(inspect.getattr_static(Collection, name), classmethod)
    with mock.patch.object(async_collection, "Collection", recorder):
        call = getattr(AsyncCollection if of_class else AsyncCollection(recorder), name)
        several = [each.name for each in signature.parameters.values() if each.kind is each.VAR_POSITIONAL]
        found = call(*(given[each] for each in several), **{n: v for n, v in given.items() if n not in several})
        if name not in AT_ONCE:
            await found
    ((called, positional, named),) = recorder.calls
    assert called == name
    first = [each for each in signature.parameters if each not in ("self", "cls", *named)]
    assert dict(zip(first, positional, strict=True)) | named == given


async def test_searches_find_what_a_collection_finds_and_run_side_by_side(papers: AsyncCollection) -> None:
    both = threading.Barrier(2, timeout=30)

    def rerank(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        both.wait()  # passed only if two searches are here at once
        return np.arange(len(pairs), dtype=np.float32)

    found = await asyncio.gather(papers.search("a river", 3, rerank=rerank), papers.search("a bank", 3, rerank=rerank))
    assert [len(hits) for hits in found] == [3, 3]
    assert await papers.search("a river", 3) == papers.collection.search("a river", 3)
    by_bm25 = await papers.searcher("bm25").search("a river", 3, where={"n": {"lt": 40}})
    assert by_bm25 == papers.collection.searcher("bm25").search("a river", 3, where={"n": {"lt": 40}})
    assert await papers.pending() == 0
    with pytest.raises(TypeError, match="write k=… for it"):
        await papers.search("a river", top_k=3)  # pyright: ignore[reportCallIssue]


async def test_a_write_holds_up_no_search(papers: AsyncCollection) -> None:
    begun, end = threading.Event(), threading.Event()

    def wait(_: Progress) -> None:
        begun.set()
        assert end.wait(30)

    adding = [
        asyncio.create_task(papers.add([f"water {n}"], on_progress=wait)) for n in range(2)
    ]  # all threads of jobs
    assert await asyncio.to_thread(begun.wait, 30)
    assert len(await papers.search("a river", 3)) == 3
    end.set()
    assert [report.added for report in await asyncio.gather(*adding)] == [1, 1]


async def test_a_cancelled_write_is_complete_or_never_begins(tmp_path: Path, papers: AsyncCollection) -> None:
    begun, end = threading.Event(), threading.Event()

    def wait(_: Progress) -> None:
        begun.set()
        assert end.wait(30)

    one = AsyncCollection(papers.collection, threads=1)
    first = asyncio.create_task(one.add(["water flood", "water fish"], ids=["x", "y"], on_progress=wait))
    assert await asyncio.to_thread(begun.wait, 30)
    second = asyncio.create_task(one.add(["boat"], ids=["z"]))
    await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
    assert [type(each) for each in await asyncio.gather(first, second, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    end.set()
    async with one:
        pass
    assert [record.id for record in await papers.get(["x", "y", "z"])] == ["x", "y"]
    assert papers.collection.verify() == []
    assert await papers.count() == len(TEXTS) + 2


async def test_a_cancelled_search_leaves_the_next_one_its_own_hits(papers: AsyncCollection) -> None:
    given_up = [asyncio.create_task(papers.search(text, 5)) for text in TEXTS[:20]]
    await asyncio.sleep(0.005)
    for task in given_up:
        task.cancel()
    kept = await asyncio.gather(*(papers.search(text, 5) for text in TEXTS[:8]))
    assert kept == [papers.collection.search(text, 5) for text in TEXTS[:8]]
    await asyncio.gather(*given_up, return_exceptions=True)


async def test_the_error_of_a_call_that_nobody_waits_for_is_logged(
    papers: AsyncCollection, caplog: pytest.LogCaptureFixture
) -> None:
    begun, end = threading.Event(), threading.Event()

    def fail(_: Progress) -> None:
        begun.set()
        assert end.wait(30)
        raise OSError("the disk is gone")

    adding = asyncio.create_task(papers.add(["water"], on_progress=fail))
    assert await asyncio.to_thread(begun.wait, 30)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    with caplog.at_level(logging.ERROR, "cde_rag"):
        end.set()
        await papers.close()
    assert "the disk is gone" in caplog.text


async def test_a_collection_is_iterated_over(papers: AsyncCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_collection, "_PAGE", 7)
    assert [record.text async for record in papers.scroll()] == TEXTS
    assert [record.id async for record in papers.scroll({"n": {"lt": 3}})] == ["0", "1", "2"]
    async for record in papers.scroll():
        assert record.id == "0"
        break
    with pytest.raises(FilterError):
        await anext(papers.scroll({"n": {"$gte": 3}}))


async def test_it_is_made_opened_and_used_after_close(tmp_path: Path, papers: AsyncCollection) -> None:
    embedder = papers.collection.embedder
    async with await AsyncCollection.create(tmp_path / "new.faiss", embedder) as made:
        assert (await made.add(TEXTS)).added == len(TEXTS)
    async with await AsyncCollection.open(tmp_path / "new.faiss", model=tiny_cde_model()) as opened:
        assert await opened.count() == len(TEXTS)
    assert (await opened.get([])) == []  # a closed one opens again
    await opened.close()
    with pytest.raises(ValueError, match="threads must be at least 1"):
        AsyncCollection(papers.collection, threads=0)
