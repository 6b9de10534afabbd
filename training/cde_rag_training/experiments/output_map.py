"""The output map: how strongly directions that a corpus's documents share are shortened, against what is found."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64
from tqdm import tqdm

from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.parents import unit
from cde_rag.model.context_path import OutputMap
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.experiments.laboratory import Laboratory, Space, difference, score
from cde_rag_training.experiments.models import MEAN
from cde_rag_training.experiments.tables import new_figure, write_table

EXPONENTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


class OutputMapRow(NamedTuple):
    """One set, or the mean of all, and exponent.

    Attributes:
        corpus: The set, or "mean".
        exponent: Of the map, in place of the model's; 0 is no map.
        ndcg: NDCG@10, mean over queries, without siblings; of all sets their mean.
        gain: Less that of exponent 0.
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
    """

    corpus: str
    exponent: float
    ndcg: float
    gain: float
    low: float
    high: float


def remapped(
    vectors: Float32[np.ndarray, "texts dim"], space: Space, network: TwoStage, exponent: float
) -> Float32[np.ndarray, "texts dim"]:
    """What the vectors of a space would be if the model's output map had another exponent."""
    own, other = network.output_map, OutputMap()
    other.load_state_dict(own.state_dict() | {"exponent": torch.tensor(exponent)})
    rows, counts = torch.tensor(space.context.context_embeddings), torch.tensor(space.context.counts)
    with torch.no_grad():
        back = torch.linalg.solve(own(rows, counts), other(rows, counts))
    return unit(vectors @ back.numpy())


def output_map(lab: Laboratory) -> list[OutputMapRow]:
    """All sets, all exponents."""
    network = lab.model.network
    if not isinstance(network, TwoStage):
        raise TypeError(f"Expected a one-way model, found {lab.model.config.name}.")
    found: dict[float, list[Float64[np.ndarray, " queries"]]] = {exponent: [] for exponent in EXPONENTS}
    for data in tqdm(lab.sets, desc="output map", unit="set"):
        space = lab.space(data.corpus.texts)
        queries, documents = space.queries(data.queries), space.documents(data.corpus.texts)
        for exponent, figures in found.items():
            mapped = [remapped(vectors, space, network, exponent) for vectors in (queries, documents)]
            figures.append(score(data, *mapped))
    return [row for exponent, figures in found.items() for row in _rows(lab.sets, exponent, figures, found[0.0])]


def _rows(
    sets: Sequence[RetrievalSet],
    exponent: float,
    figures: Sequence[Float64[np.ndarray, " queries"]],
    reference: Sequence[Float64[np.ndarray, " queries"]],
) -> list[OutputMapRow]:
    rows: list[OutputMapRow] = []
    for data, ours, theirs in zip(sets, figures, reference, strict=True):
        gain = difference([data], [ours], [theirs])
        rows.append(OutputMapRow(data.corpus.name, exponent, float(ours.mean()), gain.mean, *gain.queries))
    gain, mean = difference(sets, figures, reference), float(np.mean([each.mean() for each in figures]))
    return [*rows, OutputMapRow(MEAN, exponent, mean, gain.mean, *gain.queries)]


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write output-map.csv and output-map.svg."""
    rows = output_map(lab)
    return [write_table(output / "output-map.csv", rows), _plot(rows, output / "output-map.svg")]


def _plot(rows: Sequence[OutputMapRow], path: Path) -> Path:
    figure, axes = new_figure()
    for name in dict.fromkeys(row.corpus for row in rows):
        line = [row for row in rows if row.corpus == name]
        style = {"color": "black", "linewidth": 2, "label": MEAN} if name == MEAN else {"linewidth": 0.6}
        axes.plot([row.exponent for row in line], [100 * row.gain for row in line], **style)
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set(xlabel="exponent of the output map", ylabel="NDCG@10 × 100 less that without")
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
