"""The commands serve and mcp."""

import os
import re
import signal
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cde_rag._files import user_path
from cde_rag.cli.collections import ModelOption, existing, existing_place, open_collection, tenant_stores
from cde_rag.errors import CDEError, StoreError, TruncationWarning, require

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.embedders.protocol import Embedder
    from cde_rag.search.retrievers import Rerank
    from cde_rag.server.language_model import LanguageModel
    from cde_rag.server.token_batcher import Role

CONTEXT_SUFFIX = ".context.safetensors"
KEY_VARIABLE = "CDE_RAG_API_KEY"
LLM_KEY_VARIABLE = "CDE_RAG_LLM_KEY"

Paths = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]PATH…", help="Folders or addresses of collections, or *.context.safetensors files."),
]
RerankersOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[SHORT=]NAME",
        help="Reranker that requests may name, by SHORT if given: a cross-encoder's folder or hub id, such as "
        "cross-encoder/ms-marco-MiniLM-L6-v2, cohere:MODEL, jina:MODEL, or an address; may be repeated.",
    ),
]
Collections = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]PATH…",
        help="Folders or addresses of collections, or targets of search, such as qdrant:URL#NAME.",
    ),
]


def _role(text: str) -> str:
    if text not in ("query", "document"):
        raise typer.BadParameter(f"expected query or document, found {text!r:.80}")
    return text


def serve(
    paths: Paths,
    host: Annotated[
        str, typer.Option(help="Address to bind; an API key is required if other machines can reach it.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for a free one.")] = 8_000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help=f"API key that clients send; see also the environment's {KEY_VARIABLE}."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File with one API key per line.")
    ] = None,
    tenant_key_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with lines 'KEY TENANT', for a PATH with tenants: a key reaches its tenant's collection alone.",
        ),
    ] = None,
    default_role: Annotated[
        str | None,
        typer.Option(
            parser=_role,
            metavar="query|document",
            help="Role of texts in requests that specify none.  [default: such requests are refused]",
        ),
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per batch.")] = 8_192,
    pending_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of waiting tokens; further requests get status 429.")
    ] = 2_000_000,
    max_body: Annotated[int, typer.Option(min=1_000, help="Maximum size of a request body in bytes.")] = 16_000_000,
    embed_budget_ms: Annotated[
        int,
        typer.Option(
            min=0,
            help="Milliseconds of a search for vectors of its best hits by words that wait for theirs; 0: none.",
        ),
    ] = 1_000,
    contexts: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder of contexts that clients make, list and delete.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder of indexed files that clients may let the server read again; may be repeated.",
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="OpenAI-compatible address of the language model that answers chats; its key is the environment's "
            f"{LLM_KEY_VARIABLE}.  [default: none; chats are answered with passages]",
        ),
    ] = None,
    llm_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model at that address.  [default: the first one it lists]")
    ] = None,
    rerank: RerankersOption = None,
    model: ModelOption = None,
) -> None:
    """Serve collections over HTTP, to browsers, OpenAI clients and any other HTTP client.

    Routes: /v1/embeddings, /v1/models, /v1/rerank, /v1/vector_stores, /v1/chat/completions,
    /v1/collections/NAME/search and /records; /openapi.json describes them. A collection is named for its folder:
    papers.faiss is "papers". Needs the extra `serve`.

    \b
    Examples:
      cde-rag serve docs.faiss --files docs/
      cde-rag serve papers.faiss \\
        --llm http://localhost:11434/v1 --llm-model qwen3:8b
      curl localhost:8000/v1/collections/papers/search \\
        -H 'content-type: application/json' \\
        -d '{"query": "late interaction"}'
      cde-rag serve docs=one/index.faiss papers.faiss --host 0.0.0.0 \\
        --api-key-file keys.txt
      cde-rag serve customers.faiss --tenant-key-file tenants.txt
      cde-rag serve papers.faiss \\
        --rerank cross-encoder/ms-marco-MiniLM-L6-v2
    """
    for module in ("fastapi", "prometheus_client", "uvicorn"):
        require(module, "serve")
    from cde_rag.cli.foreign import is_foreign
    from cde_rag.models.runtimes.native_memory import bound_native_memory
    from cde_rag.server.access import ApiKeys, check_bind
    from cde_rag.server.context_routes import stored_contexts
    from cde_rag.server.http_app import create_app
    from cde_rag.server.registry import Registry
    from cde_rag.server.service import ServerOptions, Service
    from cde_rag.server.token_batcher import TokenBatcher
    from cde_rag.server.uvicorn_server import BoundSockets, run

    bound_native_memory()
    if foreign := [path for path in paths if is_foreign(_named(path)[1])]:
        raise CDEError(
            f"Expected collections, which serve writes to, found {foreign[0].partition(':')[0]}, an index of another "
            "application. cde-rag mcp and cde-rag search read it."
        )
    tenant_of = _tenant_keys(tenant_key_file)
    keys = ApiKeys([*(api_key or []), *_keys(api_key_file)], tenant_of)
    check_bind(host, keys)
    bound = BoundSockets(host, port)  # before models are loaded
    language_model = _language_model(llm, llm_model)
    rerankers = rerankers_of(rerank or ())
    kept = [] if contexts is None else [f"{name}={path}" for name, path in stored_contexts(contexts)]
    shared = [path for path in paths if not (tenant_of and _has_tenants(_named(path)[1]))]
    if shared and tenant_of and len(keys) == len(tenant_of):
        raise CDEError(
            f"Expected a key for {shared[0]}, which has no tenants, found tenants' alone. Give --api-key-file."
        )
    collections, embedders = opened([*shared, *kept], model)
    of_tenants = _opened_tenants([path for path in paths if path not in shared], set(tenant_of.values()), model)
    for collection in (*collections.values(), *(one for own in of_tenants.values() for one in own.values())):
        collection.embed_budget_ms = embed_budget_ms
    folders = {_named(path)[0]: folder for path in shared if (folder := user_path(_named(path)[1])).is_dir()}
    warnings.simplefilter("ignore", TruncationWarning)  # answers count such texts
    options = ServerOptions(
        default_role=cast("Role | None", default_role),
        keys=keys,
        max_body_bytes=max_body,
        contexts=contexts,
        files=tuple(folder.resolve() for folder in files or ()),
        language_model=language_model,
        rerankers=rerankers,
    )
    batcher = TokenBatcher(batch_tokens=batch_tokens, pending_tokens=pending_tokens)
    service = Service(Registry(collections, batcher, embedders, folders), options)
    tenants = {
        name: Service(Registry(own, batcher), replace(options, contexts=None, files=()))
        for name, own in of_tenants.items()
    }
    for served in service.registry.models():
        typer.echo(f"{served.id}  {served.embedder.dim} dimensions", err=True)
    for name in rerankers:
        typer.echo(f"reranker: {name}", err=True)
    if tenants:
        typer.echo(f"tenants: {len(tenants)}, each with keys of its own", err=True)
    chat = "passages alone; --llm names a language model" if language_model is None else language_model.name
    typer.echo(f"chat: {chat}", err=True)
    run(create_app(service, tenants), bound)


def _language_model(url: str | None, name: str | None) -> "LanguageModel | None":
    """Return the language model of chats; None without one."""
    from cde_rag.server.language_model import RemoteModel

    if url is not None and url != "none":  # the word of 0.2 for the default of today
        return RemoteModel(url, model=name, api_key=os.environ.get(LLM_KEY_VARIABLE))
    if name is not None:
        raise CDEError("--llm-model names a model of an address. Give the address, too: --llm http://…")
    return None


def rerankers_of(given: Sequence[str]) -> "dict[str, Rerank]":
    """Load rerankers, by the names that requests use: their own, or short ones, which show clients no address.

    Raises:
        CDEError: Two of them have one name.
    """
    from cde_rag.models.rerankers import named_reranker
    from cde_rag.server.registry import NAME_PATTERN

    found: dict[str, Rerank] = {}
    for text in given:
        short, _, name = text.partition("=")
        if not (name and re.match(NAME_PATTERN, short)):
            short = name = text
        if short in found:
            raise CDEError(f"Two rerankers are named {short!r:.200}. Give one another name: SHORT=NAME")
        found[short] = named_reranker(name)
    return found


def opened(paths: list[str], model: str | None) -> "tuple[dict[str, Collection], dict[str, Embedder]]":
    """Open collections and contexts, by name.

    Raises:
        CDEError: Two of them have one name, or a name has other characters than addresses take.
    """
    from cde_rag.cli.foreign import is_foreign, open_foreign
    from cde_rag.server.registry import NAME_PATTERN

    collections: dict[str, Collection] = {}
    contexts: dict[str, Embedder] = {}
    for text in paths:
        name, place = _named(text)
        path = Path(place.partition("?")[0]) if "://" in place else user_path(place)
        is_context = path.name.endswith(CONTEXT_SUFFIX)
        if not re.match(NAME_PATTERN, name):
            shown = repr(name) if "@" not in name else "An address"  # which may have a password
            raise CDEError(f"{shown}: expected a name of letters, digits, '.', '_' and '-'. Give one: NAME=PATH")
        if name in collections or name in contexts:
            raise StoreError(f"Two collections are named {name!r}. Give one another name: NAME=PATH")
        if is_context:
            contexts[name] = _embedder(path, model)
        elif is_foreign(place):
            collections[name] = open_foreign(place, model, None)
        else:
            collections[name] = open_collection(existing(place), model)
    return collections, contexts


def _has_tenants(place: str) -> bool:
    """Return True for a place with a collection per tenant."""
    return not place.endswith(CONTEXT_SUFFIX) and "tenant_key" in existing_place(place).manifest().settings


def _opened_tenants(paths: list[str], names: set[str], model: str | None) -> "dict[str, dict[str, Collection]]":
    """Open the collections of tenants: by tenant, then by the name of the path."""
    from cde_rag.collection.tenants import Tenants

    found: dict[str, dict[str, Collection]] = {}
    for path in paths:
        name, place = _named(path)
        with Tenants.open(tenant_stores(place), model=model) as tenants:
            for tenant in names.intersection(tenants.names()):
                found.setdefault(tenant, {})[name] = tenants.get(tenant)
    if missing := sorted(names - found.keys()):
        raise CDEError(
            f"The file of tenants' keys names {missing[0]!r:.80}, and no PATH has a tenant of this name. Make it with: "
            "cde-rag index SOURCE COLLECTION --tenant NAME"
        )
    return found


def _tenant_keys(path: Path | None) -> dict[str, str]:
    """Read tenants' names by their keys."""
    found: dict[str, str] = {}
    for number, line in _lines(path):
        key, _, tenant = line.partition(" ")
        if not tenant.strip() or key in found:
            raise CDEError(f"{path}:{number}: expected 'KEY TENANT', each key once, found another line. Mend it.")
        found[key] = tenant.strip()
    if path is not None and not found:
        raise CDEError(
            f"{path} holds no API key. Write 'KEY TENANT' per line; a key is made with: openssl rand -hex 32"
        )
    return found


def _named(text: str) -> tuple[str, str]:
    """Return name and place of an argument `[NAME=]PATH`; an index of another application has the name after #."""
    from cde_rag.cli.foreign import is_foreign

    named, rest = text.partition("=")[::2] if "=" in text.partition("://")[0] else ("", "")
    if rest:
        return named, rest
    if is_foreign(text):
        place, _, name = text.rpartition("#")
        return name if place else user_path(name.partition(":")[2]).resolve().stem, text
    path = Path(text.partition("?")[0]) if "://" in text else user_path(text)
    is_context = path.name.endswith(CONTEXT_SUFFIX)
    return path.name.removesuffix(CONTEXT_SUFFIX) if is_context else path.resolve().stem, text


def _embedder(path: Path, model: str | None) -> "Embedder":
    from cde_rag.context.context import Context
    from cde_rag.embedders.active import loaded

    return loaded(Context.load(path), model=model)


def _lines(path: Path | None) -> list[tuple[int, str]]:
    """Return the lines of a file of keys with their numbers, without empty ones and comments ("# …")."""
    from cde_rag.readers.decoding import read_text

    lines = [] if path is None else read_text(path).splitlines()
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    return [(number, line) for number, line in found if line and not line.startswith("#")]


def _keys(path: Path | None) -> list[str]:
    keys = list[str]()
    for number, line in _lines(path):
        if len(line.split()) > 1:
            raise CDEError(
                f"{path}:{number}: expected one key without blanks, found a line with some. A comment is a line of its "
                "own that begins with '#'."
            )
        keys.append(line)
    if path is not None and not keys:
        raise CDEError(f"{path} holds no API key. Write one per line, such as: openssl rand -hex 32 > {path}")
    variable = os.environ.get(KEY_VARIABLE)
    return keys if variable is None else [*keys, variable]


def mcp(paths: Collections, rerank: RerankersOption = None, model: ModelOption = None) -> None:
    """Serve collections to coding agents over stdio (Model Context Protocol). Needs the extra `mcp`.

    Tools: search (vectors and words), get, list_collections, and context (the passages around a hit). All are
    read-only. An index of another application is copied into the cache when the server starts. With --rerank, search
    takes these rerankers, and no others.

    \b
    Examples:
      claude mcp add docs -- cde-rag mcp docs.faiss
      cde-rag mcp docs.faiss papers.faiss
      cde-rag mcp docs.faiss --rerank cross-encoder/ms-marco-MiniLM-L6-v2
      cde-rag mcp qdrant:http://localhost:6333#papers \\
        --model intfloat/e5-small-v2
    """
    require("mcp.server", "mcp")
    from cde_rag.models.runtimes.native_memory import bound_native_memory
    from cde_rag.server.mcp_tools import mcp_server

    bound_native_memory()
    rerankers = rerankers_of(rerank or ())
    collections, contexts = opened(paths, model)
    if contexts:
        raise CDEError("mcp searches, and a context holds no documents. Name collections.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own would wait for a line of the client
    try:
        mcp_server(collections, rerankers).run()
    finally:
        for collection in collections.values():
            collection.close()
