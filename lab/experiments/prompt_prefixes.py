"""Retrieval quality of embeddings truncated to their first dimensions, compared with plain MiniLM truncated alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from tqdm import tqdm

from cde_rag.embedders.mixing import unit
from cde_rag_training.clustering.surrogate import cached, minilm
from lab.experiments.laboratory import MEAN, Laboratory, compared, score
from lab.experiments.models import PLAIN
from lab.experiments.result_tables import new_figure, write_table

SHARES = (1, 3 / 4, 2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 12)  # of the dimensions


class PrefixRow(NamedTuple):
    """One set, or the mean of all, one model and one number of dimensions.

    Attributes:
        corpus: The set, or "mean".
        model: As it is named in its folder, given its corpus's context without siblings, or "minilm".
        dims: Dimensions of the embeddings, the first ones; rows are brought to unit norm again.
        ndcg: NDCG@10, mean over queries; of all sets their mean.
        kept: Share of the NDCG@10 with all dimensions; 0 if that is 0.
        gain: Less the NDCG@10 with all dimensions.
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
    """

    corpus: str
    model: str
    dims: int
    ndcg: float
    kept: float
    gain: float
    low: float
    high: float


def prefixes(lab: Laboratory) -> list[PrefixRow]:
    """Evaluate all sets, from all dimensions down to a twelfth of them."""
    plain = cached(minilm(max_length=256), "minilm-256", lab.cache)
    found: dict[tuple[str, int], list[Float64[np.ndarray, " queries"]]] = {}
    for data in tqdm(lab.sets, desc="prefixes", unit="set"):
        space = lab.space(data.corpus.texts)
        for name, embed_queries, embed_documents in (
            (lab.model.config.name, space.queries, space.documents),
            (PLAIN, plain, plain),
        ):
            queries, documents = embed_queries(data.queries), embed_documents(data.corpus.texts)
            for dims in (round(share * queries.shape[1]) for share in SHARES):
                cut = score(data, unit(queries[:, :dims]), unit(documents[:, :dims]))
                found.setdefault((name, dims), []).append(cut)
    whole = {name: figures for (name, _), figures in reversed(found.items())}  # the first of each model has all
    return [
        PrefixRow(corpus, name, dims, ndcg, ndcg / (ndcg - gain.mean or 1), gain.mean, *gain.queries)
        for (name, dims), figures in found.items()
        for corpus, ndcg, gain in compared(lab.sets, figures, whole[name])
    ]


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write prefixes.csv and prefixes.svg."""
    rows = prefixes(lab)
    return [write_table(output / "prefixes.csv", rows), _plot(rows, output / "prefixes.svg")]


def _plot(rows: Sequence[PrefixRow], path: Path) -> Path:
    figure, axes = new_figure()
    for name in dict.fromkeys(row.model for row in rows):
        line = [row for row in rows if (row.corpus, row.model) == (MEAN, name)]
        axes.plot([row.dims for row in line], [100 * row.kept for row in line], marker="o", label=name)
    axes.axhline(96, color="grey", linewidth=0.5, linestyle=":")
    axes.set(xlabel="dimensions", ylabel="% of the NDCG@10 with all of them")
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
