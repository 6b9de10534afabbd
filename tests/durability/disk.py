"""Processes on a disk that dies, fails or takes notes (`disk.c`)."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forks import Order

HERE = Path(__file__).parent
NOTHING, KILL_BEFORE, KILL_HALF, KILL_AFTER, FAIL, FAIL_HALF = range(6)


def compiled(folder: Path) -> Path:
    library = folder / "disk.so"
    command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, HERE / "disk.c", "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True)
class Told:
    """How an order ended.

    Attributes:
        code: Exit status; negative for a signal.
        steps: Of each operation that ended.
        progress: What was last said to be done.
        error: Of the operation that failed, or what nobody expected.
    """

    code: int
    steps: list[int]
    progress: int
    error: str | None

    @property
    def killed(self) -> bool:
        return self.code == -9


class Lives:
    """One process that forks for each order; it has imported everything once."""

    def __init__(self, library: Path) -> None:
        paths = [str(HERE), *sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "LD_PRELOAD": str(library)}
        self._process = subprocess.Popen(
            [sys.executable, HERE / "forks.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )

    def order(self, order: Order) -> Told:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(order)) + "\n")
        self._process.stdin.flush()
        code, lines = json.loads(self._process.stdout.readline())
        told: dict[str, list[Any]] = {"steps": [], "progress": [0], "error": [None]}
        for what, value in lines:
            told[what].append(value)
        return Told(code, told["steps"], told["progress"][-1], told["error"][-1])

    def close(self) -> None:
        self._process.communicate()
