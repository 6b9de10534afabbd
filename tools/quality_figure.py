"""The figure of the README: answers to the questions of `cde-rag demo`, by the index and by plain search.

Its rows are those of lab/tables/demo.json, which this command writes:

    cde-rag demo --check --json > lab/tables/demo.json
    python tools/quality_figure.py  # writes docs/drawings/quality.svg
"""

import json
from pathlib import Path
from typing import Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from cde_rag.cli.demo import INDEX, NAMES

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "lab/tables/demo.json"
OURS: Final = "#1f6f8b"
OTHERS: Final = "#b8c4cc"


def answered() -> dict[str, float]:
    """Return, for each system, the percentage of questions that its first hit answers."""
    systems = json.loads(TABLE.read_text(encoding="utf-8"))["systems"]
    return {NAMES[system]: 100 * scores["hit@1"] for system, scores in systems.items()}


def main() -> None:
    """Write the figure."""
    values = answered()
    with rc_context({"svg.hashsalt": "cde-rag", "font.size": 11}):
        figure = Figure(figsize=(8, 2.1), layout="constrained")
        axes = figure.subplots()
        colours = [OURS if name == NAMES[INDEX] else OTHERS for name in values]
        axes.bar_label(
            axes.barh(list(values), list(values.values()), color=colours, height=0.7), fmt="%.0f %%", padding=3
        )
        axes.invert_yaxis()
        axes.set_title(
            "Questions in users' words that the first hit answers", loc="left", fontsize=11, fontweight="bold"
        )
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(left=False, bottom=False, labelbottom=False)
        axes.set_xlim(0, 100)
        figure.savefig(ROOT / "docs/drawings/quality.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
