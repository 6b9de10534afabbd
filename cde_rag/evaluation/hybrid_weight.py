"""Choice of the weight of hybrid search by judged queries, with its gain on queries that did not choose it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float64, Int64

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import query_blocks
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.search.fusion import WEIGHTS, Scored, fuse

GRID: Final = tuple(round(step * 0.05, 2) for step in range(21))  # weights of vectors; 0 is words alone
FEWEST: Final = 20  # queries that choose a weight
FOLDS: Final = 10
_DEPTH: Final = 10
_DEFAULT: Final = GRID.index(WEIGHTS["convex"])


@dataclass(frozen=True)
class WeightChoice:
    """The weight that judged queries choose.

    Attributes:
        weight: Chosen on all queries.
        queries: Number of queries.
        figures: Mean NDCG@10 at each weight of `GRID`, a fraction; 1 is vectors alone, 0 words alone.
        held_out: Mean NDCG@10 of queries at the weight that the others chose, in ten folds.
        default: Mean NDCG@10 at the default weight.
        gain: `held_out` less `default`, paired.
    """

    weight: float
    queries: int
    figures: Mapping[float, float]
    held_out: float
    default: float
    gain: Difference

    @property
    def is_sure(self) -> bool:
        """True if the interval of the gain is above zero."""
        return self.gain.queries[0] > 0


def choose_weight(
    vectors: Sequence[Scored], words: Sequence[Scored], judgments: Sequence[Mapping[str, int]], *, seed: int = 0
) -> WeightChoice:
    """Choose the weight of vectors in hybrid search by NDCG@10.

    Of the weights within a standard error of the best one, the one nearest to the default is chosen, so that few
    queries change little. The gain is estimated by cross-validation: queries are scored at the weight that the queries
    of the other folds chose. Queries with the same best document are in one fold.

    Args:
        vectors: The 100 best hits of each query by vectors, ids and scores.
        words: Likewise by words.
        judgments: Grades of the relevant documents of each query, by id; at least one each.
        seed: Random seed of the folds.

    Raises:
        CorpusError: Fewer than 20 queries.

    Source: Breiman et al. (1984), the one-standard-error rule; figures in docs/experiments/fusion.md.
    """
    if len(judgments) < FEWEST:
        raise CorpusError(
            f"Expected at least {FEWEST} judged queries to choose a weight, found {len(judgments)}. Judge more."
        )
    queries = list(zip(vectors, words, judgments, strict=True))
    scores = np.array([[_ndcg(*query, weight) for query in queries] for weight in GRID])
    blocks = query_blocks(judgments)
    held_out = _held_out(scores, _folds(blocks, seed))
    default = scores[_DEFAULT]
    return WeightChoice(
        weight=GRID[one_standard_error(scores)],
        queries=len(judgments),
        figures=dict(zip(GRID, scores.mean(axis=1).tolist(), strict=True)),
        held_out=float(held_out.mean()),
        default=float(default.mean()),
        gain=compare([PairedQueries(held_out - default, blocks)]),
    )


def _ndcg(vectors: Scored, words: Scored, judged: Mapping[str, int], weight: float) -> float:
    return ndcg([id_ for id_, _ in fuse(vectors, words, weight=weight)[:_DEPTH]], judged, _DEPTH)


def one_standard_error(scores: Float64[np.ndarray, "weights queries"]) -> int:
    """Return the place in `GRID` of the weight nearest to the default that is not surely worse than the best one.

    Args:
        scores: NDCG@10 of at least two queries at each weight.
    """
    lost = scores[scores.mean(axis=1).argmax()] - scores
    errors = lost.std(axis=1, ddof=1) / np.sqrt(lost.shape[1])
    near = np.flatnonzero(lost.mean(axis=1) <= errors)
    return int(near[np.abs(near - _DEFAULT).argmin()])


def _folds(blocks: Int64[np.ndarray, " queries"], seed: int) -> Int64[np.ndarray, " queries"]:
    """Return the number of each query's fold, the same for queries of one block."""
    order = np.random.default_rng(seed).permutation(int(blocks.max()) + 1)
    return (order % FOLDS)[blocks]


def _held_out(
    scores: Float64[np.ndarray, "weights queries"], folds: Int64[np.ndarray, " queries"]
) -> Float64[np.ndarray, " queries"]:
    """Return the score of each query at the weight that the queries of other folds choose."""
    found = np.empty(len(folds))
    for fold in np.unique(folds):
        inside = folds == fold
        others = scores[:, ~inside] if np.count_nonzero(~inside) > 1 else scores
        found[inside] = scores[one_standard_error(others)][inside]
    return found
