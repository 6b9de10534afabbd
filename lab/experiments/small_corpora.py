"""Context from corpora smaller than a context, with and without the relevant documents in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from cde_rag.errors import CorpusError
from cde_rag.evaluation.encoding import without_relevant
from cde_rag_training.data.cuts import part
from lab.experiments.laboratory import Laboratory
from lab.experiments.result_tables import new_figure, write_table

SIZES = (25, 50, 100, 200, 400)  # documents of a corpus
QUERIES = 40  # of a corpus, at most; a fifth of its documents


class SmallRow(NamedTuple):
    """Result on one subset of a set.

    Attributes:
        corpus: The set.
        size: Target number of documents.
        documents: Actual number of documents; larger if parents would be split.
        own: NDCG@10, mean over queries, under the context of all its documents.
        without_relevant: NDCG@10 under a context without documents relevant to the evaluated queries.
        null: NDCG@10 without a context.
    """

    corpus: str
    size: int
    documents: int
    own: float
    without_relevant: float
    null: float


def small_corpora(lab: Laboratory) -> list[SmallRow]:
    """Evaluate subsets of every set, at each size that it has documents for."""
    rows: list[SmallRow] = []
    null = lab.null()
    for data in tqdm(lab.sets, desc="small-corpora", unit="set"):
        for size in SIZES:
            cut = part(data, documents=size, queries=min(QUERIES, size // 5))
            folds = without_relevant(cut)
            if len(data.corpus.texts) < size or folds is None:
                continue
            kept_out = np.zeros(len(cut.queries))
            for positions, texts in folds:
                kept_out[positions] = lab.space(texts).score(cut.select(positions))
            own = float(lab.space(cut.corpus.texts).score(cut).mean())
            rows.append(
                SmallRow(
                    data.corpus.name,
                    size,
                    len(cut.corpus.texts),
                    own,
                    float(kept_out.mean()),
                    float(null.score(cut).mean()),
                )
            )
    return rows


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write small-corpora.csv and small-corpora.svg.

    Raises:
        CorpusError: No set has 25 documents.
    """
    rows = small_corpora(lab)
    if not rows:
        raise CorpusError(f"Expected a set of {SIZES[0]} documents or more, found none. Name larger sets.")
    return [write_table(output / "small-corpora.csv", rows), _plot(rows, output / "small-corpora.svg")]


def _plot(rows: Sequence[SmallRow], path: Path) -> Path:
    figure, axes = new_figure()
    sizes = sorted({row.size for row in rows})
    for name in ("own", "without_relevant"):
        gains = [[100 * (getattr(row, name) - row.null) for row in rows if row.size == size] for size in sizes]
        (drawn,) = axes.plot(sizes, [float(np.mean(some)) for some in gains], marker="o", label=name.replace("_", " "))
        for size, some in zip(sizes, gains, strict=True):
            axes.scatter([size] * len(some), some, s=4, alpha=0.5, color=drawn.get_color())
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set(xscale="log", xlabel="documents of the corpus", ylabel="NDCG@10 × 100 less that without a context")
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
