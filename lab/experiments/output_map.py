"""Retrieval quality by the output map's exponent, which shortens directions that a corpus's documents share."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64
from tqdm import tqdm

from cde_rag.embedders.mixing import unit
from cde_rag.model.context_path import OutputMap
from cde_rag.model.two_stage import TwoStage
from lab.experiments.laboratory import MEAN, Laboratory, Space, compared, following, score
from lab.experiments.result_tables import new_figure, write_table

EXPONENTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


class OutputMapRow(NamedTuple):
    """Result of one exponent on one set, or on the mean of all sets.

    Attributes:
        corpus: The set, or "mean".
        map: Source of the second moments: "own", or "foreign" (the next set's context; attention keeps its own).
        exponent: Exponent of the map, in place of the model's; 0 is no map.
        ndcg: NDCG@10, mean over queries, without siblings; of all sets their mean.
        gain: Less that of exponent 0.
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
    """

    corpus: str
    map: str
    exponent: float
    ndcg: float
    gain: float
    low: float
    high: float


def remapped(
    vectors: Float32[np.ndarray, "texts dim"], space: Space, network: TwoStage, exponent: float, *, of: Space
) -> Float32[np.ndarray, "texts dim"]:
    """Return a space's vectors under another exponent, or under the output map of another space's context."""
    own, other = network.output_map, OutputMap()
    other.load_state_dict(own.state_dict() | {"exponent": torch.tensor(exponent)})
    with torch.no_grad():
        back = torch.linalg.solve(network.turned(own(*_rows_of(space))), network.turned(other(*_rows_of(of))))
    return unit(vectors @ back.numpy())


def _rows_of(space: Space) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(space.context.context_embeddings), torch.tensor(space.context.counts)


def output_map(lab: Laboratory) -> list[OutputMapRow]:
    """Evaluate all exponents on all sets."""
    network = lab.model.network
    if not isinstance(network, TwoStage):
        raise TypeError(f"Expected a one-way model, found {lab.model.config.name}.")
    found: dict[tuple[str, float], list[Float64[np.ndarray, " queries"]]] = {}
    for data, other in tqdm(list(zip(lab.sets, following(lab.sets), strict=True)), desc="output map", unit="set"):
        space, foreign = (lab.space(each.corpus.texts) for each in (data, other))
        both = np.concatenate([space.queries(data.queries), space.documents(data.corpus.texts)])
        for exponent in EXPONENTS:
            for name, of in (("own", space), ("foreign", foreign)):
                queries, documents = np.split(remapped(both, space, network, exponent, of=of), [len(data.queries)])
                found.setdefault((name, exponent), []).append(score(data, queries, documents))
    return [
        OutputMapRow(corpus, name, exponent, ndcg, gain.mean, *gain.queries)
        for (name, exponent), figures in found.items()
        for corpus, ndcg, gain in compared(lab.sets, figures, found["own", 0.0])
    ]


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write output-map.csv and output-map.svg."""
    rows = output_map(lab)
    return [write_table(output / "output-map.csv", rows), _plot(rows, output / "output-map.svg")]


def _plot(rows: Sequence[OutputMapRow], path: Path) -> Path:
    figure, axes = new_figure(width=7.5)
    for name in dict.fromkeys(row.corpus for row in rows):
        line = [row for row in rows if (row.corpus, row.map) == (name, "own")]
        style = {"color": "black", "linewidth": 2} if name == MEAN else {"linewidth": 0.8}
        axes.plot([row.exponent for row in line], [100 * row.gain for row in line], label=name, **style)
    foreign = [row for row in rows if (row.corpus, row.map) == (MEAN, "foreign")]
    style = {"color": "black", "linestyle": "--", "label": "mean, another corpus's map"}
    axes.plot([row.exponent for row in foreign], [100 * row.gain for row in foreign], **style)
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set(xlabel="exponent of the output map", ylabel="NDCG@10 × 100 less that without")
    figure.legend(fontsize=7, loc="outside right")
    figure.savefig(path)
    return path
