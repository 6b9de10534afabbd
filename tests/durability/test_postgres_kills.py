"""PostgreSQL: clients, sessions of the server, and the server itself are killed at any time, also behind a pooler."""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lives import LIFE, nothing
from own_postgres import OwnPostgres
from pooler import pooler
from sound import check_done, check_finishes

from cde_rag.errors import StoreError
from cde_rag.indexing.upsert import Progress
from cde_rag.stores.postgres import PgVectorStore

KILLS = ("client", "sessions", "backend", "server")
WAIT_S = 120


def led(address: str, name: str, number: int, file: str) -> None:
    """Does one operation of the life in a process of its own, which writes its progress into a file."""
    progress = Path(file)

    def note(found: Progress) -> None:
        progress.write_text(str(found.done))

    progress.write_text("0")
    with contextlib.suppress(StoreError):  # of a server that was killed
        LIFE[number].do(PgVectorStore(address, name), note)


@pytest.mark.parametrize("way", ["direct", pytest.param("transaction", marks=pytest.mark.long)])
def test_killed_at_any_time_it_is_in_one_generation_and_goes_on(
    own_postgres: OwnPostgres,
    scratch: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
    way: str,
) -> None:
    """Nothing that was told is lost, no call is done in part, and the same call made again comes to its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lives", "test_postgres_kills"])
    dice, kills, hit = random.Random(seed), times(4, 420), dict.fromkeys(KILLS, 0)
    with contextlib.ExitStack() as stack:
        address = own_postgres.address
        if way == "transaction":
            address = stack.enter_context(pooler(address, way, sessions=4))
        states: list[dict[str, Any] | None] = [None]
        seconds: list[float] = []
        for number in range(len(LIFE)):
            began = time.monotonic()
            LIFE[number].do(PgVectorStore(address, "whole"), nothing)
            seconds.append(time.monotonic() - began)
            states.append(check_done(PgVectorStore(own_postgres.address, "whole"), len(states)))
        for draw in range(kills):
            number, name = draw % len(LIFE), f"killed_{draw // len(LIFE)}"
            kind, file = KILLS[draw % len(KILLS)] if kills < 100 else dice.choice(KILLS), scratch / "progress"
            file.unlink(missing_ok=True)
            process = context.Process(target=led, args=(address, name, number, str(file)))
            process.start()
            while not file.exists() and process.is_alive():
                time.sleep(0.001)
            time.sleep(dice.uniform(0, 1.5 * seconds[number]))
            hit[kind] += process.is_alive()
            kill(kind, process.pid or 0, own_postgres)
            process.join(WAIT_S)
            assert not process.is_alive()
            try:
                check_finishes(store_after(own_postgres.address, name), number, states, int(file.read_text() or 0))
            except BaseException as error:
                if hasattr(error, "add_note"):
                    error.add_note(f"{LIFE[number].name}, {kind} killed, draw {draw}, seed {seed}, {way}")
                raise
    tell(f"{kills} kills, while the call ran: {', '.join(f'{many} of a {kind}' for kind, many in hit.items())}")


def kill(kind: str, client: int, server: OwnPostgres) -> None:
    """Kill what `kind` names, and have a server that runs again."""
    if kind == "client":
        with contextlib.suppress(ProcessLookupError):
            os.kill(client, signal.SIGKILL)
    elif kind == "server":
        server.stop(signal.SIGQUIT)
        server.start()
    else:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(server.address) as connection:
            others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
            if kind == "sessions":
                connection.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
            elif found := connection.execute(f"SELECT pid {others} LIMIT 1".encode()).fetchone():
                with contextlib.suppress(ProcessLookupError):  # of a session that ended meanwhile
                    os.kill(found[0], signal.SIGKILL)  # upon which the server ends all sessions and recovers


def store_after(address: str, name: str) -> PgVectorStore:
    """Return the store once the server answers."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(address).close()
            break
        time.sleep(0.05)
    return PgVectorStore(address, name)
