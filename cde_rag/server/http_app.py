"""The HTTP server as an ASGI application."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from anyio.to_thread import run_sync as in_thread
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp

from cde_rag._version import __version__
from cde_rag.server import (
    chat_routes,
    collection_routes,
    context_routes,
    embedding_routes,
    job_routes,
    judgments,
    page_routes,
    vector_store_routes,
)
from cde_rag.server.refusals import Json, add_handlers
from cde_rag.server.service import Service, Serving
from cde_rag.server.traffic import Traffic

THREADS: Final = 256  # requests that read, write, or wait for their batch at one time; others queue


def create_app(service: Service) -> ASGIApp:
    """Return the application of a service; at its shutdown it embeds what waits, and closes the collections.

    Args:
        service: What is served. One application at a time.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        await in_thread(service.close)

    app = FastAPI(
        title="cde-rag", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, strict_content_type=True
    )
    app.state.service = service
    served = (embedding_routes, vector_store_routes, chat_routes, collection_routes, context_routes, job_routes)
    for routes in (*served, judgments, page_routes):
        app.include_router(routes.router)
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/metrics", _metrics, methods=["GET"])
    app.add_api_route("/ready", _ready, methods=["GET"])
    add_handlers(app)
    options = service.options
    return Traffic(
        app,
        keys=options.keys,
        max_body_bytes=options.max_body_bytes,
        max_requests=options.max_requests,
        on_request=service.meters.request,
    )


async def _health() -> Json:
    """Answer while the process runs."""
    return Json({"status": "ok"})


async def _metrics(service: Serving) -> Response:
    """Return counts of requests, tokens and batches in Prometheus' text format."""
    return Response(service.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _ready(service: Serving) -> Json:
    """Answer 200 once the collections can be read."""
    models = await in_thread(service.registry.models)
    return Json({"status": "ready", "models": [model.id for model in models]})
