"""`cde-rag mcp` in a process of its own, used by the client of the official SDK."""

import codecs
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from rerank_server import serving
from served import records, texts
from tiny import tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag import CDEError, CDEModel, Collection, ContextualEmbedder, Record
from cde_rag.cli import app
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.server.mcp_tools import RERANKING, CollectionTools
from cde_rag.server.text_limits import QUERY_CHARACTERS
from cde_rag.stores.faiss import FaissStore


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    checkpoints.write(model, tiny_network(), tiny_tokenizer())
    embedder = ContextualEmbedder.from_corpus(texts(100), model=CDEModel.from_pretrained(model), context_size=64)
    path = tmp_path / "papers.faiss"
    with Collection.create(FaissStore(path), embedder, parent_key="book") as collection:
        collection.add_records(records(40))
    return path


@asynccontextmanager
async def connected(papers: Path, *options: str) -> AsyncGenerator[Client, None]:
    command = ["-c", "from cde_rag.cli import app; app()", "mcp", str(papers), "--model", str(papers.parent / "model")]
    server = StdioServerParameters(command=sys.executable, args=[*command, *options], env=dict(os.environ))
    async with Client(server) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content["result"]


async def test_an_agent_searches_reads_and_looks_around(papers: Path) -> None:
    async with connected(papers) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == {"search", "get", "list_collections", "context"}
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools.values())
        assert tools["search"].input_schema["properties"].keys() == {"query", "collection", "k", "where", "by"}
        (listed,) = await called(client, "list_collections")
        assert (listed["name"], listed["documents"], listed["parent_key"]) == ("papers", 40, "book")
        with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
            where = {"year": {"gte": 2010}}
            for by in (None, "hybrid", "vectors", "bm25", "words"):
                hits = await called(client, "search", query="river bank", k=5, where=where, by=by)
                expected = collection.search("river bank", 5, by=by or "hybrid", where=where)
                assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
                assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)
        left_out = {"collection": None, "k": None, "where": None, "by": None}  # as many clients send it
        assert await called(client, "search", query="river bank", **left_out) == await called(
            client, "search", query="river bank"
        )
        assert await called(client, "context", id="r5", around=None) == await called(client, "context", id="r5")
        around = await called(client, "context", id="r5", around=1)
        assert [record["id"] for record in around] == ["r4", "r5", "r6"]
        assert await called(client, "get", ids=["r5", "nobody"], collection="papers") == [
            {"id": "r5", "text": texts(6)[5], "title": records(6)[5].title, "metadata": {"book": "b1", "year": 2005}}
        ]


def by_length(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The scores of the server of rerankers."""
    return [len(text) / 100 for _, text in pairs]


async def refusal(client: Client, **arguments: Any) -> str:
    """The message of a search that is refused."""
    result = await client.call_tool("search", {"query": "river bank", **arguments})
    assert result.is_error
    (said,) = (part.model_dump()["text"] for part in result.content)
    return said


async def test_a_search_names_a_reranker_of_the_server(papers: Path) -> None:
    """No call makes the server load another model, or send texts to another address."""
    with serving() as stand:
        names = [f"{stand.url}/rerank", f"{stand.url}/v1/rerank#bge"]
        async with connected(papers, "--rerank", names[0], "--rerank", names[1]) as client:
            (search,) = (tool for tool in (await client.list_tools()).tools if tool.name == "search")
            arguments = search.input_schema["properties"]
            assert arguments.keys() >= {*RERANKING, "query", "by"}
            assert " or ".join(names) in arguments["rerank"]["description"]
            await called(client, "search", query="river bank")
            assert stand.calls == []
            with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
                for name, options in zip(names, ({"rerank_top": 7}, {"rerank_budget_ms": 0}), strict=True):
                    hits = await called(client, "search", query="river bank", k=5, rerank=name, **options)
                    expected = collection.search("river bank", 5, rerank=by_length, **options)
                    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
                    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)
            paths = [path for path, _, _ in stand.calls]
            assert paths == ["/rerank", "/v1/rerank"]
            for other in (f"{stand.url}/elsewhere", str(papers.parent / "model"), "cross-encoder/other"):
                expected = f"one of the rerankers of this server, {', '.join(names)}, found {other!r:.80}"
                assert expected in await refusal(client, rerank=other)
            assert [path for path, _, _ in stand.calls] == paths
            stand.status = 500
            assert "found status 500" in await refusal(client, rerank=names[0])


WRONG_CALLS = [
    ("search", {"query": " "}, "blank"),
    ("search", {"query": "river", "where": {"year": {"near": 1}}}, "near"),
    (
        "search",
        {"query": "river", "where": {"yaer": 2003}},
        "No record has the field 'yaer' of the filter. The",
    ),
    ("search", {"query": "river", "by": "magic"}, "search: by has to be 'hybrid', 'vectors', "),
    (
        "search",
        {"query": "x" * (QUERY_CHARACTERS + 1)},
        "search: query has to have at most 32000 characters, found 'xx",
    ),
    ("search", {}, "search needs the argument 'query'. Give it."),
    ("search", {"query": "river", "collection": "other"}, "papers"),
    ("search", {"query": "river", "k": 0}, "search: k has to be greater than or equal to 1, found 0."),
    ("search", {"query": "river", "rerank": "cross-encoder/x"}, "rerankers of this server, which has none, found"),
    ("search", {"query": "river", "rerank_top": 3}, "rerank_top and rerank_budget_ms are of rerank"),
    ("search", {"query": "river", "rerank_top": 0}, "search: rerank_top has to be greater than or equal to 1, found"),
    ("search", {"query": "river", "k": True}, "search: k: expected a whole number, found True."),
    ("search", {"query": "river", "rerank_top": True}, "search: rerank_top: expected a whole number, found True."),
    (
        "search",
        {"query": "river", "rerank_budget_ms": False},
        "search: rerank_budget_ms: expected a whole number, found",
    ),
    ("context", {"id": "r1", "around": False}, "context: around: expected a whole number, found False."),
    ("context", {"id": "nobody"}, "There is no passage"),
    ("get", {"ids": []}, "get: ids has to have at least 1 item, found []."),
    (
        "search",
        {"query": "river", "filters": {"book": "b0"}},
        "search has no argument 'filters': write where=… for it.",
    ),
    ("list_collections", {"collection": "papers"}, "list_collections has no argument 'collection'"),
]


async def test_a_wrong_call_is_told_to_the_agent(papers: Path) -> None:
    async with connected(papers) as client:
        for tool, arguments, message in WRONG_CALLS:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            (said,) = (part.model_dump()["text"] for part in result.content)
            assert message in said
            assert "pydantic" not in said


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}
IDS = "the id of a request is a string or a whole number"
LINES: list[tuple[str | bytes, Any, str]] = [  # with the id and the beginning of the answer's message
    (
        json.dumps({"id": 2, "method": "tools/call", "params": {"arguments": {"query": "\ud800"}}}),
        2,
        "a lone surrogate",
    ),
    ('{"id": "a", "params": "\\udfff"}', "a", "a lone surrogate"),
    ('{"id": 3, "parms": {}}', 3, "it is no JSON-RPC message"),
    ("[1, 2]", None, "it is no JSON-RPC message"),
    ("no json", None, "it is no JSON"),
    ('{"id": 4', None, "it is no JSON"),
    ("[" * 100_000, None, "it is no JSON"),
    ("", None, "it is no JSON"),
    (b'{"jsonrpc": "2.0", "id": 5, "method": "\xff"}', None, "it is not UTF-8"),
    (json.dumps("text"), None, "it is no JSON-RPC message"),
    (json.dumps([{"jsonrpc": "2.0", "id": 6, "method": "ping"}]), None, "it is no JSON-RPC message"),
    (json.dumps({"jsonrpc": "1.0", "id": 7, "method": "ping"}), 7, "it is no JSON-RPC message"),
    (json.dumps({"jsonrpc": "2.0", "id": 8, "method": 8}), 8, "it is no JSON-RPC message"),
    (json.dumps({"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": "search"}), 10, "it is no JSON-RPC"),
    (json.dumps({"jsonrpc": "2.0", "id": "\ud800", "method": "ping"}), None, "a lone surrogate"),
    *(
        (json.dumps({"jsonrpc": "2.0", "id": id_, "method": "ping"}), None, IDS)
        for id_ in (None, True, 1.5, [1], {"id": 1})
    ),
    (json.dumps({"jsonrpc": "2.0", "id": 9, "error": "wrong"}), None, "it is no JSON-RPC message"),
    (json.dumps({"jsonrpc": "2.0", "id": 9, "result": {"of": "\ud800"}}), None, "a lone surrogate"),
]
UNANSWERED = [
    {"method": "notifications/nobody", "params": {}},
    {"method": "notifications/cancelled", "params": {"requestId": 77}},
    {"method": "notifications/cancelled", "params": {"requestId": {"no": "id"}}},
    {"method": "notifications/progress"},
    {"id": 9, "result": {}},  # of a request that the server never sent
    {"id": None, "error": {"code": -32700, "message": "not understood"}},
]


class Lines:
    """`cde-rag mcp` as a client without the SDK sees it; its first line has a byte order mark, as from PowerShell."""

    def __init__(self, papers: Path) -> None:
        model = str(papers.parent / "model")
        command = [sys.executable, "-c", "from cde_rag.cli import app; app()", "mcp", str(papers), "--model", model]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._killer = threading.Timer(120, self.process.kill)
        self._killer.start()
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        self.send(codecs.BOM_UTF8 + json.dumps(hello).encode())
        assert self.read()["id"] == 1

    def send(self, *lines: str | bytes) -> None:
        """Write lines at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
        self.process.stdin.flush()

    def read(self) -> Any:
        """Return the next answer."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> int:
        """Close the input; returns the exit status, after the last answer."""
        self.process.communicate()
        self._killer.cancel()
        return self.process.returncode


@pytest.fixture
def lines(papers: Path) -> Iterator[Lines]:
    made = Lines(papers)
    yield made
    made.close()


def test_a_line_that_cannot_be_read_is_answered(lines: Lines) -> None:
    """An agent would wait for its answer for ever; the next line is read."""
    unanswered = (json.dumps({"jsonrpc": "2.0", **message}) for message in UNANSWERED)
    last = {"jsonrpc": "2.0", "id": 9, "method": "tools/list"}
    lines.send(*unanswered, *(line for line, _, _ in LINES), json.dumps(last))
    for line, id_, reason in LINES:
        answer = lines.read()
        assert answer["error"]["message"].startswith(f"The message cannot be read: {reason}"), line
        assert answer["id"] == id_
    listed = lines.read()
    assert (listed["id"], "result" in listed) == (9, True)
    assert lines.close() == 0


def test_requests_at_once_and_cancelled_ones(lines: Lines) -> None:
    """Each request that is not cancelled gets its own answer; one that is gets it or none. A client may leave then."""
    calls = {
        f"call {number}": {"name": "get", "arguments": {"ids": [f"r{number}"]}}
        if number % 2
        else {"name": "search", "arguments": {"query": f"river {number}", "where": {"year": 2000 + number}}}
        for number in range(20)
    }
    cancelled = {
        f"cancelled {number}": {"name": "search", "arguments": {"query": "bank " * 500}} for number in range(5)
    }
    requests = {**cancelled, **calls}
    sent = [json.dumps({"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": each})
            for id_, each in requests.items()]  # fmt: skip
    cancels = [json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id_}})
               for id_ in cancelled]  # fmt: skip
    lines.send(*sent[:5], *cancels, *sent[5:])
    found = dict[str, Any]()
    while calls.keys() - found.keys():
        answer = lines.read()
        assert answer["id"] in requests
        assert answer["id"] not in found
        found[answer["id"]] = answer["result"]
    for number in range(20):
        assert [record["id"] for record in found[f"call {number}"]["structuredContent"]["result"]] == [f"r{number}"]
    assert lines.process.stdin is not None
    lines.process.stdin.write(f'{sent[0]}\n{{"jsonrpc": "2.0", "id": 2, "method": "tools/ca'.encode())
    assert lines.close() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a signal of POSIX")
def test_an_interrupt_ends_the_server(lines: Lines) -> None:
    """Also while it waits for a line, as on a terminal."""
    lines.process.send_signal(signal.SIGINT)
    assert lines.process.wait(60) == -signal.SIGINT


def test_a_call_without_a_collection_is_told_which_there_are(papers: Path) -> None:
    with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
        tools = CollectionTools({"small": collection, "mine": collection})
        with pytest.raises(CDEError, match=r"^Name a collection: mine, small\.$"):
            tools.search("river")


def test_a_row_is_named_by_its_file(papers: Path) -> None:
    with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
        origin = {"file": "docs/own.csv", "folder": "/srv/docs", "row": 7}
        collection.add_records([Record("row", "river bank", "", {"table": origin, "line": 3})])
        (found,) = CollectionTools({"papers": collection}).search("river", where={"table.row": 7}, by="bm25")
        assert found["place"] == "docs/own.csv, row 7"


def test_a_context_alone_is_refused(papers: Path, tmp_path: Path) -> None:
    file = tmp_path / "papers.context.safetensors"
    with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
        collection.embedder.context.save(file)
    result = CliRunner().invoke(app, ["mcp", str(file), "--model", str(papers.parent / "model")])
    assert (result.exit_code, "holds no documents" in result.output) == (1, True)
