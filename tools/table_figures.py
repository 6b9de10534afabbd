"""Figures of tables with more than twenty numbers, from the files of lab/tables that the tables are made from.

Run with: python tools/table_figures.py, which writes docs/drawings/comparison.svg, cde-mini-1.svg and cde-base-1.svg.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT: Final = Path(__file__).parents[1]
DRAWINGS: Final = ROOT / "docs/drawings"
TABLES: Final = ROOT / "lab/tables"
Rows: TypeAlias = Mapping[str, Mapping[str, float]]  # NDCG@10 × 100 by row and column of a table

OURS, LARGER, OTHERS, LIGHT, DARK = "#1f6f8b", "#c2571a", "#7d8a94", "#d7dde1", "#222222"
STEP: Final = 0.1  # of a row's height, between two marks
MARKS: Final = {  # marker, colour and face of each column: circles for vectors, squares for vectors with BM25
    "cde-mini-1": ("o", OURS, OURS),
    "own context": ("o", OURS, OURS),
    "cde-base-1": ("D", LARGER, LARGER),
    "its null context": ("D", LARGER, "white"),
    "null": ("o", OURS, "white"),
    "with BM25": ("s", OURS, OURS),
    "own + BM25": ("s", OURS, OURS),
    "MiniLM": ("o", OTHERS, OTHERS),
    "MiniLM, whitened": ("^", OTHERS, OTHERS),
    "whitened + lead": ("^", OTHERS, OTHERS),
    "late chunking": ("v", OTHERS, OTHERS),
    "e5-small": ("o", DARK, DARK),
    "BM25": ("x", DARK, DARK),
    "MiniLM + BM25": ("s", OTHERS, OTHERS),
}


def comparison() -> Rows:
    """Return the rows of "Measured here" (comparison.md)."""
    plain = {"minilm": "MiniLM", "late_chunking": "late chunking", "bm25": "BM25", "hybrid": "MiniLM + BM25"}
    alone = {"own": "cde-mini-1", "own_hybrid": "with BM25", **plain}
    names = {
        "parents": "cde-mini-1",
        "parents_hybrid": "with BM25",
        "whitened_lead": "whitened + lead",
        **plain,
    }
    headings, lead = _evaluated("headings"), _evaluated("documentation-sites-lead")
    return {
        "four sites,\npage and heading, siblings": _named(_evaluated("documentation-sites") | lead, names),
        "ten sites,\npage and heading, siblings": _named(_evaluated("ten-sites"), names),
        "ten sites,\nheading alone": _named(headings, alone),
        "ten sites,\nheading alone, siblings": _named(headings, names),
        "library code,\nsiblings by file": _named(_evaluated("code-by-files"), names),
        "five test sets,\nno siblings": _named(_evaluated("test-seeds"), alone),
    }


def test_sets() -> Rows:
    """Return the rows of the five test sets (models/cde-mini-1.md)."""
    names = {
        "own": "own context",
        "null": "null",
        "minilm": "MiniLM",
        "whitened": "MiniLM, whitened",
        "bm25": "BM25",
        "hybrid": "MiniLM + BM25",
        "own_hybrid": "own + BM25",
    }
    found = json.loads((TABLES / "test-seeds.json").read_text(encoding="utf-8"))
    rows = {name: _named(row["ndcg@10"], names) for name, row in found["sets"].items()}
    return {**rows, "mean": _named(found["ndcg@10"], names)}


def pair() -> Rows:
    """Return the rows of the five test sets (models/cde-base-1.md)."""
    names = {"minilm": "MiniLM", "multilingual-e5-small": "e5-small"}
    rows: dict[str, dict[str, float]] = {}
    with (TABLES / "cde-pair.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            system = "its null context" if row["given"] == "null" else names.get(row["model"], row["model"])
            rows.setdefault(row["corpus"], {})[system] = 100 * float(row["ndcg"])
    order = ("scifact", "cranfield", "anthropic_codebase", "covidqa_articles", "squadshifts_amazon", "mean")
    return {name: rows[name] for name in order}


FIGURES: Final = {"comparison": comparison, "cde-mini-1": test_sets, "cde-base-1": pair}


def _evaluated(name: str) -> dict[str, float]:
    """Return the mean NDCG@10 of the systems of an evaluation."""
    return json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))["ndcg@10"]


def _named(found: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    return {label: 100 * found[name] for name, label in names.items() if name in found}


def drawn(rows: Rows) -> Figure:
    """Draw one line of marks for each row; each mark has its row, column and value as id."""
    figure = Figure(figsize=(8, 1.3 + 0.6 * len(rows)), layout="constrained")
    axes = figure.subplots()
    legend: dict[str, Any] = {}
    for place, (row, values) in enumerate(rows.items()):
        axes.plot([min(values.values()), max(values.values())], [place, place], color=LIGHT, linewidth=2, zorder=1)
        for step, (column, value) in enumerate(values.items()):
            height = place + STEP * (step - (len(values) - 1) / 2)  # apart, so that none hides another
            marker, colour, face = MARKS[column]
            (mark,) = axes.plot(
                value, height, marker, color=colour, markerfacecolor=face, markersize=7, markeredgewidth=1.5, zorder=2
            )
            mark.set_gid(f"{row} | {column} | {value:.1f}".replace("\n", " "))
            legend.setdefault(column, mark)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("NDCG@10 × 100")
    axes.grid(axis="x", color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=4, frameon=False)
    return figure


def main() -> None:
    """Write the figures, on white, which dark pages show as they are."""
    with rc_context({"svg.hashsalt": "cde-rag", "font.size": 10}):
        for name, rows in FIGURES.items():
            figure = drawn(rows())
            figure.savefig(DRAWINGS / f"{name}.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
