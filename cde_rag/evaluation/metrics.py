"""Retrieval metrics of one ranking, with trec_eval's definitions, which are those of BEIR.

A ranking is a list of document ids, best first. Judgments map each relevant document to its grade, a whole number above
zero; a query has at least one. Every metric is a fraction in [0, 1].
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

Judgments = Mapping[str, int]


def ndcg(ranking: Sequence[str], judgments: Judgments, k: int) -> float:
    """Compute normalised discounted cumulative gain: sum of grade / log2(rank + 1), divided by that of the best order.

    Source: Järvelin & Kekäläinen (2002) with linear gain, as trec_eval's `ndcg_cut`.

    Examples:
        >>> round(ndcg(["b", "a"], {"a": 1}, k=10), 4)
        0.6309
    """
    gains = [judgments.get(document, 0) for document in ranking[:k]]
    best = sorted(judgments.values(), reverse=True)[:k]
    return _discounted(gains) / _discounted(best)


def recall(ranking: Sequence[str], judgments: Judgments, k: int) -> float:
    """Return the share of the relevant documents that are among the first k."""
    return len(judgments.keys() & set(ranking[:k])) / len(judgments)


def hit(ranking: Sequence[str], judgments: Judgments, k: int) -> float:
    """Return 1 if a relevant document is among the first k, else 0."""
    return float(not judgments.keys().isdisjoint(ranking[:k]))


def reciprocal_rank(ranking: Sequence[str], judgments: Judgments, k: int) -> float:
    """Return one over the rank of the first relevant document, 0 if none is among the first k; its mean is MRR@k."""
    return next((1 / rank for rank, document in enumerate(ranking[:k], start=1) if document in judgments), 0.0)


METRICS: dict[str, tuple[Callable[[Sequence[str], Judgments, int], float], int]] = {  # with their k
    "ndcg@10": (ndcg, 10),
    "recall@100": (recall, 100),
    "hit@5": (hit, 5),
    "mrr@10": (reciprocal_rank, 10),
}


def score(
    rankings: Sequence[Sequence[str]], judgments: Sequence[Judgments]
) -> dict[str, Float64[np.ndarray, " queries"]]:
    """Compute every metric of every query's ranking."""
    return {
        name: np.array([metric(ranking, judged, k) for ranking, judged in zip(rankings, judgments, strict=True)])
        for name, (metric, k) in METRICS.items()
    }


def _discounted(gains: Sequence[int]) -> float:
    return math.fsum(gain / math.log2(place + 2) for place, gain in enumerate(gains))
