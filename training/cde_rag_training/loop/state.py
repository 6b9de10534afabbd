"""Checkpoint of a run in one file, replaced atomically, from which a killed run resumes bit by bit."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from cde_rag._files import write_durably
from cde_rag.errors import ResumeError
from cde_rag_training.loop.guard import TrainingError
from cde_rag_training.loop.optimiser import LossScale

STATE = "state.safetensors"


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        phase: Number of the current phase; the number of phases when all are done.
        update: Updates done in this phase.
        seconds: Time spent in this phase.
        earlier_updates: Updates of the phases before it.
        earlier_seconds: Time spent in the phases before it.
        log_bytes: Length of the log; anything after it was written by updates that are lost.
        gains: Gains of the guard's last probes, in nats.
        loss_scale: Scale of the loss, in float16.
    """

    phase: int = 0
    update: int = 0
    seconds: float = 0.0
    earlier_updates: int = 0
    earlier_seconds: float = 0.0
    log_bytes: int = 0
    gains: tuple[float, ...] = ()
    loss_scale: LossScale = field(default_factory=LossScale)


class State(NamedTuple):
    """Checkpoint of a run.

    Attributes:
        progress: Progress of the run.
        tensors: Weights, their average and the optimiser's state.
    """

    progress: RunProgress
    tensors: Mapping[str, Tensor]


class StateFile:
    """Checkpoint file of a run.

    Args:
        path: Path of the file.
        run: Identity of the run: config and digests of start and data; JSON.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.path = path
        self._run = cast("dict[str, Any]", json.loads(json.dumps(run)))

    def write(self, state: State) -> None:
        """Replace the checkpoint atomically; the old file stays until the new one is complete on disk.

        An incomplete file left by a killed process, which may be as large, is deleted first.

        Raises:
            TrainingError: It cannot be written, such as on a full disk; the previous one is intact.
        """
        content = json.dumps({"run": self._run, "progress": asdict(state.progress)})
        tensors = {name: tensor.detach().contiguous() for name, tensor in state.tensors.items()}
        stated = {"state": content, "integrity": _integrity(content, tensors)}
        try:
            for half in self.path.parent.glob(f".{self.path.name}.*.tmp"):
                half.unlink()
            write_durably(self.path, save(tensors, metadata=stated))
        except OSError as error:
            kept = "The checkpoint before it is intact" if self.path.exists() else "There is none before it"
            raise TrainingError(
                f"{self.path}: the checkpoint at update {state.progress.update} could not be written "
                f"({error.strerror}). {kept}; free some space and start the same run again: it goes on from there."
            ) from error

    def read(self) -> State | None:
        """Read the checkpoint, or return None if there is none yet.

        Raises:
            ResumeError: The file is damaged, or of another run; the message says what differs.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                stated = file.metadata()
            tensors = load(self.path.read_bytes())
            if _integrity(stated["state"], tensors) != stated["integrity"]:
                raise ValueError("bytes that were changed: its sha256 is not the one that it states")
            value = json.loads(stated["state"])
            given, run = dict(value["progress"]), value["run"]
            given |= {"gains": tuple(given["gains"]), "loss_scale": LossScale(*given.get("loss_scale", ()))}
            progress = RunProgress(**given)
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise ResumeError(
                f"Expected a checkpoint at {self.path}, found: {error!r}. Restore it from a copy, or begin again in "
                "another folder."
            ) from error
        if differing := differences(run, self._run):
            raise ResumeError(
                f"{self.path.parent} holds another run: {'; '.join(differing)}. Choose another folder, or go on with "
                "that run's config, start and data."
            )
        return State(progress, tensors)


def _integrity(content: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 over the metadata and tensors of a checkpoint, in hex."""
    sha256 = hashlib.sha256(content.encode())
    for name in sorted(tensors):  # one by one: they need not fit into memory twice
        sha256.update(save({name: tensors[name]}))
    return sha256.hexdigest()


def differences(theirs: Any, ours: Any, key: str = "") -> list[str]:
    """List the differences of two JSON values, by key: "phases[0].loss.temperature was 0.02, is 0.03".

    Examples:
        >>> differences({"a": {"b": 1}, "c": [2]}, {"a": {"b": 3}, "c": [2]})
        ['a.b was 1, is 3']
    """
    if isinstance(theirs, dict) and isinstance(ours, dict):
        one, other = cast("dict[str, Any]", theirs), cast("dict[str, Any]", ours)
        names = [*one, *(name for name in other if name not in one)]
        return [
            each
            for name in names
            for each in differences(one.get(name), other.get(name), f"{key}.{name}" if key else name)
        ]
    if isinstance(theirs, list) and isinstance(ours, list):
        first, second = cast("list[Any]", theirs), cast("list[Any]", ours)
        if len(first) == len(second):
            both = enumerate(zip(first, second, strict=True))
            return [each for number, (a, b) in both for each in differences(a, b, f"{key}[{number}]")]
    return [] if theirs == ours else [f"{key} was {theirs!r}, is {ours!r}"]
