"""The figure of the README: NDCG@10 of our models next to their backbones, from lab/tables.

Run with: python tools/quality_figure.py, which writes docs/drawings/quality.svg.
"""

import csv
import json
from pathlib import Path
from typing import Final

from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT: Final = Path(__file__).parents[1]
TABLES: Final = ROOT / "lab/tables"
OURS: Final = "#1f6f8b"
OTHERS: Final = "#b8c4cc"


def documentation() -> dict[str, float]:
    """Return NDCG@10 × 100 on ten documentation sites, queries of page and heading (lab/pages/cde-mini-1.md)."""
    found = json.loads((TABLES / "ten-sites.json").read_text(encoding="utf-8"))["ndcg@10"]
    names = {
        "minilm": "MiniLM",
        "whitened_lead": "MiniLM, whitened, with the page's start",
        "own": "cde-mini-1, corpus context",
        "parents": "cde-mini-1, corpus context and siblings",
    }
    return {label: 100 * found[name] for name, label in names.items()}


def mixed_texts() -> dict[str, float]:
    """Return the mean NDCG@10 × 100 of five test sets (models/cde-base-1.md)."""
    with (TABLES / "cde-pair.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["corpus"] == "mean" and row["given"] != "null"]
    names = {"minilm": "MiniLM", "multilingual-e5-small": "e5-small"}
    return {names.get(row["model"], row["model"]): 100 * float(row["ndcg"]) for row in rows}


def main() -> None:
    """Write the figure."""
    panels = {"Ten documentation sites": documentation(), "Five test sets of other texts": mixed_texts()}
    with rc_context({"svg.hashsalt": "cde-rag", "font.size": 10}):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        for axes, (title, values) in zip(figure.subplots(2, 1, sharex=True), panels.items(), strict=True):
            colours = [OURS if "cde-" in name else OTHERS for name in values]
            bars = axes.barh(list(values), list(values.values()), color=colours, height=0.7)
            axes.bar_label(bars, fmt="%.1f", padding=3)
            axes.invert_yaxis()
            axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
            axes.spines[["top", "right", "bottom"]].set_visible(False)
            axes.tick_params(left=False, bottom=False, labelbottom=False)
            axes.set_xlim(0, 75)
        figure.savefig(ROOT / "docs/drawings/quality.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
