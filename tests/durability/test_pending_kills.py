"""Killed while records are written that wait for their vectors, while these are made, and while a search writes some.

Nothing is lost and nothing is mixed: a record has the vector of its text, or none; and the same call comes to the end.
"""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from disk import FAIL, KILL_AFTER, KILL_BEFORE, KILL_HALF, Lives
from forks import Order
from lives import BY_NAME, SPACES, WAITING, expected_records, nothing, opened, space_after, store_at, stub
from own_postgres import OwnPostgres
from sound import ALL

from cde_rag.records import Record
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.store import Store

NO_SPACE = 28  # ENOSPC
WAIT_S = 120


def check_true(store: Store) -> dict[str, Record]:
    """Every vector is that of its text, in one space; every count is right. Returns the records."""
    manifest, rows = store.manifest(), list(store.scroll(page=ALL))
    embedder = next(stub(space) for space in range(SPACES) if stub(space).fingerprint == manifest.fingerprint)
    assert store.verify() == []
    made = [row.record for row in rows if row.digest]
    assert store.count() == len(rows)
    assert store.count_pending() == len(rows) - len(made)
    assert [row.record.id for row in store.pending(limit=ALL)] == [row.record.id for row in rows if not row.digest]
    vectors = store.vectors([record.id for record in made], fingerprint=manifest.fingerprint)
    expected = embedder.embed_queries([record.text for record in made])
    np.testing.assert_array_equal(vectors, expected.reshape(vectors.shape))
    if made:
        (hits,) = store.search(vectors[:1], ALL, fingerprint=manifest.fingerprint)
        assert {hit.id for hit in hits} == {record.id for record in made}
    return {row.record.id: row.record for row in rows}


def check_between(store: Store, number: int) -> None:
    """Each record is as before the operation or as after it."""
    before, after = expected_records(WAITING[:number]), expected_records(WAITING[: number + 1])
    found = check_true(store) if store.exists() else {}
    assert found.keys() <= before.keys() | after.keys()
    for id_ in before.keys() | after.keys():
        assert found.get(id_) in (before.get(id_), after.get(id_))


def check_ends(store: Store, number: int) -> None:
    """The same call, made again, does what it is for."""
    WAITING[number].do(store, nothing)
    found, operation = check_true(store), WAITING[number]
    assert found == expected_records(WAITING[: number + 1])
    assert store.manifest().fingerprint == stub(space_after(WAITING[: number + 1])).fingerprint
    if not operation.later and (operation.fills or operation.moves_to):
        assert store.count_pending() == 0


def test_killed_at_any_step_nothing_is_lost_or_stale_and_it_goes_on(
    kind: str, lives: Lives, scratch: Path, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    told = lives.order(Order(kind, str(scratch / "undisturbed"), [operation.name for operation in WAITING]))
    assert (told.code, told.error) == (0, None)
    dice, kills, draws, left = random.Random(seed), 0, 0, times(6, 200)
    while kills < left:
        folder = scratch / f"{kind} {draws}"
        for number, operation in enumerate(WAITING):
            at, how = dice.randint(1, told.steps[number]), dice.choice([KILL_BEFORE, KILL_HALF, KILL_AFTER])
            killed = lives.order(Order(kind, str(folder), [operation.name], do=how, at=at)).killed
            store = store_at(kind, folder)
            try:
                check_between(store, number)
                check_ends(store, number)
            except BaseException as error:
                error.add_note(f"{kind}: {operation.name}, killed at step {at} in way {how}, seed {seed}")
                raise
            store.close()
            kills += killed
        draws += 1
        shutil.rmtree(folder)
        assert draws < 10 + left
    tell(f"{kills} kills survived in {draws} lives")


@pytest.mark.parametrize("kind", ["hnsw"])  # a folder of Edge is not even opened on a full disk
def test_a_search_answers_where_the_disk_is_full(kind: str, lives: Lives, scratch: Path) -> None:
    """Vectors that a search makes stay in memory then."""
    assert lives.order(Order(kind, str(scratch / "papers"), ["index later"])).error is None
    told = lives.order(Order(kind, str(scratch / "papers"), ["ask"], do=FAIL, at=1, error=NO_SPACE, lasting=True))
    assert (told.code, told.error) == (0, None)
    store = store_at(kind, scratch / "papers")
    check_between(store, 1)
    store.close()


def led(address: str, name: str, operation: str) -> None:
    BY_NAME[operation].do(PgVectorStore(address, name), nothing)


@pytest.mark.long
def test_a_client_of_postgres_killed_at_any_time_loses_nothing(
    own_postgres: OwnPostgres, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    context, dice = multiprocessing.get_context("forkserver"), random.Random(seed)
    context.set_forkserver_preload(["lives", "test_pending_kills"])
    hit, took = 0, 1.0
    for draw in range(times(1, 34)):
        for number, operation in enumerate(WAITING):
            process = context.Process(target=led, args=(own_postgres.address, f"life_{draw}", operation.name))
            began = time.monotonic()
            process.start()
            process.join(dice.uniform(0, took))
            hit += process.is_alive()
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
            process.join(WAIT_S)
            took = max(0.1, 0.5 * took + 0.5 * (time.monotonic() - began))
            store = PgVectorStore(own_postgres.address, f"life_{draw}")
            check_between(store, number)
            check_ends(store, number)
            store.close()
    tell(f"{hit} kills survived")


def filled(kind: str, folder: str, queries: list[str]) -> None:
    collection = opened(store_at(kind, Path(folder)))
    for query in queries:
        collection.search(query)
        collection.embed_pending(limit=3)
    collection.embed_pending()
    collection.close()


def test_two_processes_fill_and_search_at_once(scratch: Path) -> None:
    WAITING[0].do(store_at("hnsw", scratch / "papers"), nothing)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lives", "test_pending_kills"])
    asked = [[f"first text of {number}" for number in range(start, 44, 2)] for start in range(2)]
    some = [context.Process(target=filled, args=("hnsw", str(scratch / "papers"), each)) for each in asked]
    for process in some:
        process.start()
    for process in some:
        process.join(WAIT_S)
        assert process.exitcode == 0
    store = store_at("hnsw", scratch / "papers")
    assert check_true(store) == expected_records(WAITING[:1])
    assert store.count_pending() == 0
    store.close()
