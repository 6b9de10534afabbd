"""A move to another model that is killed at random instants serves old or new vectors, is continued, and goes back."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import qdrant_rest

KINDS_MOVED = ("chroma", "lancedb", "langchain", "llamaindex-simple", "llamaindex-faiss", "qdrant", "postgres")


class Forks:
    """The process of `moves.py`."""

    def __init__(self, kind: str, folder: Path) -> None:
        script = [sys.executable, str(Path(__file__).with_name("moves.py")), kind, str(folder)]
        environment = os.environ | {"ANONYMIZED_TELEMETRY": "False"}
        self.process = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, command: str, seconds: float | None = None) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + ("" if seconds is None else f" {seconds}") + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert not answer["failed"], command
        return answer


@pytest.fixture(  # one database and one folder; the moves differ in their readers
    params=[
        pytest.param(kind, marks=pytest.mark.long) if kind not in ("chroma", "langchain") else kind
        for kind in KINDS_MOVED
    ]
)
def forks(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Forks]:
    with ExitStack() as servers:
        if request.param == "qdrant":
            (scratch / "address").write_text(servers.enter_context(qdrant_rest.serving()))
        if request.param == "postgres":
            (scratch / "address").write_text(request.getfixturevalue("postgres"))
        yield from forked(request.param, scratch)


def forked(kind: str, scratch: Path) -> Iterator[Forks]:
    made = Forks(kind, scratch / "data")
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    assert made.process.wait(60) == 0
    assert made.process.stdout is not None
    made.process.stdout.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_move_that_is_killed_is_continued(
    forks: Forks, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    dice, kills, killed, gaps = random.Random(seed), times(3, 50), 0, 0
    forks("build")
    old = forks("state")["value"]
    takes = {"move": forks("move")["seconds"], "back": forks("back")["seconds"]}
    new: Any = None
    for command in ["move", "back"] * kills:
        while killed < kills:
            done = forks(command, dice.uniform(0, takes[command]))
            killed += done["killed"]
            found = forks("state")["value"]
            gaps += found is None
            assert found is None or found == old or [row[:3] for row in found] == [row[:3] for row in old]
            assert found is None or found == old or {len(row[3]) for row in found} == {24}
            if not done["killed"]:
                break
        forks(command)
        found = forks("state")["value"]
        if command == "back":
            assert found == old
        else:
            assert [row[:3] for row in found] == [row[:3] for row in old]
            assert new is None or found == new
            new = found
        if killed >= kills and command == "back":
            break
    tell(f"{killed} moves and rollbacks killed, {gaps} of them in a gap; all continued")
