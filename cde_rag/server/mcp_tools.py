"""MCP server: collections as tools of coding agents and chat programs, over stdio."""

import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MappingProxyType
from typing import Annotated, Any, Final, ParamSpec, TypeGuard, TypeVar, cast

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    ToolAnnotations,
    jsonrpc_message_adapter,
)
from pydantic import BeforeValidator, Field, ValidationError

from cde_rag._validation import wrong_argument
from cde_rag._version import __version__
from cde_rag.collection.collection import Collection
from cde_rag.errors import CDEError
from cde_rag.readers import SECTION_KEY
from cde_rag.readers.passages import document_of, place_in_file
from cde_rag.readers.row_origin import TableFile
from cde_rag.records import Record
from cde_rag.search.fusion import Ranking
from cde_rag.search.retrievers import Rerank
from cde_rag.server.search_results import as_json, neighbours_of, with_warnings
from cde_rag.server.text_limits import QUERY_CHARACTERS

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MOST_HITS: Final = 50
MOST_RERANKED: Final = 1_000
RERANKING: Final = ("rerank", "rerank_top", "rerank_budget_ms")  # arguments of search, of servers with rerankers
NO_RERANKERS: Final[Mapping[str, Rerank]] = MappingProxyType({})
READING: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)


def _no_bool(given: object) -> object:
    """Refuse true and false, which pydantic takes for 1 and 0."""
    if isinstance(given, bool):
        raise ValueError("expected a whole number")
    return given


Count = Annotated[int, BeforeValidator(_no_bool)]
Name = Annotated[str | None, Field(description="Name of the collection; may be left out where there is one.")]


class CollectionTools:
    """Tools that read collections.

    Args:
        collections: Open collections by name, one or more.
        rerankers: Rerankers that a search may name; a call loads none.
    """

    def __init__(self, collections: Mapping[str, Collection], rerankers: Mapping[str, Rerank] = NO_RERANKERS) -> None:
        self.collections = dict(collections)
        self.rerankers = dict(rerankers)

    def list_collections(self) -> list[dict[str, Any]]:
        """List the collections: documents, how many wait for vectors, the parent key, and how complete each is.

        Passages may be missing from one that is `unfinished`: its first indexing goes on, or was stopped.
        """
        found = {name: collection.inspect() for name, collection in self.collections.items()}
        return [
            {
                "name": name,
                "documents": each.documents,
                "pending": each.pending,
                "unfinished": each.unfinished,
                "parent_key": each.parent_key,
                "model": each.model,
            }
            for name, each in found.items()
        ]

    def search(
        self,
        query: Annotated[
            str, Field(max_length=QUERY_CHARACTERS, description="Question or keywords, in natural language.")
        ],
        collection: Name = None,
        k: Annotated[Count, Field(ge=1, le=MOST_HITS, description="Maximum number of hits.")] = 8,
        where: Annotated[
            dict[str, Any] | None,
            Field(description='Filter over the metadata, such as {"source": "install.md"} or {"year": {"gte": 2020}}.'),
        ] = None,
        by: Annotated[
            Ranking | None,
            Field(description="hybrid, the default; vectors for meaning alone; bm25 for exact terms."),
        ] = "hybrid",
        rerank: Annotated[str | None, Field(description="Name of a reranker of the best hits.")] = None,
        rerank_top: Annotated[
            Count | None, Field(ge=1, le=MOST_RERANKED, description="Number of hits to rerank; 50 by default.")
        ] = None,
        rerank_budget_ms: Annotated[
            Count | None,
            Field(ge=0, description="Milliseconds of reranking; hits without a score are left out, but the first k."),
        ] = None,
    ) -> list[dict[str, Any]]:
        """Search a collection; returns passages, best first, with id, title, section, place, score and text.

        Use `context` with the id of a hit to read the passages around it.
        """
        searched = self._named(collection)
        search = partial(
            searched.search,
            query,
            k,
            by=by or "hybrid",
            where=where,
            rerank=self._reranker(rerank),
            rerank_top=rerank_top,
            rerank_budget_ms=rerank_budget_ms,
        )
        hits, reasons = with_warnings(searched, search, where, query)
        if reasons:
            raise CDEError(" ".join(reasons))
        return [{**_shown(Record(hit.id, hit.text, hit.title, hit.metadata)), "score": hit.score} for hit in hits]

    def get(
        self,
        ids: Annotated[list[str], Field(min_length=1, max_length=MOST_HITS, description="Ids of passages.")],
        collection: Name = None,
    ) -> list[dict[str, Any]]:
        """Return passages by their ids, complete with metadata; unknown ids are left out."""
        return [as_json(record) for record in self._named(collection).get(ids)]

    def context(
        self,
        id: Annotated[str, Field(description="Id of a hit.")],  # noqa: A002 (the name that agents see)
        collection: Name = None,
        around: Annotated[Count, Field(ge=0, le=20, description="Passages on each side.")] = 2,
    ) -> list[dict[str, Any]]:
        """Return a passage between its neighbours of the same document, in their order."""
        records = neighbours_of(self._named(collection), id, around)
        if not records:
            raise CDEError(f"There is no passage {id!r:.200}. Take the id of a hit.")
        return [_shown(record) for record in records]

    def _named(self, name: str | None) -> Collection:
        if name is None and len(self.collections) == 1:
            return next(iter(self.collections.values()))
        there = ", ".join(sorted(self.collections))
        if name is None:
            raise CDEError(f"Name a collection: {there}.")
        if name not in self.collections:
            raise CDEError(f"collection: expected one of {there}, found {name!r:.80}.")
        return self.collections[name]

    def _reranker(self, name: str | None) -> Rerank | None:
        if name is None:
            return None
        if name not in self.rerankers:
            there = ", ".join(self.rerankers) or "which has none"
            raise CDEError(
                f"rerank: expected one of the rerankers of this server, {there}, found {name!r:.80}. Others are named "
                "when it starts: cde-rag mcp --rerank NAME."
            )
        return self.rerankers[name]


class StdioServer(MCPServer[Any]):
    """MCP server over stdio that also answers lines that are no messages."""

    async def run_stdio_async(self) -> None:
        """Serve until the client closes the input."""
        lines = anyio.wrap_file(os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=False))
        nothing = anyio.wrap_file(io.StringIO())  # the SDK would drop what it cannot read
        send, receive = anyio.create_memory_object_stream[SessionMessage | Exception]()
        async with stdio_server(stdin=nothing) as (_, answers), anyio.create_task_group() as group:

            async def read() -> None:
                async with send:
                    async for line in lines:
                        try:
                            message = _message(line)
                        except _UnreadableError as error:
                            await answers.send(SessionMessage(error.answer))
                        else:
                            await send.send(SessionMessage(message))

            group.start_soon(read)
            await self._lowlevel_server.run(receive, answers, self._lowlevel_server.create_initialization_options())


class _UnreadableError(Exception):
    """A line that is no JSON-RPC message, and the answer to it."""

    def __init__(self, code: int, reason: str, id_: str | int | None = None) -> None:
        message = f"The message cannot be read: {reason}. Mend it, and send it again."
        self.answer = JSONRPCError(jsonrpc="2.0", id=id_, error=ErrorData(code=code, message=message))
        super().__init__(message)


def _message(line: bytes) -> JSONRPCMessage:
    """Return the message of a line.

    Raises:
        _UnreadableError: There is none; its answer has the id of the request if that can be read.
    """
    try:
        message: object = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _UnreadableError(PARSE_ERROR, "it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise _UnreadableError(PARSE_ERROR, "it is no JSON") from None
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    id_ = fields.get("id")
    known = id_ if _is_id(id_) and not fields.keys() & {"result", "error"} else None
    try:
        json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        reason = "a lone surrogate, such as \\ud800, stands for half of a character, and is no text"
        raise _UnreadableError(PARSE_ERROR, reason, known) from None
    if "method" in fields and "id" in fields and not _is_id(id_):  # the SDK would take it for a notification
        raise _UnreadableError(INVALID_REQUEST, "the id of a request is a string or a whole number")
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        raise _UnreadableError(INVALID_REQUEST, "it is no JSON-RPC message", known) from None


def _is_id(found: object) -> TypeGuard[str | int]:
    """True for a value that can be the id of a request and of its answer."""
    if isinstance(found, str):
        return not any("\ud800" <= character <= "\udfff" for character in found)
    return isinstance(found, int) and not isinstance(found, bool)


def mcp_server(collections: Mapping[str, Collection], rerankers: Mapping[str, Rerank] = NO_RERANKERS) -> MCPServer[Any]:
    """Return a server with the tools search, get, list_collections and context.

    Args:
        collections: Open collections by name, one or more.
        rerankers: Rerankers that a search may name, by name.
    """
    tools = CollectionTools(collections, rerankers)
    names = ", ".join(sorted(collections))
    instructions = f"Search before you answer from memory. Collections: {names}. Cite the ids of passages."
    calls = (tools.get, tools.list_collections, tools.context)
    return StdioServer(
        "cde-rag",
        version=__version__,
        instructions=instructions,
        log_level="WARNING",
        tools=[_search_tool(tools), *map(_tool, calls)],
    )


def _search_tool(tools: CollectionTools) -> Tool:
    """Return the tool search, whose arguments name the rerankers; those of reranking are hidden where there are none.

    Agents read the arguments before they call: one without an effect would cost them tokens and tries.
    """
    tool = _tool(tools.search)
    arguments = tool.parameters["properties"]
    if tools.rerankers:
        arguments["rerank"]["description"] = f"Reranker of the best hits: {' or '.join(tools.rerankers)}."
    else:
        for name in RERANKING:
            del arguments[name]
    return tool


class _CollectionTool(Tool):
    """Tool that takes an argument of null as one left out, as in a request over HTTP, and names a wrong one."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Call the tool; as `Tool.run`."""
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            self.fn_metadata.validate_arguments(given)
        except ValidationError as error:
            known = self.parameters["properties"]
            raise ToolError(str(wrong_argument(self.name, error.errors()[0], known))) from error
        return await super().run(given, context, convert_result)


def _tool(call: Callable[..., Any]) -> Tool:
    """Return a tool that refuses unknown arguments: a filter under another name is never ignored."""
    tool = _CollectionTool.from_function(_with_tool_errors(call), annotations=READING)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool


def _with_tool_errors(tool: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the tool with errors of the library as messages to the agent, which can mend its call."""

    @wraps(tool)
    def _call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return tool(*args, **kwargs)
        except (CDEError, ValueError) as error:
            raise ToolError(str(error)) from error

    return _call


def _shown(record: Record) -> dict[str, Any]:
    """Return a passage as agents read it."""
    section = record.metadata.get(SECTION_KEY)
    shown: dict[str, Any] = {"id": record.id, "title": record.title}
    if isinstance(section, str):
        shown["section"] = section
    table = TableFile.of(record.metadata)
    if (table or document_of(record) is not None) and (place := place_in_file(record.metadata)):
        shown["place"] = f"{table.name}, {place}" if table else place  # the id of a row names no file
    return {**shown, "text": record.text}
