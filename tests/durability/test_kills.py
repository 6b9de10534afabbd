"""Killed at any step that changes the disk, a store is wholly in one generation, and the same call finishes the work.

The step is drawn by its number among those that the operation takes, so that every kill is inside the operation.
"""

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disk import KILL_AFTER, KILL_BEFORE, KILL_HALF, Lives
from forks import Order
from lives import LIFE, nothing, store_at
from qdrant_client import QdrantClient
from sound import check_done, check_finishes
from stores.mortal import Killed, Mortal

from cde_rag.stores.qdrant import QdrantStore


def test_killed_at_any_step_it_is_in_one_generation_and_goes_on(
    kind: str,
    lives: Lives,
    scratch: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    """Life after life, each in one folder, every operation of which is killed once and then finished."""
    states: list[dict[str, Any] | None] = [None]
    steps: list[int] = []
    for operation in LIFE:
        told = lives.order(Order(kind, str(scratch / "undisturbed"), [operation.name]))
        assert (told.code, told.error) == (0, None)
        steps += told.steps
        store = store_at(kind, scratch / "undisturbed")
        states.append(check_done(store, len(states)))
        store.close()
    dice, kills, outside = random.Random(seed), times(10, 200), 0
    killed = dict.fromkeys((operation.name for operation in LIFE), 0)
    for draw in itertools.count():
        number = draw % len(LIFE)
        folder = scratch / f"{kind} {draw // len(LIFE)}"
        at, how = dice.randint(1, steps[number]), dice.choice([KILL_BEFORE, KILL_HALF, KILL_AFTER])
        told = lives.order(Order(kind, str(folder), [LIFE[number].name], do=how, at=at))
        store = store_at(kind, folder)
        try:
            check_finishes(store, number, states, told.progress)
        except BaseException as error:
            where = f"{LIFE[number].name}, killed at step {at} of {steps[number]} in way {how}, seed {seed}"
            error.add_note(f"{kind}: {where}, lives so far {draw // len(LIFE)}")
            raise
        store.close()
        if told.killed:
            killed[LIFE[number].name] += 1
        else:  # threads of the engine take more steps at one time than at another
            outside += 1
            assert outside <= 10 + kills // 2
        if sum(killed.values()) == kills:
            break
        if number == len(LIFE) - 1:
            shutil.rmtree(folder)
    each = ", ".join(f"{name} {count}" for name, count in killed.items())
    tell(f"{kills} kills survived ({each}) of {sum(steps)} steps; {outside} came too late and do not count")


def test_qdrant_killed_between_requests_is_in_one_generation_and_goes_on(
    seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """The client's process is killed before a request or just after it; the server lives on, here in memory."""
    states: list[dict[str, Any] | None] = [None]
    requests: list[int] = []
    client = QdrantClient(":memory:")
    mortal = Mortal(client, after=True)
    for operation in LIFE:
        operation.do(QdrantStore(client, "papers"), nothing)
        requests.append(-mortal.left)
        mortal.left = 0
        states.append(check_done(QdrantStore(client, "papers"), len(states)))
    dice, kills = random.Random(seed), times(10, 200)
    for draw in range(kills):
        number = draw % len(LIFE)
        client = QdrantClient(":memory:") if number == 0 else client
        mortal = Mortal(client, after=dice.random() < 0.5)
        mortal.left = dice.randint(1, requests[number])
        with pytest.raises(Killed):
            LIFE[number].do(QdrantStore(client, "papers"), nothing)
        mortal.left = 0
        check_finishes(QdrantStore(client, "papers"), number, states, 0)
    tell(f"{kills} kills survived, at one of {sum(requests)} requests each")
