"""A PgBouncer of the tests' own, in front of their PostgreSQL."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

PORT: Final = 6432  # in the name of the socket
START_S: Final = 60  # on a busy machine


@contextlib.contextmanager
def pooler(postgres: str, mode: str, *, sessions: int) -> Iterator[str]:
    """Run PgBouncer on a socket in a folder of its own; yields the address of the database through it.

    In transaction mode every transaction gets the next of `sessions` sessions of the server, in each of which another
    client left a `search_path`, parameters of pgvector and prepared statements.

    Args:
        postgres: Address of the database on a socket.
        mode: "transaction" or "session".
        sessions: Number of sessions of the server.
    """
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("there is no pgbouncer (on Debian and Ubuntu: apt install pgbouncer)")
    address = urlsplit(postgres)
    with tempfile.TemporaryDirectory(prefix="pooler") as folder:
        settings = {
            "listen_addr": "",
            "listen_port": PORT,
            "unix_socket_dir": folder,
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": sessions,
            "max_client_conn": 1000,
            "server_round_robin": 1,
            "server_login_retry": 1,  # seconds until a server that was gone is tried again
        }
        server = f"{address.path.removeprefix('/')} = host={parse_qs(address.query)['host'][0]} user=postgres"
        lines = ["[databases]", server, "[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        Path(folder, "pooler.ini").write_text("\n".join(lines))
        command = [program, "-q", f"{folder}/pooler.ini"]
        if os.geteuid() == 0:  # as which it does not run
            shutil.chown(folder, "pgserver")
            Path(folder).chmod(0o755)
            command = ["setpriv", "--reuid", "pgserver", "--clear-groups", *command]
        through = postgres.replace(address.query, f"host={folder}&port={PORT}")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                wait_for(Path(folder, f".s.PGSQL.{PORT}"), process)
                if mode == "transaction":
                    leave_behind(through, sessions)
                yield through
            finally:
                process.terminate()


def wait_for(address: Path, process: "subprocess.Popen[bytes]") -> None:
    """Return when the pooler accepts connections: the file of its socket is there a moment before it listens."""
    deadline = time.monotonic() + START_S
    while not accepts(address):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"pgbouncer did not start: {process.communicate()[0].decode()}")
        time.sleep(0.02)


def accepts(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(address)) == 0


def leave_behind(through: str, sessions: int) -> None:
    """Change every session of the server, as a client of a transaction pooler should not, and some do."""
    with contextlib.ExitStack() as stack:
        for _ in range(sessions):  # at once, so that each is in a session of its own
            client = stack.enter_context(psycopg.connect(through, prepare_threshold=None))
            client.execute("SET search_path = pg_temp; SET hnsw.ef_search = 1")
            for number in range(5):  # by the names that psycopg gives
                client.execute(f"PREPARE _pg3_{number} AS SELECT 'another client''s'".encode())
