"""Run of the HTTP server in this process, until a signal stops it."""

import json
import logging
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.types import ASGIApp

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol
else:  # by httptools where that is installed, else by h11
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as HTTPProtocol

GRACE_S = 30  # seconds for requests in flight when the server stops
HEAD_S = 30.0  # for a request's line and headers
SILENT_S = 60.0  # in which nothing of a body comes that is not complete


class BoundedConnection(HTTPProtocol):
    """HTTP connection that ends if a request does not come: nobody can hold connections without sending."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_S, self._end)

    def data_received(self, data: bytes) -> None:
        """Read, and wait for the rest of a request; uvicorn closes idle connections between requests."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete:
            if self._late.cancelled():
                self._late = self.loop.call_later(HEAD_S, self._end)
            return
        self._late.cancel()
        if cycle.more_body:
            self._late = self.loop.call_later(SILENT_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """End to wait."""
        self._late.cancel()
        super().connection_lost(exc)

    def _end(self) -> None:
        if self.flow.read_paused:  # the server has not read the last of it yet
            self._late = self.loop.call_later(SILENT_S, self._end)
        else:
            self.transport.close()


class JsonFormatter(logging.Formatter):
    """Formatter of a record as one line of JSON, like those of requests."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback goes into it."""
        fields = {"level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


_LOGGING: Final[dict[str, Any]] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "cde_rag.server.uvicorn_server.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False}},
}


def run(app: ASGIApp, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in flight are answered first.

    Args:
        app: The application.
        host: Address to bind.
        port: Port; 0 for a free one, which the log names.
    """
    log, handler = logging.getLogger("cde_rag.server"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedConnection,
        access_log=False,
        log_config=_LOGGING,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    uvicorn.Server(config).run()
