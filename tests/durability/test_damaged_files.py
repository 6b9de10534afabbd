"""A bit flipped, a run of bytes overwritten, a file cut off, at random places of every file that a store has.

Damage is found by an error when the store is opened or answers, or else by `verify`; where neither finds any, every
answer is right. A store is harmed closed, and as a kill leaves it, where SQLite's log is still to be read.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from disk import KILL_AFTER, Lives
from forks import Order
from lives import LIFE, Operation, store_at
from sound import answers, check_sound

from cde_rag.errors import CDEError
from cde_rag.records import Record
from cde_rag.stores.files import copy_durably, pieces

FOUND, VERIFIED, WRONG = "found by an answer", "answers right, found by verify", "an answer wrong until verify"
HARMLESS, DIED = "harmless", "the process died"


def harm(path: Path, dice: random.Random) -> str:
    """Damage a file somewhere; in files that are mostly holes rather where something is."""
    with path.open("rb") as file:
        filled = [(start, len(piece)) for start, piece in pieces(file)] or [(0, path.stat().st_size)]
    start, length = dice.choice(filled)
    place, how = start + dice.randrange(length), dice.random()
    if how < 0.15:
        os.truncate(path, place)
        return f"cut at {place}"
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(1 if how < 0.85 else dice.randint(1, 512))
        file.seek(place)
        file.write(bytes([old[0] ^ 1 << dice.randrange(8)]) if how < 0.85 else dice.randbytes(len(old)))
    return f"changed at {place}"


def outcome(kind: str, folder: Path, expected: Any, whole: Callable[[Any], bool]) -> str:
    """What became of the damage."""
    store = store_at(kind, folder)
    try:
        if not store.exists():
            return FOUND
        told = answers(store)
    except KeyError:  # a record that SQLite's index of ids has lost
        told = None
    except CDEError:
        return FOUND
    try:
        damage = store.verify()
    except CDEError as error:
        damage = [error]
    finally:
        store.close()
    if damage:
        return VERIFIED if told == expected else WRONG
    assert told is not None
    assert told == expected or whole(told), "a wrong answer in silence"
    return HARMLESS


def in_a_fork(kind: str, folder: Path, expected: Any, whole: Callable[[Any], bool]) -> str:
    """As `outcome`, where an engine that trips over damage may take its process along."""
    outcomes = (FOUND, VERIFIED, WRONG, HARMLESS)
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = outcomes.index(outcome(kind, folder, expected, whole))
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code < len(outcomes), "a wrong answer in silence, or an error that is none of ours"
    return DIED if code < 0 else outcomes[code]


def ever_held(life: Sequence[Operation]) -> list[Record]:
    return [one for operation in life for one in operation.puts]


@pytest.mark.parametrize("kind", ["ivf int8", pytest.param("edge", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "killed",
    [
        # tests/stores/test_faiss.py and test_qdrant_edge.py damage every file of closed stores
        pytest.param(False, id="closed", marks=pytest.mark.long),
        pytest.param(True, id="as a kill leaves it"),
    ],
)
def test_damage_is_found_or_harmless(
    kind: str,
    killed: bool,
    lives: Lives,
    scratch: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    folder = scratch / "whole" / "papers"
    assert lives.order(Order(kind, str(folder), [one.name for one in LIFE[:5]])).error is None
    if killed:
        copy_durably(scratch / "whole", scratch / "counted")
        (steps,) = lives.order(Order(kind, str(scratch / "counted" / "papers"), [LIFE[5].name])).steps
        assert lives.order(Order(kind, str(folder), [LIFE[5].name], do=KILL_AFTER, at=steps // 2)).killed
    copy_durably(folder, scratch / "read")
    store = store_at(kind, scratch / "read")
    expected, held = answers(store), ever_held(LIFE)
    store.close()

    def whole(told: Any) -> bool:
        """Whether it is an earlier state, as a log leaves that ends early."""
        if killed:
            again = store_at(kind, scratch / "harmed")
            check_sound(again)
            again.close()
        return killed and all(row.record in held for row in told["rows"])

    dice, outcomes = random.Random(seed), Counter[str]()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size and is_read(path)]
    ours = [path for path in files if path.parent == folder]
    theirs = [path for path in files if path.parent != folder]
    if theirs:  # each place takes a second
        chosen = [dice.choice(some) for some in (ours, theirs) for _ in range(times(3, 100 if killed else 250))]
    else:
        chosen = [path for path in ours for _ in range(times(100 // len(ours), 1000))]
    for path in chosen:
        copy_durably(folder, scratch / "harmed")
        how = harm(scratch / "harmed" / path.relative_to(folder), dice)
        try:
            look = in_a_fork if killed and kind == "edge" else outcome
            outcomes[look(kind, scratch / "harmed", expected, whole)] += 1
        except BaseException as error:
            error.add_note(f"{kind}: {path.relative_to(folder)} {how}, seed {seed}")
            raise
        shutil.rmtree(scratch / "harmed")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    tell(f"{sum(outcomes.values())} places in {len(ours)} files of ours and {len(theirs)} of the engine's: {counts}")


def is_read(path: Path) -> bool:
    """All but memory that SQLite's processes share, which is made anew."""
    return not path.name.endswith("-shm")
