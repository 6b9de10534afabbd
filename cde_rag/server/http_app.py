"""The HTTP server as an ASGI application."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from anyio.to_thread import run_sync as in_thread
from fastapi import Depends, FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from cde_rag._version import __version__
from cde_rag.errors import CDEError
from cde_rag.server import (
    chat_routes,
    collection_routes,
    context_routes,
    document_routes,
    embedding_routes,
    job_routes,
    judgments,
    page_routes,
    rerank_routes,
    vector_store_routes,
)
from cde_rag.server.error_responses import Json, RequestError, add_handlers
from cde_rag.server.middleware import RequestMiddleware
from cde_rag.server.service import Service, Serving, check_is_no_tenants, check_parameters

_log = logging.getLogger("cde_rag.server")
THREADS: Final = 256  # requests that read, write, or wait for their batch at one time; others queue


def create_app(service: Service, tenants: Mapping[str, Service] | None = None) -> ASGIApp:
    """Return the application of a service; its shutdown embeds the queued texts, and closes the collections.

    Args:
        service: Collections that are served to all, and the options of the server. One application at a time.
        tenants: Collections of each tenant, by name. A request with a tenant's key reaches these alone.
    """
    tenants = tenants or {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        for each in (*tenants.values(), service):
            await in_thread(each.close)

    app = FastAPI(
        title="cde-rag", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, strict_content_type=True
    )
    app.state.service, app.state.tenants = service, tenants
    served = (embedding_routes, rerank_routes, vector_store_routes, chat_routes, collection_routes, context_routes)
    for routes in (*served, document_routes, job_routes, judgments, page_routes):
        app.include_router(routes.router, dependencies=[] if routes is page_routes else [Depends(check_parameters)])
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/metrics", _metrics, methods=["GET"], dependencies=[Depends(check_is_no_tenants)])
    app.add_api_route("/ready", _ready, methods=["GET"])
    add_handlers(app)
    options = service.options
    return RequestMiddleware(
        app,
        keys=options.keys,
        max_body_bytes=options.max_body_bytes,
        max_requests=options.max_requests,
        on_request=service.metrics.request,
    )


async def _health() -> Json:
    """Answer while the process runs."""
    return Json({"status": "ok"})


async def _metrics(service: Serving) -> Response:
    """Return counts of requests, tokens and batches in Prometheus' text format."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _ready(request: Request, service: Serving) -> Json:
    """Answer 200 if all collections can be read, those of tenants too; without their names, since it needs no key.

    `pending` is the number of records that wait for their vectors.
    """
    tenants: Mapping[str, Service] = request.app.state.tenants

    def read() -> tuple[int, int]:
        for tenant in tenants.values():
            tenant.registry.models()
        own = service.registry
        return len(own.models()), sum(served.collection.pending for served in own.collections.values())

    try:
        models, pending = await in_thread(read)
    except CDEError as error:  # its message can name a folder or a tenant
        _log.error("not ready", exc_info=error)
        message = "A collection cannot be read; the server's log has the reason."
        raise RequestError(503, message, code="not_ready") from error
    return Json({"status": "ready", "models": models, "pending": pending})
