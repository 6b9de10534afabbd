"""A process that may write no large file, or gets no more memory, at any point of a life: nothing is lost.

A file size limit ends in an error in words, as a full disk does. Without memory a process may also end: then the store
is as a kill leaves it.
"""

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disk import Lives
from forks import Order
from lives import LIFE, store_at
from sound import check_done, check_finishes

from cde_rag.stores.files import copy_durably

MOST = {"FSIZE": 160 * 1024, "AS": 24 * 2**20}  # bytes, drawn below; with more nearly every operation ends well


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("name", MOST)
def test_whatever_the_limit_nothing_is_lost(
    kind: str,
    name: str,
    lives: Lives,
    scratch: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    if (kind, name) == ("edge", "AS"):
        pytest.skip("Edge's engine waits for ever for a thread that got no memory; a kill ends it, as in test_kills")
    states: list[dict[str, Any] | None] = [None]
    dice, tried, errors, ended = random.Random(seed), 0, 0, 0
    for number, operation in enumerate(LIFE):
        before, after = scratch / f"before {number}", scratch / f"before {number + 1}"
        after.mkdir()
        if number:
            copy_durably(before / "papers", after / "papers")
        assert lives.order(Order(kind, str(after / "papers"), [operation.name])).error is None
        store = store_at(kind, after / "papers")
        states.append(check_done(store, number + 1))
        store.close()
        for _ in range(times(*((2, 60) if kind != "edge" else (1, 10)))):
            place, size = scratch / "place", int(MOST[name] * dice.random() ** 2)
            place.mkdir()
            if number:
                copy_durably(before / "papers", place / "papers")
            told = lives.order(Order(kind, str(place / "papers"), [operation.name], limit=(name, size)))
            where = f"{kind}: {operation.name}, {name} {size}, seed {seed}"
            if name == "FSIZE" and kind != "edge":  # Edge's engine may take the process along
                assert told.code == 0, f"{where}\n{told.error}"
            store = store_at(kind, place / "papers")
            try:
                check_finishes(store, number, states, told.progress)
            except BaseException as reason:
                reason.add_note(f"{where}\n{told.error}")
                raise
            store.close()
            shutil.rmtree(place)
            tried, errors, ended = tried + 1, errors + (told.error is not None), ended + (told.code != 0)
    assert errors
    tell(f"{tried} limits, {errors} errors, {ended} of them ended the process; nothing lost")
