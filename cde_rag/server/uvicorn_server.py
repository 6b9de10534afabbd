"""Run of the HTTP server in this process, until a signal stops it."""

import json
import logging
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

GRACE_S = 30  # seconds for requests in flight when the server stops


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
        access_log=False,
        log_config=_LOGGING,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    uvicorn.Server(config).run()
