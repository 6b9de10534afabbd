"""Choice of the weight of hybrid search by judged queries, with its gain on queries that did not choose it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float64, Int64

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import JudgedQueries, query_blocks
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.search.fusion import CANDIDATES, WEIGHTS, Ranking, Scored, fuse
from cde_rag.search.searcher import Searcher

GRID: Final = tuple(round(step * 0.05, 2) for step in range(21))  # weights of vectors; 0 is words alone
FEWEST: Final = 20  # queries that choose a weight
FOLDS: Final = 10
_DEPTH: Final = 10
_DEFAULT: Final = WEIGHTS["convex"]


@dataclass(frozen=True)
class WeightChoice:
    """The weight that judged queries choose.

    Attributes:
        weight: Chosen on all queries.
        current_weight: The weight that the collection has.
        queries: Number of queries.
        figures: Mean NDCG@10 at each weight of `GRID`, a fraction; 1 is vectors alone, 0 words alone.
        held_out: Mean NDCG@10 of queries at the weight that the others chose, in ten folds.
        current: Mean NDCG@10 at the current weight.
        gain: `held_out` less `current`, paired.
    """

    weight: float
    current_weight: float
    queries: int
    figures: Mapping[float, float]
    held_out: float
    current: float
    gain: Difference

    @property
    def is_sure(self) -> bool:
        """True if the interval of the gain is above zero."""
        return self.gain.queries[0] > 0

    @property
    def is_worth_storing(self) -> bool:
        """True if the chosen weight is another than the current one, and its gain is sure."""
        return self.is_sure and self.weight != self.current_weight


def tuned_weight(
    searcher: Callable[[Ranking], Searcher], judged: JudgedQueries, *, current: float = _DEFAULT
) -> WeightChoice:
    """Search a collection by vectors and by words, and choose the weight of hybrid search as `choose_weight` does.

    Args:
        searcher: `Collection.searcher` of the collection.
        judged: Queries with answers in the collection, such as `read_judged_queries(folder)`.
        current: The weight that the collection has: `Collection.inspect().hybrid_weight`.

    Raises:
        CorpusError: Fewer than 20 queries.

    Examples:
        >>> choice = tuned_weight(papers.searcher, read_judged_queries("judged"))  # doctest: +SKIP
        >>> papers.store.update_settings({"hybrid_weight": choice.weight})  # doctest: +SKIP
    """
    vectors, words = (
        [[(hit.id, hit.score) for hit in hits] for hits in one.search_batch(judged.queries, CANDIDATES)]
        for one in (searcher("vectors"), searcher("bm25"))
    )
    return choose_weight(vectors, words, judged.judgments, current=current)


def choose_weight(
    vectors: Sequence[Scored],
    words: Sequence[Scored],
    judgments: Sequence[Mapping[str, int]],
    *,
    current: float = _DEFAULT,
    seed: int = 0,
) -> WeightChoice:
    """Choose the weight of vectors in hybrid search by NDCG@10.

    Of the weights within a standard error of the best one, the one nearest to the current one is chosen, so that few
    queries change little. The gain is estimated by cross-validation: queries are scored at the weight that the queries
    of the other folds chose. Queries with the same best document are in one fold.

    Args:
        vectors: The 100 best hits of each query by vectors, ids and scores.
        words: Likewise by words.
        judgments: Grades of the relevant documents of each query, by id; at least one each.
        current: The weight that is in use, from 0 to 1; by default 0.65.
        seed: Random seed of the folds.

    Raises:
        CorpusError: Fewer than 20 queries.

    Source: Breiman et al. (1984), the one-standard-error rule; figures in lab/pages/fusion.md.
    """
    if len(judgments) < FEWEST:
        raise CorpusError(
            f"Expected at least {FEWEST} judged queries to choose a weight, found {len(judgments)}. Judge more."
        )
    queries = list(zip(vectors, words, judgments, strict=True))
    scores = np.array([[_ndcg(*query, weight) for query in queries] for weight in GRID])
    blocks = query_blocks(judgments)
    held_out = _held_out(scores, _folds(blocks, seed), current)
    now = np.array([_ndcg(*query, current) for query in queries])
    return WeightChoice(
        weight=GRID[one_standard_error(scores, current)],
        current_weight=current,
        queries=len(judgments),
        figures=dict(zip(GRID, scores.mean(axis=1).tolist(), strict=True)),
        held_out=float(held_out.mean()),
        current=float(now.mean()),
        gain=compare([PairedQueries(held_out - now, blocks)]),
    )


def _ndcg(vectors: Scored, words: Scored, judged: Mapping[str, int], weight: float) -> float:
    return ndcg([id_ for id_, _ in fuse(vectors, words, weight=weight)[:_DEPTH]], judged, _DEPTH)


def one_standard_error(scores: Float64[np.ndarray, "weights queries"], current: float = _DEFAULT) -> int:
    """Return the place in `GRID` of the weight nearest to the current one that is not surely worse than the best one.

    Args:
        scores: NDCG@10 of at least two queries at each weight.
        current: The weight that is in use.
    """
    lost = scores[scores.mean(axis=1).argmax()] - scores
    errors = lost.std(axis=1, ddof=1) / np.sqrt(lost.shape[1])
    near = np.flatnonzero(lost.mean(axis=1) <= errors)
    return int(near[np.abs(np.array(GRID)[near] - current).argmin()])


def _folds(blocks: Int64[np.ndarray, " queries"], seed: int) -> Int64[np.ndarray, " queries"]:
    """Return the number of each query's fold, the same for queries of one block."""
    order = np.random.default_rng(seed).permutation(int(blocks.max()) + 1)
    return (order % FOLDS)[blocks]


def _held_out(
    scores: Float64[np.ndarray, "weights queries"], folds: Int64[np.ndarray, " queries"], current: float
) -> Float64[np.ndarray, " queries"]:
    """Return the score of each query at the weight that the queries of other folds choose."""
    found = np.empty(len(folds))
    for fold in np.unique(folds):
        inside = folds == fold
        others = scores[:, ~inside] if np.count_nonzero(~inside) > 1 else scores
        found[inside] = scores[one_standard_error(others, current)][inside]
    return found
