"""Guards of a training run: ignored context, losses that are not finite, memory errors."""

import json
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev

import torch

from cde_rag._files import write_durably
from cde_rag.errors import CDEError, CDEWarning
from cde_rag_training.config import GuardConfig, MachineConfig
from cde_rag_training.corpora.batch import Batch
from cde_rag_training.data.prepared import Prepared


class TrainingError(CDEError):
    """Training cannot continue; the message gives the reason and the remedy."""


class ContextIgnoredWarning(CDEWarning):
    """The loss under a batch's own context is not clearly below that without a context."""


class ContextGuard:
    """Monitor of context use: mean gain of the last probes, compared with its standard error.

    Args:
        config: Thresholds and reaction.
        gains: Gains of earlier probes, if a run resumes.
    """

    def __init__(self, config: GuardConfig, gains: Sequence[float] = ()) -> None:
        self._config = config
        self._gains: deque[float] = deque(gains, maxlen=config.window)
        self._warned = False

    @property
    def gains(self) -> tuple[float, ...]:
        """Gains of the last probes, in nats."""
        return tuple(self._gains)

    def look(self, gain: float, update: int) -> None:
        """Record one probe.

        Args:
            gain: Loss under the null context less that under the own one, in nats.
            update: Updates done in this phase.

        Raises:
            TrainingError: The context is being ignored, and the config says to stop.
        """
        self._gains.append(gain)
        if self._config.action == "none" or update < self._config.after or len(self._gains) < self._config.window:
            return
        average, error = mean(self._gains), stdev(self._gains) / len(self._gains) ** 0.5
        if average > self._config.errors * error:
            return
        message = (
            f"Update {update}: the context is being ignored. Over the last {len(self._gains)} probes it lowers the "
            f"loss by {average:.4f} ± {error:.4f} nats, expected more than {self._config.errors} standard errors. "
            "Raise the rates of context and gates, or make batches of clusters, so that negatives are near, in a run "
            "of its own; or let this one train longer before the guard looks (guard.after)."
        )
        if self._config.action == "stop":
            raise TrainingError(message)
        if not self._warned:
            warnings.warn(message, ContextIgnoredWarning, stacklevel=2)
        self._warned = True


def not_finite(batch: Batch, prepared: Prepared, folder: Path, update: int, *, found: str) -> TrainingError:
    """Return the error for a loss or gradient that is not finite; the batch is saved for inspection.

    Args:
        batch: Batch of the update.
        prepared: Its data.
        folder: The batch is saved in it, as JSON with its texts.
        update: Its number.
        found: Such as "a loss of nan".
    """

    def texts(rows: Sequence[int]) -> list[str]:
        return [prepared.text(row) for row in rows]

    path = folder / f"batch-{update}.json"
    content = {
        "update": update,
        "corpus": batch.corpus,
        "pairs": batch.pairs.tolist(),
        "queries": texts(batch.queries.tolist()),
        "documents": texts(batch.documents.tolist()),
        "hard_negatives": [texts(rows) for rows in batch.hard_negatives.tolist()],
        "context": texts(batch.context.tolist()),
        "siblings": [texts(rows) for rows in batch.siblings],
    }
    write_durably(path, json.dumps(content, indent=1, ensure_ascii=False).encode())
    return TrainingError(
        f"Update {update}: expected finite numbers, found {found}. Nothing was changed by it, and the batch is in "
        f"{path}. Begin again in another folder with lower learning rates, a lower clip or a higher temperature; if it "
        "is the batch, without those texts."
    )


@contextmanager
def enough_memory(machine: MachineConfig, update: int) -> Iterator[None]:
    """Convert out-of-memory errors into an error that names the setting to change.

    Raises:
        TrainingError: Memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error):
            raise
        size = machine.mini_batch_size
        if not machine.gradient_caching:
            advice = "Turn machine.gradient_caching on, so that memory no longer grows with the batch"
        elif size > 1:
            advice = f"Lower machine.mini_batch_size, to {size // 2} for instance"
        else:
            advice = "One text at a time is too much already: prepare the data with a smaller max_length"
        raise TrainingError(
            f"Out of memory at update {update}, with mini-batches of {size} texts (the longest texts come first). "
            f"{advice}; then start the same run again: it goes on from its last checkpoint."
        ) from error


def _is_about_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        sign in text for sign in ("out of memory", "defaultcpuallocator", "can't allocate memory")
    )
