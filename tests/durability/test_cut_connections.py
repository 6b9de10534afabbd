"""PostgreSQL: connections that are cut at any message, runs that are suspended, deadlocks, and many writers."""

import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from lives import LIFE, SPACES, nothing, opened, record, stub
from proxy import Proxy
from sound import check_done, check_finishes, check_sound
from suspended import Suspended, suspended

from cde_rag.collection.collection import Collection
from cde_rag.errors import StoreError
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.postgres.engine import PgSession

WAIT_S = 600  # a schedule that does not end by then is stuck


@pytest.fixture
def proxy(postgres: str) -> Iterator[Proxy]:
    if "host=" not in urlsplit(postgres).query:
        pytest.skip("the proxy is for a server with a socket in a folder")
    with tempfile.TemporaryDirectory() as folder:
        made = Proxy(postgres, Path(folder))
        yield made
        made.close()


def test_cut_at_any_message_it_is_in_one_generation_and_goes_on(
    postgres: str, proxy: Proxy, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """The server sees a client die, and the client a server: before a message arrives, or before its answer does."""
    states: list[dict[str, Any] | None] = [None]
    messages: list[int] = []
    store = PgVectorStore(proxy.address, "cut_0")
    for operation in LIFE:
        proxy.order(0, after=False)
        operation.do(store, nothing)
        messages.append(proxy.sent)
        states.append(check_done(PgVectorStore(postgres, "cut_0"), len(states)))
    store.close()
    dice, cuts, told = random.Random(seed), times(14, 400), list[str]()
    for draw in range(cuts):
        number = draw % len(LIFE)
        name = f"cut_{1 + draw // len(LIFE)}"
        at, after, done = dice.randint(1, messages[number]), dice.random() < 0.5, [0]
        store = PgVectorStore(proxy.address, name)
        proxy.order(at, after=after)
        try:
            LIFE[number].do(store, lambda progress, done=done: done.append(progress.done))
            # else between two calls, where the pool replaces a connection, or too late
        except StoreError as error:
            told.append(str(error))
        proxy.order(0, after=False)
        store.close()
        try:
            check_finishes(PgVectorStore(postgres, name), number, states, done[-1])
        except BaseException as error:
            error.add_note(f"{LIFE[number].name}, cut at {at} of {messages[number]}, after: {after}, seed {seed}")
            raise
    assert told
    assert [message for message in told if "Every call may be repeated" not in message] == []
    tell(f"{cuts} connections cut, at one of {sum(messages)} messages each; {len(told)} calls ended with an error")


# Runs


def lose_leases(postgres: str) -> None:
    """End the sessions of all leases, as a server that is restarted does, and wait until they are gone."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory'"
        ).fetchall()
        assert ended == [(True,)]


def test_a_run_that_lost_its_lease_changes_nothing_more(
    postgres: str, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """Suspended at each of its transactions in turn; meanwhile another run moves the collection, and users write."""
    runs = sum(check_lost_lease(postgres, f"lost_{other}", other) for other in (2, 1)[: times(1, 2)])
    tell(f"{runs} runs suspended that lost the lease meanwhile; each ended and changed nothing")


def check_lost_lease(postgres: str, name: str, other: int) -> int:
    """The other run moves the collection to this space; 1 is that of the suspended run. Returns the number of runs."""
    store = PgVectorStore(postgres, name)
    kept = {one.id: one for one in map(record, range(44))}
    Collection.create(store, stub(0)).add_records(kept.values())
    until, error = 0, ""
    for until in itertools.count(1):

        def meanwhile(until: int = until) -> None:
            lose_leases(postgres)
            opened(store).recontextualize(embedder=stub(other))
            opened(store).add_records([kept.setdefault(f"d{until}00", record(100 * until))])

        run = Suspended(postgres, name, until)
        error = suspended(run, lambda one: one.recontextualize(embedder=stub(1)), meanwhile)
        if not run.suspended:
            break
        expected = "another run took it" if until > 1 else "the connection that held the lease was lost"
        assert expected in error, until  # the first transaction notes the lease
        rows, space = check_sound(store)
        assert space == other
        assert {row.record.id: row.record for row in rows} == kept
        opened(store).recontextualize(embedder=stub(0))
    assert (until, error) > (4, "")
    assert check_sound(store)[1] == 1
    return until - 1


def test_a_run_that_is_suspended_keeps_its_lease(postgres: str) -> None:
    store = PgVectorStore(postgres, "held")
    Collection.create(store, stub(0)).add_records(map(record, range(20)))
    told = list[str]()

    def meanwhile() -> None:
        for call in (lambda: opened(store).recontextualize(embedder=stub(2)), opened(store).rollback):
            with pytest.raises(StoreError) as raised:
                call()
            told.append(str(raised.value))
        opened(store).add_records([record(50)])

    assert suspended(Suspended(postgres, "held", 2), lambda one: one.recontextualize(embedder=stub(1)), meanwhile) == ""
    assert "another run holds the lease" in told[0]
    rows, space = check_sound(store)
    assert (len(rows), space) == (21, 1)
    for number in range(4):  # one after the other without a pause: a lease that ended is free
        opened(store).recontextualize(embedder=stub(number % SPACES))


# Transactions that the server rolls back


def test_a_deadlock_is_tried_again(postgres: str) -> None:
    """Another session takes a record's row, we the manifest's, and each waits for the other's: ours is ended."""
    store = PgVectorStore(postgres, "deadlock")
    Collection.create(store, stub(0)).add_records(map(record, range(4)))
    with psycopg.connect(postgres) as theirs, psycopg.connect(postgres, autocommit=True) as watching:
        theirs.execute("SET deadlock_timeout = '1h'; SET search_path = deadlock")
        theirs.commit()
        theirs.execute("SELECT FROM records FOR UPDATE")
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        (before,) = watching.execute(deadlocks).fetchone() or (0,)
        changed = [record(0, "another"), record(1)]
        adding = threading.Thread(target=lambda: opened(store).add_records(changed))
        adding.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'DELETE FROM .*records'"
        )
        assert reached(lambda: watching.execute(waiting).fetchone() == (1,))
        theirs.execute("SELECT FROM manifest FOR UPDATE")  # answered once our transaction was rolled back
        theirs.commit()
        adding.join(WAIT_S)
        assert not adding.is_alive()
        # the server counts a session's deadlock up to ten seconds later, so that one of an earlier test may come too
        assert reached(lambda: (watching.execute(deadlocks).fetchone() or (0,))[0] > before)
    rows, _ = check_sound(store)
    assert [row.record.text for row in rows] == ["another text of 0", *(f"first text of {n}" for n in (1, 2, 3))]


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_serialization_failure_is_tried_again(postgres: str, state: str) -> None:
    """Retries are bounded; then a sentence."""
    store = PgVectorStore(postgres, f"again_{state.lower()}")
    store.create(dim=4, fingerprint="a1" * 32, context=b"", settings={})
    for failures, outcome in ((1, "done"), (4, "done"), (5, "other processes were quicker")):
        tries = list[int]()

        def work(session: PgSession, tries: list[int] = tries, failures: int = failures) -> str:
            tables = session.tables
            tries.append(len(tries))
            tables.run(f"UPDATE {tables.names.manifest} SET texts = texts + 1")
            if len(tries) <= failures:
                tables.run(f"DO $$BEGIN RAISE SQLSTATE '{state}'; END$$")
            return "done"

        try:
            found = store._postgres.write(work)
        except StoreError as error:
            found = str(error)
        assert outcome in found
        assert len(tries) == min(failures + 1, 5)
    (texts,) = store._postgres.database.read(lambda tables: tables.rows(f"SELECT texts FROM {tables.names.manifest}"))
    assert texts == (2,)  # of five and five transactions, two were committed


# Writers


@pytest.mark.long
def test_eight_processes_write_at_once(
    postgres: str, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """Records of their own, and records that all of them replace again and again; nothing that was told is lost."""
    from multiprocessing import get_context

    store = PgVectorStore(postgres, "eight")
    Collection.create(store, stub(0))
    rounds, context = times(6, 200), get_context("spawn")
    writers = [context.Process(target=_write, args=(postgres, number, rounds)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WAIT_S)
    assert [writer.exitcode for writer in writers] == [0] * 8
    rows, _ = check_sound(store)
    texts = {row.record.id: row.record.text for row in rows}
    own = {f"d{1000 * (number + 1) + round_}" for number in range(8) for round_ in range(rounds)}
    assert set(texts) == own | {"d0", "d1", "d2"}
    assert len({texts[f"d{number}"].split()[0] for number in range(3)}) == 1  # the three of one writer's last call
    assert store.manifest().generation == 1
    tell(f"{8 * rounds} calls of eight processes, three records in all of them; nothing lost, no call mixed")


def _write(postgres: str, number: int, rounds: int) -> None:
    collection = Collection(PgVectorStore(postgres, "eight"), stub(0))
    for round_ in range(rounds):
        shared = [record(place, f"writer{number}.{round_}") for place in range(3)]
        collection.add_records([record(1000 * (number + 1) + round_), *shared])
        collection.delete(["unknown"])


def reached(there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if there():
            return True
        time.sleep(0.02)
    return False
