"""`cde-rag mcp` in a process of its own, used by the client of the official SDK."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from served import records, texts
from tiny import tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag import CDEError, CDEModel, Collection, ContextualEmbedder
from cde_rag.cli import app
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.server.mcp_tools import CollectionTools
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
async def connected(papers: Path) -> AsyncGenerator[Client, None]:
    command = ["-c", "from cde_rag.cli import app; app()", "mcp", str(papers), "--model", str(papers.parent / "model")]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
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


WRONG_CALLS = [
    ("search", {"query": " "}, "blank"),
    ("search", {"query": "river", "where": {"year": {"near": 1}}}, "near"),
    ("search", {"query": "river", "where": {"yaer": 2003}}, "No record has the field 'yaer' of the filter. The first"),
    ("search", {"query": "river", "by": "magic"}, "magic"),
    ("search", {"query": "x" * (QUERY_CHARACTERS + 1)}, "at most 32000 characters"),
    ("search", {"query": "river", "collection": "other"}, "papers"),
    ("search", {"query": "river", "k": 0}, "greater than or equal to 1"),
    ("context", {"id": "nobody"}, "There is no passage"),
    ("get", {"ids": []}, "at least 1 item"),
    ("search", {"query": "river", "filters": {"book": "b0"}}, "filters"),
    ("list_collections", {"collection": "papers"}, "collection"),
]


async def test_a_wrong_call_is_told_to_the_agent(papers: Path) -> None:
    async with connected(papers) as client:
        for tool, arguments, message in WRONG_CALLS:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert message in json.dumps([part.model_dump() for part in result.content])


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}
LINES: list[tuple[str, Any, str]] = [  # with the id and the beginning of the answer's message
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
]


def test_a_line_that_cannot_be_read_is_answered(papers: Path) -> None:
    """An agent would wait for its answer for ever; the next line is read."""
    command = ["-c", "from cde_rag.cli import app; app()", "mcp", str(papers), "--model", str(papers.parent / "model")]
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    last = {"jsonrpc": "2.0", "id": 9, "method": "tools/list"}
    lines = [json.dumps(hello), *(line for line, _, _ in LINES), json.dumps(last)]
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        killer = threading.Timer(120, server.kill)
        killer.start()
        server.stdin.write(f"{lines[0]}\n")
        server.stdin.flush()
        first = json.loads(server.stdout.readline())  # before the others, whose errors may overtake it
        server.stdin.write("".join(f"{line}\n" for line in lines[1:]))
        server.stdin.flush()
        *answers, listed = (json.loads(server.stdout.readline()) for _ in lines[1:])
        server.stdin.close()
        assert server.wait(60) == 0
        killer.cancel()
    assert (first["id"], listed["id"], "result" in listed) == (1, 9, True)
    for answer, (_, id_, reason) in zip(answers, LINES, strict=True):
        assert (answer["id"], answer["error"]["message"].startswith(f"The message cannot be read: {reason}")) == (
            id_,
            True,
        )


def test_a_call_without_a_collection_is_told_which_there_are(papers: Path) -> None:
    with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
        tools = CollectionTools({"small": collection, "mine": collection})
        with pytest.raises(CDEError, match=r"^Name a collection: mine, small\.$"):
            tools.search("river")


def test_a_context_alone_is_refused(papers: Path, tmp_path: Path) -> None:
    file = tmp_path / "papers.context.safetensors"
    with Collection.open(FaissStore(papers), model=papers.parent / "model") as collection:
        collection.embedder.context.save(file)
    result = CliRunner().invoke(app, ["mcp", str(file), "--model", str(papers.parent / "model")])
    assert (result.exit_code, "holds no documents" in result.output) == (1, True)
