"""A move to another model that is killed at random instants serves old or new vectors, is continued, and goes back."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from killed_moves import KINDS_MOVED, Forks, KilledMoves, forking

QUICK = ("chroma", "langchain")  # a database and a folder; the moves of others differ in their readers


@pytest.fixture(scope="module")
def forks() -> Iterator[tuple[Forks, Forks]]:
    with forking() as made:
        yield made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "moved", [pytest.param(kind, marks=pytest.mark.long) if kind not in QUICK else kind for kind in KINDS_MOVED]
)
def test_a_move_that_is_killed_is_continued(
    moved: str,
    scratch: Path,
    forks: tuple[Forks, Forks],
    seed: int,
    tell: Callable[[str], None],
    request: pytest.FixtureRequest,
) -> None:
    """Few kills; `torture_moves.py` makes fifty of each kind, and more."""
    postgres = request.getfixturevalue("postgres") if moved == "postgres" else ""
    run = KilledMoves(moved, scratch, Random(seed), forks, postgres).run()
    kills = list(islice(run, 3))
    run.close()
    tell(f"{len(kills)} calls killed, {sum(kill.found == 'gap' for kill in kills)} in a gap; all continued")
