"""Curve of a distillation: losses and development NDCG@10 over the number of texts, as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32
from torch import Tensor

from cde_rag._files import write_durably
from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import rank_vectors
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.networks.stages import Stages

DEPTH = 10
CURVE = "curve.csv"


class CurvePoint(NamedTuple):
    """One row of the curve.

    Attributes:
        texts: Texts trained on, repetitions included.
        updates: Updates done.
        hours: Time spent, evaluation and the teacher included.
        loss: Mean squared distance to the targets since the last row; NaN before the first update.
        cosine: Mean cosine to the targets since the last row.
        centred_cosine: The same without the targets' mean in both.
        ndcg: NDCG@10 of each development set under the null context, in the order of the sets.
    """

    texts: int
    updates: int
    hours: float
    loss: float
    cosine: float
    centred_cosine: float
    ndcg: tuple[float, ...]


class DevelopmentSets:
    """Tokenized development sets, evaluated under the null context and without siblings.

    Args:
        sets: With different names.
        tokenizer: Of the student.
        max_length: Maximum tokens of a text.
    """

    def __init__(self, sets: Sequence[RetrievalSet], tokenizer: TextTokenizer, max_length: int) -> None:
        self.sets = sets
        self.names = [one.corpus.name for one in sets]
        self._rows = [
            tuple([tokens.ids for tokens in tokenizer(texts, max_length)] for texts in (one.queries, one.corpus.texts))
            for one in sets
        ]

    def ndcg(self, stages: Stages, given: Sequence[Tensor], *, mini_batch_size: int) -> tuple[float, ...]:
        """Return NDCG@10 of each set, the mean over its queries.

        Args:
            stages: Network in evaluation mode.
            given: Its input under the null context.
            mini_batch_size: Texts per forward pass.
        """
        found: list[float] = []
        for data, (queries, documents) in zip(self.sets, self._rows, strict=True):
            asked, answers = (
                stages.embed(rows, role, given, mini_batch_size=mini_batch_size).cpu().numpy()
                for role, rows in ((QUERY, queries), (DOCUMENT, documents))
            )
            found.append(mean_ndcg(data, asked, answers))
        return tuple(found)


def mean_ndcg(
    data: RetrievalSet, queries: Float32[np.ndarray, "queries dim"], documents: Float32[np.ndarray, "documents dim"]
) -> float:
    """Return NDCG@10, the mean over a set's queries."""
    rankings = rank_vectors(queries, documents, data.corpus.ids, data.query_ids)
    return float(np.mean([ndcg(one, judged, DEPTH) for one, judged in zip(rankings, data.judgments, strict=True)]))


def write_curve(path: Path, names: Sequence[str], points: Sequence[CurvePoint]) -> None:
    """Write the curve as CSV, with the mean over sets before the sets."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([*CurvePoint._fields[:-1], "mean", *names])
    for point in points:
        mean = [float(np.mean(point.ndcg))] if names else [float("nan")]
        figures = [point.hours, point.loss, point.cosine, point.centred_cosine, *mean, *point.ndcg]
        writer.writerow([point.texts, point.updates, *(f"{value:.6g}" for value in figures)])
    write_durably(path, table.getvalue().encode())


def read_curve(path: Path, names: Sequence[str], *, updates: int) -> list[CurvePoint]:
    """Read the curve up to a number of updates; empty if there is no file yet.

    Raises:
        CorpusError: The file is damaged or of other sets.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    try:
        if rows[0] != [*CurvePoint._fields[:-1], "mean", *names]:
            raise ValueError(f"the columns {', '.join(rows[0])}")
        points = [
            CurvePoint(
                texts=int(row[0]),
                updates=int(row[1]),
                hours=float(row[2]),
                loss=float(row[3]),
                cosine=float(row[4]),
                centred_cosine=float(row[5]),
                ndcg=tuple(map(float, row[7:])),
            )
            for row in rows[1:]
        ]
    except (ValueError, IndexError, TypeError) as error:
        raise CorpusError(
            f"{path}: expected a curve over {', '.join(names) or 'no sets'}, found: {error}. Name the same development "
            "sets, or choose another folder."
        ) from error
    return [point for point in points if point.updates <= updates]
