"""Tables of the pages, out of the CSV files that the benchmarks write."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"-?\d+\.\d{3,}(e-?\d+)?")


def markdown(path: Path) -> str:
    """A CSV file with a header as a Markdown table; long decimals lose all but two digits behind the point.

    Raises:
        ValueError: If the file has no rows.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    if not rows:
        raise ValueError(f"Expected a header and rows in {path}, found a header alone.")
    return "\n".join(_line(row) for row in (head, ["---"] * len(head), *rows))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(f'{float(cell):.2f}' if NUMBER.fullmatch(cell) else cell for cell in cells)} |"
