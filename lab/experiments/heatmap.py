"""Every corpus under the context of every other (paper figure 7): is the own one best?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from tqdm import tqdm

from lab.experiments.laboratory import Laboratory
from lab.experiments.result_tables import new_figure, write_table

NULL = "null"


class HeatmapRow(NamedTuple):
    """One cell.

    Attributes:
        corpus: That is searched.
        context: Whose context it is embedded in; "null" for none.
        ndcg: NDCG@10, mean over queries.
        gain: Less that under the null context.
    """

    corpus: str
    context: str
    ndcg: float
    gain: float


def heatmap(lab: Laboratory) -> list[HeatmapRow]:
    """Evaluate every corpus under every corpus's context and under the null context."""
    null = lab.null()
    spaces = {data.corpus.name: lab.space(data.corpus.texts) for data in lab.sets}
    rows: list[HeatmapRow] = []
    for data in tqdm(lab.sets, desc="heatmap", unit="corpus"):
        without = float(null.score(data).mean())
        rows.append(HeatmapRow(data.corpus.name, NULL, without, 0.0))
        for name, space in spaces.items():
            found = float(space.score(data).mean())
            rows.append(HeatmapRow(data.corpus.name, name, found, found - without))
    return rows


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write heatmap.csv and heatmap.svg."""
    rows = heatmap(lab)
    return [write_table(output / "heatmap.csv", rows), _plot(rows, output / "heatmap.svg")]


def _plot(rows: Sequence[HeatmapRow], path: Path) -> Path:
    names = list(dict.fromkeys(row.corpus for row in rows))
    cells = {(row.corpus, row.context): 100 * row.gain for row in rows}
    gains = np.array([[cells[corpus, context] for context in names] for corpus in names])
    size = 2 + 0.42 * len(names)
    figure, axes = new_figure(width=size + 0.8, height=size)
    _draw(figure, axes, gains, names)
    figure.savefig(path)
    return path


def _draw(figure: Any, axes: Any, gains: Float64[np.ndarray, "corpora contexts"], names: Sequence[str]) -> None:
    most = max(float(np.abs(gains).max()), 0.1)
    image = axes.imshow(gains, cmap="RdBu", vmin=-most, vmax=most)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="context", ylabel="corpus")
    for corpus, best in enumerate(gains.argmax(axis=1)):
        axes.text(best, corpus, "•", ha="center", va="center")
    axes.set_title("NDCG@10 × 100 less that without a context; dot: best", fontsize=9)
    figure.colorbar(image, shrink=0.8)
