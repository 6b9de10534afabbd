"""ASGI middleware: keys, limits, counts and logs around every request. Texts are in none of them."""

import json
import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cde_rag._telemetry import operation
from cde_rag.server import page_routes
from cde_rag.server.access import ApiKeys, check_host, check_origin
from cde_rag.server.error_responses import RequestError, as_request_error, error_response
from cde_rag.server.service import TENANT

OPEN_PATHS: Final = frozenset(  # they need no key
    {"/", "/page.css", *(f"/{script}" for script in page_routes.SCRIPTS), "/health", "/ready"}
)
STREAMED: Final = "/v1/contexts"  # its body is read in pieces, and has a bound of its own
_log = logging.getLogger("cde_rag.server")

OnRequest = Callable[[str, int, float], None]
"""Called after each request with its route, its status and its seconds."""


class RequestMiddleware:
    """Middleware (ASGI) around all routes.

    Args:
        app: The routes.
        keys: API keys.
        max_body_bytes: Bytes of a request's body.
        max_requests: Requests that are answered at one time; more are refused.
        on_request: Called after each request.
    """

    def __init__(
        self, app: ASGIApp, *, keys: ApiKeys, max_body_bytes: int, max_requests: int, on_request: OnRequest
    ) -> None:
        self.app = app
        self.keys = keys
        self.max_body_bytes = max_body_bytes
        self.max_requests = max_requests
        self.on_request = on_request
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 499  # the client left before there was an answer
        is_answered, is_head = False, scope["method"] == "HEAD"
        if is_head:  # answered as GET, without the body
            scope = {**scope, "method": "GET"}

        async def sending(message: Message) -> None:
            nonlocal status, is_answered
            if message["type"] == "http.response.start":
                status = message["status"]
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)
            is_answered = message["type"] == "http.response.body" and not message.get("more_body")

        self._running += 1
        with operation("cde_rag.request", {"http.request.method": scope["method"]}) as note:
            try:
                self._check(scope)
                await self.app(scope, self._bounded(scope, receive), sending)
            except RequestError as error:
                await error_response(error)(scope, receive, sending)
            except Exception as error:
                if status == 499:
                    await error_response(as_request_error(error))(scope, receive, sending)
                elif not is_answered:  # half of the answer has been sent; the server cuts the connection
                    raise
            finally:
                self._running -= 1
                note({"http.route": _route(scope), "http.response.status_code": status})
                self._note(scope, status, time.monotonic() - started)

    def _check(self, scope: Scope) -> None:
        """Check key, host, encoding, size and the number of requests."""
        headers = Headers(scope=scope)
        check_host(headers.get("host", ""), self.keys)
        check_origin(headers.get("origin", ""), headers.get("host", ""))
        if scope["path"] not in OPEN_PATHS:
            scope[TENANT] = self.keys.check(headers.get("authorization", ""))
            if self._running > self.max_requests:
                message = f"{self.max_requests} requests are being answered. Send this one again in a second."
                raise RequestError(429, message, code="too_many_requests", headers={"Retry-After": "1"})
        if (encoding := headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            message = f"Expected a body without Content-Encoding, found {encoding!r:.80}. Send it uncompressed."
            accepted = {"Accept-Encoding": "identity"}
            raise RequestError(415, message, code="unsupported_content_encoding", headers=accepted)
        length = headers.get("content-length", "0")
        if scope["path"] != STREAMED and length.isdecimal() and int(length) > self.max_body_bytes:
            raise RequestError(413, self._too_large(), code="request_too_large")

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that ends a body beyond the bound, also one without Content-Length."""
        if scope["path"] == STREAMED:
            return receive
        read = 0

        async def receiving() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_body_bytes:
                raise HTTPException(413, self._too_large())
            return message

        return receiving

    def _too_large(self) -> str:
        return f"The body has more than {self.max_body_bytes:,} bytes. Send less per request."

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route(scope)
        self.on_request(route, status, seconds)
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        record = {
            "time": now,
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
        }
        _log.info(json.dumps(record))


def _route(scope: Scope) -> str:
    """Return the pattern of a request's route; never its path, which may hold ids."""
    return str(getattr(scope.get("route"), "path", "other"))
