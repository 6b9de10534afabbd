"""Run of the HTTP server in this process, until a signal stops it."""

import logging

import uvicorn
from starlette.types import ASGIApp

GRACE_S = 30  # seconds for requests in flight when the server stops


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
        app, host=host, port=port, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S
    )
    uvicorn.Server(config).run()
