"""A proxy between clients and a PostgreSQL server, which cuts a connection at a message."""

import contextlib
import selectors
import socket
import threading
from pathlib import Path
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit

_SIZE: Final = 1 << 16


class Proxy:
    """Listens on a socket in a folder, and counts what clients send.

    Attributes:
        address: Address of the database through the proxy.
        sent: Number of messages of clients since the last `order`.
        cut: Whether the connection was cut.
    """

    def __init__(self, postgres: str, folder: Path) -> None:
        behind = parse_qs(urlsplit(postgres).query)["host"][0]
        self._behind = str(Path(behind) / ".s.PGSQL.5432")
        self.address = postgres.replace(urlsplit(postgres).query, f"host={folder}")
        self.sent, self.cut = 0, False
        self._at, self._after, self._lock = 0, False, threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def order(self, at: int, *, after: bool) -> None:
        """Cut the connection that sends the message of this number, before or after the server has it; 0: none."""
        with self._lock:
            self._at, self._after, self.sent, self.cut = at, after, 0, False

    def close(self) -> None:
        """Stop; all clients are gone by then."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)

    def _listen(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._carry, args=(client,)))
                self._threads[-1].start()

    def _carry(self, client: socket.socket) -> None:
        with (
            client,
            socket.socket(socket.AF_UNIX) as server,
            selectors.DefaultSelector() as ready,  # select() knows no descriptor above 1023
            contextlib.suppress(OSError),
        ):
            server.connect(self._behind)
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    end = cast("socket.socket", key.fileobj)
                    data = end.recv(_SIZE)
                    if not data or (end is client and self._cuts(data, server)):
                        return
                    (server if end is client else client).sendall(data)

    def _cuts(self, data: bytes, server: socket.socket) -> bool:
        """Return True if the connection ends with this message."""
        with self._lock:
            self.sent += 1
            now = self.sent == self._at
            self.cut |= now
        if now and self._after:
            server.sendall(data)
        return now
