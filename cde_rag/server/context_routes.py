"""Routes of contexts: made from documents, described, fetched and deleted."""

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Final

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cde_rag._validation import unique_keys
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.contextual import ContextualEmbedder, contextual
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.errors import ContextError, CorpusError
from cde_rag.models.plain.fixed_texts import corpus_size
from cde_rag.records import Record, embedded_text
from cde_rag.server.error_responses import Json, RequestError, store_error
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.registry import NAME_PATTERN, ServedModel
from cde_rag.server.service import Serving
from cde_rag.server.text_limits import TEXT_CHARACTERS, too_long

router = APIRouter(prefix="/v1/contexts", route_class=JsonRoute)
SUFFIX: Final = ".context.safetensors"
MAX_CORPUS_BYTES: Final = 4_000_000_000


@router.get("")
async def list_contexts(service: Serving) -> Json:
    """List the contexts of the collections, and those that were made or given."""
    models = await in_thread(service.registry.models)
    return Json({"object": "list", "data": [_described(model, service) for model in models]})


@router.get("/{name}")
async def retrieve_context(name: str, service: Serving) -> Json:
    """Describe a context."""
    return Json(_described(await in_thread(service.registry.model, name), service))


@router.get("/{name}/file")
async def fetch_context(name: str, service: Serving) -> Response:
    """Return a context's file, for `Context.load`."""
    model = await in_thread(service.registry.model, name)
    content = await in_thread(model.embedder.context.to_bytes)
    return Response(content, media_type="application/octet-stream")


@router.post("", status_code=201)
async def create_context(
    request: Request,
    service: Serving,
    name: Annotated[str, Query(pattern=NAME_PATTERN)],
    model: str | None = None,
    seed: int = 0,
    context_size: Annotated[int | None, Query(ge=1)] = None,
    strategy: Strategy = "random",
) -> Json:
    """Make a context from documents: JSONL, streamed, an object with "text" (and "title") per line.

    `model` is a served model whose weights make it; it may be left out where all have the same.
    """
    folder = service.options.contexts
    if folder is None:
        message = "Contexts are made where the server was started with --contexts FOLDER, in which they are kept."
        raise RequestError(400, message, code="no_folder")
    service.registry.check_free(name, service.registry.contexts)
    weights = _weights(await in_thread(_made_by, service, model))
    with tempfile.TemporaryFile() as corpus:
        bound = _CorpusBound(service.options.max_body_bytes)
        async for part in request.stream():
            bound.check(part)
            await in_thread(corpus.write, part)
        corpus.seek(0)
        make = partial(
            ContextualEmbedder.from_corpus,
            _texts(corpus),
            model=weights.model,
            context_size=context_size,
            seed=seed,
            strategy=strategy,
            options=EmbedderOptions(mini_batch_size=weights.mini_batch_size),
        )
        embedder = await in_thread(make)
    service.registry.add_context(name, embedder)
    try:
        await in_thread(embedder.context.save, folder / f"{name}{SUFFIX}")
    except ContextError as error:
        service.registry.remove_context(name)
        raise store_error(error) from error
    described = _described(ServedModel(f"{embedder.context.identity.name}@{name}", embedder), service)
    return Json(described, status_code=201)


@router.delete("/{name}")
async def delete_context(name: str, service: Serving) -> Json:
    """Delete a context that was made over HTTP; vectors in it cannot be searched by this server any more."""
    folder = service.options.contexts
    path = None if folder is None else folder / f"{name}{SUFFIX}"
    if name not in service.registry.contexts:
        raise RequestError(404, f"There is no context {name!r:.200} of its own.", code="context_not_found")
    if path is None or not path.exists():
        message = f"{name!r} was given when the server started. Start it without that file."
        raise RequestError(400, message, code="invalid_value", param="name")
    await in_thread(partial(path.unlink, missing_ok=True))  # of two requests at once, the second gets a 404
    service.registry.remove_context(name)
    return Json({"name": name, "object": "context", "deleted": True})


class _CorpusBound:
    """Bound of a body of JSONL, and of each of its lines: a line is read into memory."""

    def __init__(self, line_bytes: int) -> None:
        self._line_bytes = line_bytes
        self._read = self._line = 0
        self._number = 1

    def check(self, part: bytes) -> None:
        """Count the next part of the body.

        Raises:
            RequestError: 413, the body or a line has more bytes.
        """
        self._read += len(part)
        if self._read > MAX_CORPUS_BYTES:
            message = f"The body has more than {MAX_CORPUS_BYTES:,} bytes. A sample of the documents is enough."
            raise RequestError(413, message, code="request_too_large")
        for place, piece in enumerate(part.split(b"\n")):
            self._line = self._line + len(piece) if place == 0 else len(piece)
            if self._line > self._line_bytes:
                message = (
                    f"Line {self._number + place} has more than {self._line_bytes:,} bytes. Send one document per "
                    "line, cut into passages; or raise the server's bound (--max-body)."
                )
                raise RequestError(413, message, code="request_too_large")
        self._number += part.count(b"\n")


def _described(model: ServedModel, service: Serving) -> dict[str, Any]:
    manifest = model.embedder.context.manifest
    name = model.id.rpartition("@")[2]
    return {
        "object": "context",
        "name": name,
        "model": model.id,
        "of_collection": name in service.registry.collections,
        "fingerprint": manifest.fingerprint,
        "documents": corpus_size(model.embedder.context),
        "documents_seen": manifest.documents_seen,
        "sampling": manifest.sampling,
        "seed": manifest.seed,
        "created": manifest.created,
    }


def _made_by(service: Serving, model: str | None) -> Embedder:
    """Return the embedder whose weights are to make a context."""
    if model is not None:
        return service.registry.model(model).embedder
    by_weights = {each.embedder.context.identity.weights_sha256: each for each in service.registry.models()}
    if len(by_weights) > 1:
        names = ", ".join(sorted(each.id for each in by_weights.values()))
        message = f"model: expected one of {names}, found none. Name the one whose weights make the context."
        raise RequestError(400, message, code="invalid_value", param="model")
    return next(iter(by_weights.values())).embedder


def _weights(embedder: Embedder) -> ContextualEmbedder:
    own = contextual(embedder)
    if own is not None and not own.context.identity.is_plain:
        return own
    message = f"{embedder.context.identity.name} is a plain model, which reads no context. Name another model."
    raise RequestError(400, message, code="invalid_value", param="model")


def _texts(corpus: IO[bytes]) -> Iterator[str]:
    """Yield the texts of a JSONL file."""
    for number, line in enumerate(corpus, 1):
        if not line.strip():
            continue
        try:
            match json.loads(line, object_pairs_hook=unique_keys):
                case {"title": str(title), "text": str(text)}:
                    text = embedded_text(Record("", text, title))
                case {"text": str(text), **others} if others.get("title") is None:
                    pass
                case _:
                    raise CorpusError(f'Line {number}: expected {{"text": "…"}}, with a "title" of text or without.')
        except (ValueError, RecursionError) as error:
            if isinstance(error, CorpusError):
                raise
            raise CorpusError(f"Line {number}: expected JSON, could not parse it: {error}.") from error
        if len(text) > TEXT_CHARACTERS:
            raise CorpusError(f"{too_long(len(text), TEXT_CHARACTERS, where=f'Line {number}')}.")
        yield text


def stored_contexts(folder: Path) -> list[tuple[str, Path]]:
    """Return names and files of the contexts in a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    return [(path.name.removesuffix(SUFFIX), path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
