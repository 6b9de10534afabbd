"""Does it matter which documents a context is made of? Seeds, strategies, few exemplars, means of the whole corpus."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag.errors import require
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag_training.experiments.laboratory import CONTEXT_SIZE, Laboratory, Space
from cde_rag_training.experiments.tables import new_figure, write_table

SEEDS = range(5)
FEW = 8  # documents


class ChoiceRow(NamedTuple):
    """One set under one context.

    Attributes:
        corpus: The set.
        choice: How the context's rows were chosen.
        seed: Of the choice.
        ndcg: NDCG@10, mean over queries.
        gain: Less that without a context.
    """

    corpus: str
    choice: str
    seed: int
    ndcg: float
    gain: float


def context_choice(lab: Laboratory) -> list[ChoiceRow]:
    """All sets under all choices."""
    null = lab.null()
    rows: list[ChoiceRow] = []
    for data in tqdm(lab.sets, desc="context-choice", unit="set"):
        without = float(null.score(data).mean())
        for choice, seed, space in _spaces(lab, data):
            found = float(space.score(data).mean())
            rows.append(ChoiceRow(data.corpus.name, choice, seed, found, found - without))
    return rows


def _spaces(lab: Laboratory, data: RetrievalSet) -> Iterator[tuple[str, int, Space]]:
    texts = data.corpus.texts
    for seed in SEEDS:
        yield "random 512", seed, lab.space(texts, seed=seed)
        yield f"random {FEW}", seed, lab.space(texts, size=FEW, seed=seed)
        yield "clusters 64", seed, lab.space(texts, size=64, seed=seed, strategy="clusters")
    vectors = lab.first_stage(list(dict.fromkeys(texts)))
    yield "means 512", lab.seed, lab.space_of(_means(vectors, CONTEXT_SIZE, lab.seed), name="means")
    yield "means 64", lab.seed, lab.space_of(_means(vectors, 64, lab.seed), name="means")


def _means(vectors: Float32[np.ndarray, "documents dim"], count: int, seed: int) -> Float32[np.ndarray, "means dim"]:
    """Unit means of k-means' clusters over the whole corpus; the vectors themselves where there are no more."""
    if len(vectors) <= count:
        return vectors
    cluster: Any = require("sklearn.cluster", "train")
    fitted = cluster.MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=1024).fit(vectors)
    means = fitted.cluster_centers_.astype(np.float32)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write context-choice.csv and context-choice.svg."""
    rows = context_choice(lab)
    return [write_table(output / "context-choice.csv", rows), _plot(rows, output / "context-choice.svg")]


def _plot(rows: Sequence[ChoiceRow], path: Path) -> Path:
    names = list(dict.fromkeys(row.corpus for row in rows))
    figure, axes = new_figure(height=1.2 + 0.28 * len(names))
    for choice in dict.fromkeys(row.choice for row in rows):
        chosen = [row for row in rows if row.choice == choice]
        axes.scatter(
            [100 * row.gain for row in chosen], [names.index(row.corpus) for row in chosen], s=12, label=choice
        )
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("NDCG@10 × 100 less that without a context")
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
