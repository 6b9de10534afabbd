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
    return _table(head, rows)


def gains(path: Path) -> str:
    """The means of a table of `python -m lab.experiments run models` as a Markdown table, NDCG@10 times 100.

    Raises:
        ValueError: If it has no means beside MiniLM.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        means = [row for row in csv.DictReader(lines) if (row["corpus"], row["against"]) == ("mean", "minilm")]
    if not means:
        raise ValueError(f"Expected means beside minilm in {path}, found none.")
    head = ["model", "given", "NDCG@10", "less MiniLM", "queries drawn again", "sets too"]
    rows = [
        [
            row["model"],
            row["given"] or "the text",
            f"{100 * float(row['ndcg']):.1f}",
            *([""] * 3 if row["model"] == "minilm" else _gain(row)),
        ]
        for row in means
    ]
    return _table(head, rows)


def _gain(row: dict[str, str]) -> list[str]:
    gain, low, high, sets_low, sets_high = (
        f"{100 * float(row[key]):+.1f}".replace("-", "−") for key in ("gain", "low", "high", "sets_low", "sets_high")
    )
    return [gain, f"{low} … {high}", f"{sets_low} … {sets_high}"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(_line(row) for row in (head, ["---"] * len(head), *rows))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(f'{float(cell):.2f}' if NUMBER.fullmatch(cell) else cell for cell in cells)} |"
