"""Movement of vectors from one context to another, as numbers (paper figure 15 shows it for one text)."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64
from tqdm import tqdm

from lab.experiments.laboratory import Laboratory, following
from lab.experiments.result_tables import new_figure, write_table

NEIGHBOURS = 10


class MovementRow(NamedTuple):
    """One set, from its own context to another.

    Attributes:
        corpus: The set.
        to: "another seed" of its own corpus, "foreign" (the next set's context), or "null".
        documents: Mean cosine distance of a document's two vectors.
        queries: Likewise.
        neighbours_kept: Share of a document's ten nearest documents that stay so.
    """

    corpus: str
    to: str
    documents: float
    queries: float
    neighbours_kept: float


def movement(lab: Laboratory) -> list[MovementRow]:
    """Measure the three moves on every set."""
    rows: list[MovementRow] = []
    for data, other in tqdm(list(zip(lab.sets, following(lab.sets), strict=True)), desc="movement", unit="set"):
        own = lab.space(data.corpus.texts)
        targets = {
            "another seed": lab.space(data.corpus.texts, seed=lab.seed + 1),
            "foreign": lab.space(other.corpus.texts),
            "null": lab.null(),
        }
        documents, queries = own.documents(data.corpus.texts), own.queries(data.queries)
        nearest = _nearest(documents)
        for name, space in targets.items():
            moved = space.documents(data.corpus.texts)
            rows.append(
                MovementRow(
                    data.corpus.name,
                    name,
                    _distance(documents, moved),
                    _distance(queries, space.queries(data.queries)),
                    _kept(nearest, _nearest(moved)),
                )
            )
    return rows


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write movement.csv and movement.svg."""
    rows = movement(lab)
    return [write_table(output / "movement.csv", rows), _plot(rows, output / "movement.svg")]


def _distance(some: Float32[np.ndarray, "rows dim"], others: Float32[np.ndarray, "rows dim"]) -> float:
    return float(1 - (some * others).sum(axis=1).mean())


def _nearest(vectors: Float32[np.ndarray, "rows dim"]) -> Int64[np.ndarray, "rows neighbours"]:
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :NEIGHBOURS]


def _kept(before: Int64[np.ndarray, "rows neighbours"], after: Int64[np.ndarray, "rows neighbours"]) -> float:
    return float(np.mean([np.isin(row, other).mean() for row, other in zip(before, after, strict=True)]))


def _plot(rows: Sequence[MovementRow], path: Path) -> Path:
    names = list(dict.fromkeys(row.corpus for row in rows))
    figure, axes = new_figure(height=1.2 + 0.28 * len(names))
    for to in dict.fromkeys(row.to for row in rows):
        moved = [row for row in rows if row.to == to]
        axes.scatter([row.documents for row in moved], [names.index(row.corpus) for row in moved], s=14, label=to)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("mean cosine distance of documents from the own context to")
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
