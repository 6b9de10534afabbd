"""At query time: are the hundred best a better context for scoring themselves?"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64
from tqdm import tqdm

from cde_rag.evaluation.beir import Corpus, RetrievalSet
from lab.experiments.laboratory import Laboratory, Space, compared, score
from lab.experiments.result_tables import new_figure, write_table

CANDIDATES = 100  # documents
QUERIES = 25  # of a set: each costs as much as a hundred documents


class PassRow(NamedTuple):
    """Result on one set, or on the mean of all sets.

    Attributes:
        corpus: The set, or "mean".
        queries: Number of queries evaluated; for all sets their sum.
        first: NDCG@10 of the hundred best under the corpus's context, mean over queries; of all sets their mean.
        second: NDCG@10 of the same documents, under the context that they form themselves.
        gain: `second` minus `first`.
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
        sets_low: Lower end where sets are drawn again too; of the mean only.
        sets_high: Upper end.
    """

    corpus: str
    queries: int
    first: float
    second: float
    gain: float
    low: float
    high: float
    sets_low: float | None
    sets_high: float | None


def second_pass(lab: Laboratory) -> list[PassRow]:
    """Evaluate the first 25 queries of every set."""
    asked: list[RetrievalSet] = []
    passes: list[Float64[np.ndarray, "2 queries"]] = []
    for data in tqdm(lab.sets, desc="second-pass", unit="set"):
        some = data.select(range(min(QUERIES, len(data.queries))))
        asked.append(some)
        space = lab.space(data.corpus.texts)
        documents = space.documents(data.corpus.texts)
        ones = [some.select([place]) for place in range(len(some.queries))]
        passes.append(np.array([_passes(lab, space, documents, one) for one in ones]).T)
    firsts, seconds = [first for first, _ in passes], [second for _, second in passes]
    counts = [len(some.queries) for some in asked]
    return [
        PassRow(corpus, count, second - gain.mean, second, gain.mean, *gain.queries, *(gain.sets or (None, None)))
        for count, (corpus, second, gain) in zip([*counts, sum(counts)], compared(asked, seconds, firsts), strict=True)
    ]


def _passes(
    lab: Laboratory, space: Space, documents: Float32[np.ndarray, "documents dim"], one: RetrievalSet
) -> tuple[float, float]:
    query = space.queries(one.queries)
    best = np.argsort(-(documents @ query[0]), kind="stable")[:CANDIDATES]
    narrow = _of_documents(one, best.tolist())
    again = lab.space(narrow.corpus.texts, size=CANDIDATES)
    return float(score(narrow, query, documents[best])[0]), float(again.score(narrow)[0])


def _of_documents(data: RetrievalSet, rows: Sequence[int]) -> RetrievalSet:
    ids, texts = ([column[row] for row in rows] for column in (data.corpus.ids, data.corpus.texts))
    corpus = Corpus(name=data.corpus.name, ids=tuple(ids), texts=tuple(texts))
    return RetrievalSet(corpus, data.query_ids, data.queries, data.judgments)


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write second-pass.csv and second-pass.svg."""
    rows = second_pass(lab)
    return [write_table(output / "second-pass.csv", rows), _plot(rows, output / "second-pass.svg")]


def _plot(rows: Sequence[PassRow], path: Path) -> Path:
    figure, axes = new_figure(height=1.2 + 0.28 * len(rows))
    for place, row in enumerate(rows):
        axes.plot([100 * row.low, 100 * row.high], [place, place], color="grey")
        axes.scatter([100 * row.gain], [place], color="black", s=14)
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(rows)), [row.corpus for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("NDCG@10 × 100 of the second pass less that of the first (95 %)")
    figure.savefig(path)
    return path
