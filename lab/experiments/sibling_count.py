"""Effect of parent context: number of siblings, wrong siblings, and simple alternatives."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from tqdm import tqdm

from cde_rag.context.siblings import sibling_positions
from cde_rag.evaluation.baselines import MiniLM, baseline_rankings
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.metrics import ndcg
from cde_rag_training.data.retrieval_sets import with_parents
from lab.experiments.laboratory import DEPTH, Laboratory, Space, score
from lab.experiments.result_tables import new_figure, write_table

COUNTS = (0, 1, 2, 4, 8, 16, 32)  # siblings of a document, at most; those that the model reads
PLAIN = ("minilm", "siblings_mean", "neighbours", "late_chunking", "bm25")


class SiblingRow(NamedTuple):
    """One set and system.

    Attributes:
        corpus: The set.
        system: "siblings", "wrong siblings" (parents are shuffled), or a system of `evaluate`.
        siblings: Given to a document at most.
        ndcg: NDCG@10, mean over queries.
        gain: Less that of the same model without siblings.
        seconds: To embed all documents, sibling vectors included; 0 where it was not timed.
    """

    corpus: str
    system: str
    siblings: int
    ndcg: float
    gain: float
    seconds: float


def sibling_count(lab: Laboratory) -> list[SiblingRow]:
    """Evaluate all sets with parents.

    Raises:
        CorpusError: No set has parents.
        MissingExtraError: A dependency of the baselines is not installed.
    """
    embed = MiniLM(lab.model.device)
    counts = [count for count in COUNTS if count <= lab.model.config.max_siblings]
    rows: list[SiblingRow] = []
    for data in tqdm(with_parents(lab.sets), desc="siblings", unit="set"):
        space, parents = lab.space(data.corpus.texts), list(data.corpus.parents or ())
        wrong = [parents[place] for place in np.random.default_rng(lab.seed).permutation(len(parents))]
        found = [("siblings", count, *_given(space, data, parents, count)) for count in counts]
        found.append(("wrong siblings", counts[-1], *_given(space, data, wrong, counts[-1])))
        for system, rankings in baseline_rankings(data, PLAIN, embed):
            if system in PLAIN:
                judged = zip(rankings, data.judgments, strict=True)
                found.append((system, 0, np.array([ndcg(one, right, DEPTH) for one, right in judged]), 0.0))
        without = float(found[0][2].mean())
        rows += [
            SiblingRow(data.corpus.name, system, count, float(each.mean()), float(each.mean()) - without, seconds)
            for system, count, each, seconds in found
        ]
    return rows


def _given(
    space: Space, data: RetrievalSet, parents: Sequence[str | None], count: int
) -> tuple[Float64[np.ndarray, " queries"], float]:
    """Return per-query scores with `count` siblings, and seconds to embed all documents."""
    texts = data.corpus.texts
    positions = sibling_positions(parents, texts, count, rule=1) if count else [[] for _ in texts]
    start = time.perf_counter()
    vectors = space.embedder.embed_passages(texts, [[texts[other] for other in row] for row in positions]).vectors
    seconds = time.perf_counter() - start
    return score(data, space.queries(data.queries), vectors), seconds


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write siblings.csv and siblings.svg."""
    rows = sibling_count(lab)
    return [write_table(output / "siblings.csv", rows), _plot(rows, output / "siblings.svg")]


def _plot(rows: Sequence[SiblingRow], path: Path) -> Path:
    figure, axes = new_figure()
    for name in dict.fromkeys(row.corpus for row in rows):
        line = [row for row in rows if row.corpus == name and row.system == "siblings"]
        (drawn,) = axes.plot([row.siblings for row in line], [100 * row.gain for row in line], marker="o", label=name)
        (wrong,) = [row for row in rows if row.corpus == name and row.system == "wrong siblings"]
        axes.scatter([wrong.siblings], [100 * wrong.gain], marker="x", color=drawn.get_color())
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set(xlabel="siblings at most (×: of a wrong parent)", ylabel="NDCG@10 × 100 less that without")
    axes.legend(fontsize=7)
    figure.savefig(path)
    return path
