"""Output of experiments: rows as CSV, and an empty figure."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cde_rag._files import write_durably
from cde_rag.errors import require


def write_table(path: Path, rows: Sequence[Any]) -> Path:
    """Write named tuples of one kind, at least one, under the names of their fields; returns the path."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(rows[0]._fields)
    writer.writerows([_rounded(value) for value in row] for row in rows)
    write_durably(path, table.getvalue().encode())
    return path


def _rounded(value: object) -> object:
    return round(value, 5) if isinstance(value, float) else value


def new_figure(*, width: float = 6, height: float = 3.6) -> tuple[Any, Any]:
    """Return a figure and its axes; sizes in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure: Any = require("matplotlib.figure", "train").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()
