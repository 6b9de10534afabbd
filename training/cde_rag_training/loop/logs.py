"""Training log: one row of metrics per update, in a CSV file and optionally in TensorBoard."""

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cde_rag.errors import require
from cde_rag_training.loop.guard import TrainingError

LOG = "log.csv"
COLUMNS = (
    "phase",  # its name
    "update",  # done in the phase
    "corpus",  # what the batch was drawn as
    "loss",  # nats, under the batch's own context
    "null_loss",  # the same batch under the null context; empty between probes
    "foreign_loss",  # under the context of another source, or what is apart of another batch's
    "null_gain",  # null_loss - loss
    "foreign_gain",  # foreign_loss - loss
    "distillation",  # KL to the teacher, nats
    "masked",  # share of documents that are no negatives
    "filled",  # random documents in place of hard negatives that pairs lack
    "context",  # documents
    "siblings",  # of all documents
    "norm",  # of the gradients, before clipping; inf where those of float16 overflowed, and the update was left out
    "gate",  # mean |tanh(gate)| of all layers and heads
    "exponent",  # of the output map
    "encoder_rate",  # of its topmost layer, or of its adapters
    "embeddings_rate",
    "first_stage_rate",
    "context_rate",
    "gates_rate",
    "own_ndcg",  # NDCG@10 on held-out pairs; empty between evaluations
    "null_ndcg",
    "foreign_ndcg",
    "tokens",  # of queries, documents and hard negatives
    "seconds",  # since the phase began, resumed parts included
    "tokens_per_second",
)
TIMES = ("seconds", "tokens_per_second")  # what differs between two runs that are the same
Row = Mapping[str, float | int | str]


class Log:
    """Writer of `log.csv` in a folder.

    Args:
        folder: Folder of the run.
        keep: Length in bytes of the log at the checkpoint that a run resumes from; the rest is truncated.
    """

    def __init__(self, folder: Path, *, keep: int = 0) -> None:
        path = folder / LOG
        self._file = path.open("ab")
        self._file.truncate(min(keep, path.stat().st_size))
        if self.bytes == 0:
            self._line(COLUMNS)

    @property
    def bytes(self) -> int:
        """Length of the file."""
        return self._file.seek(0, os.SEEK_END)

    def write(self, row: Row) -> None:
        """Append a row; columns without a figure stay empty.

        Raises:
            TrainingError: The file cannot be written, such as on a full disk.
            ValueError: A figure has no column.
        """
        if unknown := sorted(row.keys() - set(COLUMNS)):
            raise ValueError(f"Expected figures of the columns {', '.join(COLUMNS)}, found {', '.join(unknown)}.")
        self._line([_shown(row.get(column, "")) for column in COLUMNS])

    def keep(self) -> int:
        """Make all rows durable; their length in bytes."""
        os.fsync(self._file.fileno())
        return self.bytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, values: "tuple[str, ...] | list[str]") -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        try:
            self._file.write(text.getvalue().encode())
            self._file.flush()
        except OSError as error:
            raise TrainingError(
                f"{self._file.name}: the log could not be written ({error.strerror}). Free some space and start the "
                "same run again: it goes on from its last checkpoint."
            ) from error


def _shown(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Board:
    """The same rows for TensorBoard.

    Args:
        folder: Events are written to `tensorboard` in it.
        first: The first update that is to be (re)written, of all phases together.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, *, first: int) -> None:
        require("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=first)

    def write(self, row: Row, update: int) -> None:
        """Draw every number of a row.

        Args:
            row: As in the log.
            update: Number of updates of all phases together.
        """
        for column, value in row.items():
            if not isinstance(value, str) and column != "update":
                self._writer.add_scalar(column, value, update)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
