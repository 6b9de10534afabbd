"""Effect of the choice of context documents: seeds, sampling strategies, few exemplars, means of the corpus."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64
from tqdm import tqdm

from cde_rag.errors import require
from cde_rag.evaluation.beir import RetrievalSet
from lab.experiments.laboratory import CONTEXT_SIZE, Laboratory, Space, compared_runs
from lab.experiments.result_tables import new_figure, write_table

SEEDS = range(5)
SOME, FEW = 64, 8  # documents


class ChoiceRow(NamedTuple):
    """One set, or the mean of all, under one way to choose.

    Attributes:
        corpus: The set, or "mean".
        choice: How the context's rows were chosen.
        seeds: How many contexts were chosen so.
        ndcg: NDCG@10, mean over queries and seeds; of all sets their mean.
        spread: Standard deviation over seeds (ddof 0).
        gain: Less that without a context.
        low: Lower end of the gain's 95 % interval (queries drawn again, seeds averaged).
        high: Upper end.
    """

    corpus: str
    choice: str
    seeds: int
    ndcg: float
    spread: float
    gain: float
    low: float
    high: float


def context_choice(lab: Laboratory) -> list[ChoiceRow]:
    """Evaluate every choice of context on every set."""
    null = lab.null()
    found: dict[str, list[list[Float64[np.ndarray, " queries"]]]] = {}  # set by set, of each context
    without: list[Float64[np.ndarray, " queries"]] = []
    for data in tqdm(lab.sets, desc="context-choice", unit="set"):
        without.append(null.score(data))
        for choice, spaces in _spaces(lab, data):
            found.setdefault(choice, []).append([space.score(data) for space in spaces])
    return [
        ChoiceRow(corpus, choice, len(figures[0]), ndcg, spread, gain.mean, *gain.queries)
        for choice, figures in found.items()
        for corpus, ndcg, spread, gain in compared_runs(lab.sets, list(zip(*figures, strict=True)), without)
    ]


def _spaces(lab: Laboratory, data: RetrievalSet) -> Iterator[tuple[str, list[Space]]]:
    texts = data.corpus.texts
    for size in (CONTEXT_SIZE, SOME, FEW):
        yield f"random {size}", [lab.space(texts, size=size, seed=seed) for seed in SEEDS]
    yield f"clusters {SOME}", [lab.space(texts, size=SOME, seed=seed, strategy="clusters") for seed in SEEDS]
    vectors = lab.first_stage(list(dict.fromkeys(texts)))
    for size in (CONTEXT_SIZE, SOME):
        yield f"means {size}", [lab.space_of(_means(vectors, size, lab.seed), name="means")]


def _means(vectors: Float32[np.ndarray, "documents dim"], count: int, seed: int) -> Float32[np.ndarray, "means dim"]:
    """Return unit k-means centroids of the corpus, or the vectors themselves if there are at most `count`."""
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
    names, choices = list(dict.fromkeys(row.corpus for row in rows)), list(dict.fromkeys(row.choice for row in rows))
    figure, axes = new_figure(height=1.2 + 0.4 * len(names))
    for place, choice in enumerate(choices):
        chosen = [row for row in rows if row.choice == choice]
        axes.errorbar(
            [100 * row.gain for row in chosen],
            [names.index(row.corpus) + 0.12 * (place - (len(choices) - 1) / 2) for row in chosen],
            xerr=[100 * row.spread for row in chosen],
            fmt="o",
            markersize=3,
            linewidth=0.8,
            label=choice,
        )
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("NDCG@10 × 100 less that of none; bars: deviation over seeds")
    figure.legend(loc="outside upper center", ncols=3, fontsize=7)
    figure.savefig(path)
    return path
