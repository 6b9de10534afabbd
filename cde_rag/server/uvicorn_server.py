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
HEAD_S = 30.0  # for a request's line and headers; a connection that sends none is closed


class BoundedConnection(HTTPProtocol):
    """HTTP connection whose requests begin in time: others cannot hold connections without an end."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Read, and wait for the rest of a head that has begun; uvicorn closes idle connections between requests."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        waits = cycle is None or cycle.response_complete
        if not waits:
            self._late.cancel()
        elif self._late.cancelled():
            self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """End to wait."""
        self._late.cancel()
        super().connection_lost(exc)


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
