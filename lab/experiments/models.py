"""Comparison of models with plain MiniLM, BM25 and the first of them, with and without context and siblings."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from tqdm import tqdm

from cde_rag.context.siblings import sibling_positions
from cde_rag.evaluation import metrics
from cde_rag.evaluation.baselines import baseline_rankings
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag_training.clustering.surrogate import cached, minilm
from lab.experiments.laboratory import MEAN, Laboratory, Space, compared, score
from lab.experiments.result_tables import new_figure, write_table

PLAIN, WORDS = "minilm", "bm25"

Figures = list[Float64[np.ndarray, " queries"]]  # set by set


class ModelRow(NamedTuple):
    """Result of one model under one input on one set, or on the mean of all sets, against a reference.

    Attributes:
        corpus: The set, or "mean".
        model: As it is named in its folder, or "minilm" or "bm25".
        given: "context" (its corpus's, and siblings where documents have parents), "no siblings" (of these the context
            alone; sets without parents count as they are), "null", or "" of the other two. Of a two-way model, which
            reads no siblings, "foreign" (the context of the next set, if there are several) in place of "no siblings".
        ndcg: NDCG@10, mean over queries; of all sets their mean.
        against: Reference: "minilm", or the first model under its context.
        gain: NDCG@10 minus that of the reference.
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
        sets_low: Lower end where sets are drawn again too; of the mean only.
        sets_high: Upper end.
    """

    corpus: str
    model: str
    given: str
    ndcg: float
    against: str
    gain: float
    low: float
    high: float
    sets_low: float | None
    sets_high: float | None


def models(labs: Sequence[Laboratory]) -> list[ModelRow]:
    """Evaluate all models on all sets; each laboratory has another model and the same sets."""
    first = labs[0]
    plain = cached(minilm(max_length=256), "minilm-256", first.cache)
    reference = [score(data, plain(data.queries), plain(data.corpus.texts)) for data in first.sets]
    found = {(PLAIN, ""): reference, (WORDS, ""): [_by_words(data) for data in first.sets]}
    for lab in labs:
        found |= {(lab.model.config.name, given): each for given, each in readings(lab).items()}
    name = first.model.config.name
    references = {PLAIN: reference, name: found[name, "context"]}
    return [
        row
        for against, other in references.items()
        for (name, given), each in found.items()
        for row in _rows(first.sets, name, given, each, against, other)
    ]


def _by_words(data: RetrievalSet) -> Float64[np.ndarray, " queries"]:
    ((_, rankings),) = baseline_rankings(data, (), None)  # without an embedder there is no other
    return metrics.score(rankings, data.judgments)["ndcg@10"]


def readings(lab: Laboratory) -> dict[str, Figures]:
    """Return per-query scores by the model's input, named as in `ModelRow.given`."""
    null = lab.null()
    if lab.model.config.context_size is not None:  # a two-way model's alone is fixed
        return _of_two_way(lab, null)
    found: dict[str, Figures] = {"context": [], "no siblings": [], "null": []}
    for data in tqdm(lab.sets, desc=lab.model.config.name, unit="set"):
        own = lab.space(data.corpus.texts)
        found["no siblings"].append(own.score(data))
        found["context"].append(found["no siblings"][-1] if data.corpus.parents is None else _siblings(lab, own, data))
        found["null"].append(null.score(data))
    return found


def _of_two_way(lab: Laboratory, null: Space) -> dict[str, Figures]:
    spaces = [lab.space(data.corpus.texts) for data in lab.sets]
    inputs = {"context": spaces, "null": [null] * len(spaces)}
    if len(spaces) > 1:
        inputs["foreign"] = [*spaces[1:], spaces[0]]
    return {
        given: [space.score(data) for space, data in zip(some, lab.sets, strict=True)] for given, some in inputs.items()
    }


def _siblings(lab: Laboratory, space: Space, data: RetrievalSet) -> Float64[np.ndarray, " queries"]:
    texts = data.corpus.texts
    limit = lab.model.config.max_siblings
    positions = sibling_positions(data.corpus.parents or (), texts, limit, rule=1)
    vectors = space.embedder.embed_passages(texts, [[texts[other] for other in row] for row in positions]).vectors
    return score(data, space.queries(data.queries), vectors)


def _rows(
    sets: Sequence[RetrievalSet], name: str, given: str, figures: Figures, against: str, reference: Figures
) -> Iterator[ModelRow]:
    for corpus, ndcg, gain in compared(sets, figures, reference):
        sets_low, sets_high = gain.sets if gain.sets and corpus == MEAN else (None, None)
        yield ModelRow(corpus, name, given, ndcg, against, gain.mean, *gain.queries, sets_low, sets_high)


def run(labs: Sequence[Laboratory], output: Path) -> list[Path]:
    """Write models.csv and models.svg."""
    rows = models(labs)
    return [write_table(output / "models.csv", rows), _plot(rows, output / "models.svg")]


def _plot(rows: Sequence[ModelRow], path: Path) -> Path:
    corpora = list(dict.fromkeys(row.corpus for row in rows))
    names = [name for name in dict.fromkeys(row.model for row in rows) if name not in (PLAIN, WORDS)]
    figure, axes = new_figure(height=1.2 + 0.3 * len(corpora))
    for place, name in enumerate(names):
        chosen = [row for row in rows if (row.model, row.given, row.against) == (name, "context", PLAIN)]
        shift = 0.6 * ((place + 0.5) / len(names) - 0.5)
        heights = [corpora.index(row.corpus) + shift for row in chosen]
        ends = [[100 * (row.gain - row.low) for row in chosen], [100 * (row.high - row.gain) for row in chosen]]
        gains = [100 * row.gain for row in chosen]
        drawn = axes.errorbar(gains, heights, xerr=ends, fmt="o", markersize=3, linewidth=0.8, label=name)
        without = [row for row in rows if (row.model, row.given, row.against) == (name, "null", PLAIN)]
        axes.plot(
            [100 * row.gain for row in without],
            [corpora.index(row.corpus) + shift for row in without],
            linestyle="none", marker="o", markersize=3, markerfacecolor="none", color=drawn.lines[0].get_color(),
            label=f"{name}, no context",
        )  # fmt: skip
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(corpora)), corpora, fontsize=7)
    axes.set_xlabel("NDCG@10 × 100 less that of all-MiniLM-L6-v2 (95 %)")
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
