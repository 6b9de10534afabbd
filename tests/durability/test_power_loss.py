"""Wherever power is lost, what was said to be done is there, and the store opens in one state and goes on.

One life is led on a disk that takes notes. Of every prefix of what was done there are many states that a disk may be
left in (see `power.py`); the store is opened in them.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disk import Lives
from forks import Order
from lives import LIFE, store_at
from power import VARIANTS, Disk, Event, events
from sound import answers, check_done, check_finishes, check_sound, check_there


def acknowledged(done: list[Event]) -> tuple[int, int]:
    """How many operations ended, and what the one after them last said to be done."""
    marks = [event.data.decode() for event in done if event.kind == "!"]
    names = [operation.name for operation in LIFE]
    ended = sum(mark in names for mark in marks)
    _, _, progress = marks[-1].rpartition(" ") if marks and marks[-1] not in names else ("", "", "0")
    return ended, int(progress)


def test_a_loss_of_power_leaves_what_was_said_to_be_done(
    embedded: str,
    lives: Lives,
    scratch: Path,
    tmp_path: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    states: list[dict[str, Any] | None] = [None]
    for operation in LIFE:
        assert lives.order(Order(embedded, str(scratch / "states" / "papers"), [operation.name])).error is None
        store = store_at(embedded, scratch / "states" / "papers")
        states.append(check_done(store, len(states)))
        store.close()
    watched = scratch / "watched"
    watched.mkdir()
    order = Order(embedded, str(watched / "papers"), [one.name for one in LIFE], journal=str(tmp_path / "journal"))
    assert lives.order(order).error is None
    done = list(events(tmp_path / "journal"))
    steps = [number for number, event in enumerate(done, 1) if event.kind not in "!do"]
    dice, disk, tried = random.Random(seed), Disk(watched), 0
    chosen = {*dice.sample(steps, min(len(steps), times(15, len(steps)))), len(done)}
    for number, event in enumerate(done, 1):
        disk.do(event)
        if number not in chosen:
            continue
        ended, progress = acknowledged(done[:number])
        for variant in dice.sample(VARIANTS, times(2, 3)):
            left = scratch / "left"
            disk.leave(left, variant, dice)
            store = store_at(embedded, left / "papers")
            try:
                check_left(store, ended, states, progress, finish=dice.random() < 0.1)
            except BaseException as error:
                where = f"event {number} of {len(done)} ({event.kind})"
                error.add_note(f"{embedded}: power lost after {where}, {variant}, seed {seed}")
                raise
            store.close()
            shutil.rmtree(left)
            tried += 1
    tell(f"{tried} states left by a loss of power at {len(chosen)} of {len(steps)} steps, all as acknowledged")


def check_left(store: Any, ended: int, states: list[Any], progress: int, *, finish: bool) -> None:
    assert store.exists() or (ended, progress) == (0, 0)
    if ended == len(LIFE):
        assert answers(store) == states[-1]
        check_sound(store)
    elif finish:
        check_finishes(store, ended, states, progress)
    else:
        check_there(store, ended, states, progress)
