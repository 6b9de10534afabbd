"""Moves of an application's vectors that are killed at random instants, while another process reads them.

One cycle moves them to another model, back, there again, brings a text that is changed among the old ones, and deletes
these; the next cycle takes the way back.
Each call is killed and repeated until it ends. Half of the instants are spread over the call's length, as it was in a
cycle without kills; for the others a step is drawn first, so that a switch of a millisecond has its share.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import IO, Any, Final, TypeAlias

import chroma_server
import qdrant_rest

KINDS_MOVED: Final = (
    "chroma",
    "chroma-server",
    "lancedb",
    "langchain",
    "llamaindex-simple",
    "llamaindex-faiss",
    "qdrant",
    "qdrant-folder",
    "postgres",
    "open-webui",
)
GAPS: Final = ("chroma", "chroma-server", "open-webui")  # two renames
ALONE: Final = "qdrant-folder"  # one program at a time
WRITTEN: Final = ("chroma", "chroma-server", "qdrant", "qdrant-folder", "postgres", "open-webui")  # by old handles, too
MODELS: Final = ("old-1", "new-1")
EXCHANGES: Final = ("switching", "returning")
State: TypeAlias = tuple[str, int]  # model, and edition of the text that is changed
_BY_LENGTH: Final = 0.5  # share of the kills whose step is drawn by its length, else evenly
_UNKILLED: Final = 0.1  # share of the calls that are not killed


class Forks:
    """One of the processes of `moves.py`."""

    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self._asked, self._answers = asked, answers
        self.place = dict[str, str]()  # kind and folder of the application

    def __call__(self, call: str, **arguments: Any) -> dict[str, Any]:
        self.send(call, **arguments)
        return self.answer(call)

    def send(self, call: str, **arguments: Any) -> None:
        self._asked.write(json.dumps({**self.place, "call": call, **arguments}) + "\n")
        self._asked.flush()

    def answer(self, call: str) -> dict[str, Any]:
        found = json.loads(self._answers.readline())
        assert not found.get("failed"), call
        return found


@contextmanager
def forking() -> Iterator[tuple[Forks, Forks]]:
    """Start `moves.py`; yields the process of moves, and that of the reader."""
    (read, asks), (answered, writes) = os.pipe(), os.pipe()
    script = [sys.executable, str(Path(__file__).with_name("moves.py")), str(read), str(writes)]
    environment = os.environ | {"ANONYMIZED_TELEMETRY": "False"}
    with (
        subprocess.Popen(
            script,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            pass_fds=(read, writes),
        ) as process,
        os.fdopen(asks, "w") as asked,
        os.fdopen(answered) as answers,
    ):
        os.close(read)
        os.close(writes)
        assert process.stdin is not None
        assert process.stdout is not None
        yield Forks(process.stdin, process.stdout), Forks(asked, answers)
        asked.close()
        process.stdin.close()
        assert process.wait(60) == 0


@dataclass(frozen=True)
class Kill:
    """One kill, and what was found after it.

    Attributes:
        call: The call that was killed: "move", "back", "late" (a move that brings a later change) or "release".
        step: Its last step, by the journal.
        after_ms: Time since that step began.
        found: Vectors of "before" or "after" the call; "gap" where Chroma had none under the name; "partly" where some
            collections of Open WebUI were exchanged already.
        looks: Complete looks of the reader meanwhile.
        missed: Looks that found no collection, all between two renames.
    """

    call: str
    step: str
    after_ms: float
    found: str
    looks: int
    missed: int


class KilledMoves:
    """An application, built anew, whose moves are killed.

    Args:
        kind: One of KINDS_MOVED.
        folder: An empty folder.
        dice: Draws instants.
        forks: The process of moves, and that of the reader.
        postgres: Address of a database, for that kind.
    """

    def __init__(self, kind: str, folder: Path, dice: Random, forks: tuple[Forks, Forks], postgres: str = "") -> None:
        self.kind, self._folder, self._dice, self._postgres = kind, folder, dice, postgres
        self._forks, reader = forks
        self._reader = None if kind == ALONE else reader
        for each in forks:
            each.place = {"kind": kind, "folder": str(folder / "data")}
        late = ("late",) if kind in WRITTEN else ()
        self._cycle = ("move", "back", "move", *late, "release")

    def run(self) -> Iterator[Kill]:
        """Yield kills without end; each cycle is checked at its end.

        Raises:
            AssertionError: Rows were lost, changed or mixed, or a reader missed them.
        """
        with self._started():
            state, places = self._unkilled()
            while True:
                model, edition = state
                other = next(each for each in MODELS if each != model)
                after = {"move": (other, edition), "back": state, "late": (other, 1 - edition)}
                files = self._forks("look")["files"]
                for call in self._cycle:
                    if call == "late":
                        self._forks("late", model=model, edition=1 - edition)
                    before, state = state, after.get(call, state)
                    yield from self._killed(call, before, state)
                    assert self._look(state) == "after", call
                    assert call != "back" or self._forks("look")["files"] == files
                found = self._forks("look")
                assert found["places"] == places
                assert all(name.endswith(".context.safetensors") for name in found["journals"]), found["journals"]

    def _unkilled(self) -> tuple[State, list[str]]:
        """Build the application, and lead it through all states; returns the last one, and names of what is there."""
        old, new = MODELS
        self._forks("build")
        found = self._forks("look")
        self._known, self._lengths, places = {(old, 0): found["parts"]}, dict[str, dict[str, float]](), found["places"]
        ways = {"move": (new, 0), "late": (new, 1), "back": (old, 1), "release": (old, 1)}
        if self.kind not in WRITTEN:
            ways = {"move": (new, 0), "back": (old, 0), "release": (old, 0)}
        for call, state in ways.items():
            if call == "late":
                self._forks("late", model=old, edition=1)
            self._lengths[call] = _lengths(self._called(call, state)["steps"])
            parts = self._forks("look")["parts"]
            assert self._known.setdefault(state, parts) == parts, call
        return state, places

    def _called(self, call: str, state: State, **kill: Any) -> dict[str, Any]:
        """Do one of the calls of a cycle, after which the application is in a state."""
        if call in ("move", "late"):
            return self._forks("move", model=state[0], **kill)
        return self._forks(call, **kill)

    def _killed(self, call: str, before: State, after: State) -> Iterator[Kill]:
        """Repeat a call until it ends; yields each kill."""
        last = "before" if before != after else "after"
        while True:
            kill = None
            if self._dice.random() >= _UNKILLED:
                lengths = self._lengths[call]
                weights = [*lengths.values()] if self._dice.random() < _BY_LENGTH else None
                (step,) = self._dice.choices([*lengths], weights)
                kill = (step, self._dice.uniform(0, lengths[step]))
            with self._watched() as watched:
                found = self._called(call, after, kill=kill)
                step, began = found["steps"][-1]
                seen = self._look(after, before)
            missed = self._checked_misses(watched["missed"], found["steps"], last) if watched else 0
            if not found["killed"] or step == "ended":
                return
            self._check(call, step, seen, last)
            last = seen
            after_ms = round(1000 * (found["killed_at"] - began), 1)
            yield Kill(call, step, after_ms, seen, watched.get("looks", 0), missed)

    def _check(self, call: str, step: str, seen: str, last: str) -> None:
        """Check that the vectors are those of the step; `last` ones were there before the call."""
        if step in EXCHANGES:
            assert seen in ("before", "after", *(("gap", "partly") if self.kind in GAPS else ())), (call, step, seen)
            return
        if call == "late":
            assert seen in ("before", "after"), (call, step, seen)
            return
        ended = call == "release" or (call, step) in (("move", "switched"), ("back", "returned"))
        expected = last if step == "begun" else "after" if ended else "before"
        assert seen == expected, (call, step, seen, expected)

    def _look(self, after: State, before: State | None = None) -> str:
        """Return the state that all rows are in, as `Kill.found`."""
        found = set[str]()
        for name, digest in self._forks("look")["parts"].items():
            if digest is None:
                found.add("gap")
            elif digest == self._known[after][name]:
                if before in (None, after) or digest != self._known[before][name]:  # else it says nothing
                    found.add("after")
            else:
                assert before is not None
                assert digest == self._known[before][name], f"{self.kind}, {name}: rows of neither model"
                found.add("before")
        return "gap" if "gap" in found else "partly" if len(found) > 1 else found.pop()

    def _checked_misses(self, missed: list[list[float]], steps: list[list[Any]], last: str) -> int:
        """Check that a reader missed a collection only where it was renamed, or until the call after a kill did so."""
        ends = [at for _, at in steps[1:]] + [float("inf")]
        windows = [(began, until) for (step, began), until in zip(steps, ends, strict=True) if step in EXCHANGES]
        if last == "gap":
            windows.append((0.0, windows[0][1] if windows else float("inf")))
        for began, until in missed:
            assert any(began <= end and until >= start for start, end in windows), (missed, steps)
        return len(missed)

    @contextmanager
    def _watched(self) -> Iterator[dict[str, Any]]:
        """Let the reader look until the end; yields a dictionary with what it has seen then."""
        found: dict[str, Any] = {}
        if self._reader is None:
            yield found
            return
        stop = self._folder / "stop"
        stop.unlink(missing_ok=True)
        known = {name: [each[name] for each in self._known.values()] for name in next(iter(self._known.values()))}
        self._reader.send("watch", known=known, until=str(stop))
        assert self._reader.answer("watch") == {"watching": True}
        try:
            yield found
        finally:
            stop.touch()
            found |= self._reader.answer("watch")

    @contextmanager
    def _started(self) -> Iterator[None]:
        with ExitStack() as servers:
            address = self._folder / "address"
            if self.kind == "qdrant":
                address.write_text(servers.enter_context(qdrant_rest.serving()))
            if self.kind == "chroma-server":
                address.write_text(str(servers.enter_context(chroma_server.serving(self._folder / "server"))))
            if self.kind == "postgres":
                address.write_text(self._postgres)
            yield


def _lengths(steps: list[tuple[str, float]]) -> dict[str, float]:
    """Return the seconds of each step."""
    return {step: until - began for (step, began), (_, until) in pairwise(steps)}
