"""A disk that is full, or tells of an error, at any step: an error in words, nothing lost, the same call goes on."""

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disk import FAIL, FAIL_HALF, Lives
from forks import Order
from lives import LIFE, store_at
from sound import answers, check_done, check_finishes, check_sound

from cde_rag.stores.files import copy_durably


def test_whatever_step_fails_nothing_is_lost(
    kind: str,
    lives: Lives,
    scratch: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    """Each step once or for ever, with either error; then the same object goes on, or another does."""
    states: list[dict[str, Any] | None] = [None]
    dice, tried, errors = random.Random(seed), 0, 0
    for number, operation in enumerate(LIFE):
        before, after = scratch / f"before {number}", scratch / f"before {number + 1}"
        after.mkdir()
        if number:
            copy_durably(before / "papers", after / "papers")
        (steps,) = lives.order(Order(kind, str(after / "papers"), [operation.name])).steps
        store = store_at(kind, after / "papers")
        states.append(check_done(store, number + 1))
        store.close()
        for at in dice.sample(range(1, steps + 1), min(steps, times(*((2, 100) if kind != "edge" else (1, 6))))):
            place, again = scratch / "place", dice.random() < 0.5 and kind != "edge"  # its engine wants to be reopened
            place.mkdir()
            if number:
                copy_durably(before / "papers", place / "papers")
            error, lasting = dice.choice([errno.ENOSPC, errno.EIO]), dice.random() < 0.5
            do = dice.choice([FAIL, FAIL_HALF])
            told = lives.order(Order(kind, str(place / "papers"), [operation.name], do, at, error, lasting, again))
            how = f"{do=}, {error=}, {lasting=}, {again=}, seed {seed}"
            where = f"{kind}: {operation.name}, step {at} of {steps}, {how}"
            assert told.code == 0, f"{where}\n{told.error}"
            store = store_at(kind, place / "papers")
            try:
                if again or told.error is None:
                    assert answers(store) == states[-1]
                    check_sound(store)
                else:
                    check_finishes(store, number, states, told.progress)
            except BaseException as reason:
                reason.add_note(f"{where}\n{told.error}")
                raise
            store.close()
            shutil.rmtree(place)
            tried, errors = tried + 1, errors + (told.error is not None)
    tell(f"{tried} failures, {errors} of them told to the caller, the rest without consequence; nothing lost")
