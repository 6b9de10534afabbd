"""At query time: are the hundred best a better context for scoring themselves?"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag_training.experiments.laboratory import Laboratory, difference, score
from cde_rag_training.experiments.tables import new_figure, write_table

CANDIDATES = 100  # documents
QUERIES = 25  # of a set: each costs as much as a hundred documents


class PassRow(NamedTuple):
    """One query.

    Attributes:
        corpus: Its set.
        query: Its id.
        first: NDCG@10 of the hundred best under the corpus's context.
        second: Of the same documents, under the context that they are themselves.
    """

    corpus: str
    query: str
    first: float
    second: float


def second_pass(lab: Laboratory) -> list[PassRow]:
    """The first 25 queries of every set."""
    rows: list[PassRow] = []
    for data in tqdm(lab.sets, desc="second-pass", unit="set"):
        space = lab.space(data.corpus.texts)
        documents = space.documents(data.corpus.texts)
        for place in range(min(QUERIES, len(data.queries))):
            one = data.select([place])
            query = space.queries(one.queries)
            best = np.argsort(-(documents @ query[0]), kind="stable")[:CANDIDATES]
            narrow = _of_documents(one, best.tolist())
            first = float(score(narrow, query, documents[best])[0])
            second = float(lab.space(narrow.corpus.texts, size=CANDIDATES).score(narrow)[0])
            rows.append(PassRow(data.corpus.name, data.query_ids[place], first, second))
    return rows


def _of_documents(data: RetrievalSet, rows: Sequence[int]) -> RetrievalSet:
    ids, texts = ([column[row] for row in rows] for column in (data.corpus.ids, data.corpus.texts))
    corpus = Corpus(name=data.corpus.name, ids=tuple(ids), texts=tuple(texts))
    return RetrievalSet(corpus, data.query_ids, data.queries, data.judgments)


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write second-pass.csv and second-pass.svg."""
    rows = second_pass(lab)
    return [write_table(output / "second-pass.csv", rows), _plot(lab, rows, output / "second-pass.svg")]


def _plot(lab: Laboratory, rows: Sequence[PassRow], path: Path) -> Path:
    figure, axes = new_figure(height=1.2 + 0.28 * len(lab.sets))
    for place, data in enumerate(lab.sets):
        of_set = [row for row in rows if row.corpus == data.corpus.name]
        asked = data.select(range(len(of_set)))
        gain = difference(
            [asked], [np.array([row.second for row in of_set])], [np.array([row.first for row in of_set])]
        )
        axes.plot([100 * end for end in gain.queries], [place, place], color="grey")
        axes.scatter([100 * gain.mean], [place], color="black", s=14)
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(lab.sets)), [data.corpus.name for data in lab.sets], fontsize=7)
    axes.set_xlabel("NDCG@10 × 100 of the second pass less that of the first (95 %)")
    figure.savefig(path)
    return path
