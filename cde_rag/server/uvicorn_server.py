"""Run of the HTTP server in this process, until a signal stops it."""

import contextlib
import errno
import json
import logging
import os
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.types import ASGIApp

from cde_rag.errors import CDEError

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol
else:  # by httptools where that is installed, else by h11
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as HTTPProtocol

GRACE_S = 30  # seconds for requests in flight when the server stops
HEAD_S = 30.0  # for a request's line and headers
SILENT_S = 60.0  # in which nothing of a body comes that is not complete
BACKLOG = 2048  # connections that wait while the models are loaded, and later
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # of addresses that the machine has not
_EVERY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # by the address that a browser of this machine opens


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


class TerminalFormatter(logging.Formatter):
    """Formatter of a record as a line for people: that of a request has its method, route, status and time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows it."""
        line = super().format(record)
        with contextlib.suppress(ValueError, TypeError, KeyError):
            fields: Any = json.loads(line)
            return f"{fields['method']} {fields['route']}  {fields['status']}  {fields['ms']} ms"
        return line


def _logging(*, on_terminal: bool) -> dict[str, Any]:
    """Return the logging of uvicorn: JSON, or on a terminal its warnings as text."""
    formatter = "TerminalFormatter" if on_terminal else "JsonFormatter"
    level = "WARNING" if on_terminal else "INFO"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": f"cde_rag.server.uvicorn_server.{formatter}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "loggers": {"uvicorn": {"handlers": ["stderr"], "level": level, "propagate": False}},
    }


class BoundSockets:
    """Sockets that listen at an address, so that a port that is taken is found before models are loaded.

    They are closed with this object.

    Args:
        host: Address or name.
        port: Port; 0 for a free one.

    Attributes:
        host: As given.
        port: The port, also where a free one was taken.
        sockets: One for each address of the name.

    Raises:
        CDEError: The address is not of this machine, or the port is taken or not permitted.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.sockets: list[socket.socket] = []
        absent: OSError | None = None
        self.close = weakref.finalize(self, _close, self.sockets)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, (name, _, *rest) in dict.fromkeys(found):
                try:
                    self.sockets.append(_listening(family, kind, protocol, (name, self.port, *rest)))
                except OSError as error:  # noqa: PERF203
                    if error.errno not in _ABSENT:
                        raise
                    absent = error  # such as ::1, a name's second address, where the machine has no IPv6
                else:
                    self.port = self.sockets[0].getsockname()[1]  # of all, also where a free one was taken
            if absent is not None and not self.sockets:
                raise absent
        except OSError as error:
            self.close()
            reason = f"Port {port} of {host} cannot be bound: {error.strerror}"
            raise CDEError(f"{reason}. Name another --host or --port; --port 0 takes a free one.") from error


def _listening(family: int, kind: int, protocol: int, address: "tuple[str | int, ...]") -> socket.socket:
    """Return a socket that listens.

    Raises:
        OSError: The address is not of this machine, or the port is taken or not permitted.
    """
    made = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere this would let two programs have one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


class _Server(uvicorn.Server):
    """Server that prints its address once it answers.

    Args:
        config: Of uvicorn.
        url: The address.
        on_terminal: True if it is printed for a person, False if it is logged.
    """

    def __init__(self, config: uvicorn.Config, url: str, *, on_terminal: bool) -> None:
        super().__init__(config)
        self._url = url
        self._on_terminal = on_terminal

    async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self._on_terminal:
            sys.stderr.write(f"Open {self._url} (Ctrl-C stops)\n")
        else:
            logging.getLogger("uvicorn.error").info("Uvicorn running on %s (Press CTRL+C to quit)", self._url)


def run(app: ASGIApp, bound: BoundSockets) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in flight are answered first.

    Args:
        app: The application.
        bound: Sockets that listen already.
    """
    on_terminal = sys.stderr.isatty()
    log, handler = logging.getLogger("cde_rag.server"), logging.StreamHandler()
    handler.setFormatter(TerminalFormatter() if on_terminal else logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        access_log=False,
        log_config=_logging(on_terminal=on_terminal),
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    shown = _EVERY.get(bound.host, bound.host) if on_terminal else bound.host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound.port}"
    _Server(config, url, on_terminal=on_terminal).run(bound.sockets)
