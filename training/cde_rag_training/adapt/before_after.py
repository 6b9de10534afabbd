"""The honest comparison of an adapted model to doing nothing: the same documents, queries that training never saw."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64

from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import SmallContextWarning, TruncationWarning, counted
from cde_rag.evaluation.baselines import MiniLM, baseline_rankings
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.metrics import score
from cde_rag.evaluation.ranking import Ranking, rank_hybrid, rank_vectors
from cde_rag.evaluation.report import MAIN_METRIC
from cde_rag.models import CDEModel
from cde_rag.search.fusion import Scored

Scores = Float64[np.ndarray, " queries"]


def model_scores(model: CDEModel, data: RetrievalSet) -> Scores:
    """Return NDCG@10 of each query under the corpus's own context, with siblings if documents have parents.

    Args:
        model: Bound to a context of the corpus, seed 0.
        data: Documents and queries.
    """
    queries, documents = _embedded(model, data)
    return _scored(rank_vectors(queries, documents, data.corpus.ids, data.query_ids), data)


class SearchScores(NamedTuple):
    """Scores of a model's two kinds of search; NDCG@10 of each query."""

    vectors: Scores
    hybrid: Scores


def search_scores(model: CDEModel, data: RetrievalSet, words: Sequence[Scored]) -> SearchScores:
    """Return the scores by vectors, as `model_scores` has them, and in hybrid search.

    Args:
        model: Bound to a context of the corpus, seed 0.
        data: Documents and queries.
        words: Hits by BM25 for each query (`word_hits`).
    """
    queries, documents = _embedded(model, data)
    names = data.corpus.ids, data.query_ids
    return SearchScores(
        _scored(rank_vectors(queries, documents, *names), data),
        _scored(rank_hybrid(queries, documents, words, *names), data),
    )


def _scored(rankings: Sequence[Ranking], data: RetrievalSet) -> Scores:
    return score(rankings, data.judgments)[MAIN_METRIC]


def _embedded(
    model: CDEModel, data: RetrievalSet
) -> tuple[Float32[np.ndarray, "queries dim"], Float32[np.ndarray, "documents dim"]]:
    parents = data.corpus.parents if model.config.max_siblings else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallContextWarning)
        warnings.simplefilter("ignore", TruncationWarning)
        embedder = ContextualEmbedder.from_corpus(data.corpus.texts, model=model)
        documents = embedder.embed_documents(data.corpus.texts, parents=parents)
        return embedder.embed_queries(data.queries), documents


def bm25_scores(data: RetrievalSet) -> Scores:
    """Return NDCG@10 of each query for BM25.

    Raises:
        MissingExtraError: bm25s is not installed.
    """
    ((_, rankings),) = baseline_rankings(data, {"bm25"}, None)
    return score(rankings, data.judgments)[MAIN_METRIC]


def minilm_scores(data: RetrievalSet) -> Scores:
    """Return NDCG@10 of each query for all-MiniLM-L6-v2.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
    """
    found = dict(baseline_rankings(data, {"minilm"}, MiniLM()))
    return score(found["minilm"], data.judgments)[MAIN_METRIC]


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """Comparison of the start model, the adapted model and BM25 on the test part; NDCG@10 as fractions.

    Attributes:
        start: Name of the start model.
        documents: Number of documents in the corpus.
        queries: Test queries of each kind.
        ndcg: `start`, `adapted` and `bm25`; `start hybrid` and `adapted hybrid` if hybrid search was compared too.
        by_kind: The same for the queries of each kind.
        shares: Share of the training → NDCG@10 on the development part, which the share was chosen by.
        share: The one chosen.
        found: `start`, `adapted` and so on → share of the queries with a right document among the first ten hits.
        difference: Adapted minus start, by vectors, with the interval over queries drawn again.
        hybrid: The same in hybrid search; None if that was not compared.
    """

    start: str
    documents: int
    queries: Mapping[str, int]
    ndcg: Mapping[str, float]
    by_kind: Mapping[str, Mapping[str, float]]
    shares: Mapping[float, float]
    share: float
    found: Mapping[str, float]
    difference: Difference
    hybrid: Difference | None = None

    @property
    def better(self) -> bool:
        """True if the lower end of the difference's interval is above zero, and hybrid search finds no less."""
        return self.difference.queries[0] > 0 and (self.hybrid is None or self.hybrid.mean >= 0)

    @property
    def verdict(self) -> str:
        """One sentence: take the adapted model, or keep your own."""
        low, high = (100 * end for end in self.difference.queries)
        found = f"{100 * self.difference.mean:+.1f} points, 95 % interval {low:+.1f} … {high:+.1f}"
        if self.better:
            return f"The adapted model is better on queries that it has not seen: {found}."
        reason = "it is worse" if self.difference.queries[1] < 0 else "the difference may be chance"
        if self.hybrid is not None and self.difference.queries[0] > 0:
            reason = f"hybrid search finds less, {100 * self.hybrid.mean:+.1f} points"
        return f"Keep your model ({self.start}): {reason} ({found})."

    @property
    def outcome(self) -> str:
        """One sentence: hits that a user gets with the adapted model and with the start."""
        new, old, words = (round(100 * self.found[name]) for name in ("adapted", "start", "bm25"))
        told = (
            f"Of 100 such queries {new} find a right passage among the first ten hits by vectors with the adapted "
            f"model, {old} with {self.start}, {words} by BM25"
        )
        if self.hybrid is None:
            return f"{told}."
        new, old = (round(100 * self.found[f"{name} hybrid"]) for name in ("adapted", "start"))
        return f"{told}; in hybrid search, which is the default, {new} and {old}."

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        shares = {f"{share:g}": found for share, found in self.shares.items()}
        told = {"better": self.better, "verdict": self.verdict, "outcome": self.outcome}
        return asdict(self) | {"shares": shares, **told}

    def __str__(self) -> str:
        kinds = list(self.queries) if len(self.queries) > 1 else []
        counts = counted(sum(self.queries.values()), "query")
        of_kinds = ", ".join(f"{kind} {self.queries[kind]:,}" for kind in kinds)
        names = {"start": f"doing nothing: {self.start}", "adapted": f"adapted (share {self.share:g})", "bm25": "BM25"}
        if self.hybrid is not None:
            names |= {"start hybrid": "hybrid, doing nothing", "adapted hybrid": "hybrid, adapted"}
        width = max(map(len, names.values()))
        lines = [
            f"NDCG@10 × 100 over {counted(self.documents, 'document')}, on {counts} kept apart from training"
            + (f": {of_kinds}" if kinds else ""),
            f"{'':{width}}  {'all':>6}" + "".join(f"  {kind:>8}" for kind in kinds),
        ]
        for system, name in names.items():
            cells = "".join(f"  {100 * self.by_kind[kind][system]:8.1f}" for kind in kinds)
            lines.append(f"{name:{width}}  {100 * self.ndcg[system]:6.1f}{cells}")
        return "\n".join([*lines, self.verdict, self.outcome])


def compared(
    data: RetrievalSet,
    kinds: Sequence[str],
    scores: Mapping[str, Scores],
    *,
    start: str,
    shares: Mapping[float, float],
    share: float,
) -> BeforeAfter:
    """Compare the systems' scores on the test queries, overall and by kind of query.

    Args:
        data: The test part.
        kinds: Kind of each query.
        scores: Scores of `start`, `adapted` and `bm25`; of `start hybrid` and `adapted hybrid`, too, or of neither.
        start: Name of the start model.
        shares: Share of the training → NDCG@10 on the development part.
        share: The one chosen.
    """
    of_kind = np.array(kinds)

    def difference(ours: str, theirs: str) -> Difference:
        return compare([PairedQueries(scores[ours] - scores[theirs], data.blocks)])

    rows: dict[str, Int64[np.ndarray, " some"]] = {kind: np.flatnonzero(of_kind == kind) for kind in sorted(set(kinds))}
    return BeforeAfter(
        start=start,
        documents=len(data.corpus.ids),
        queries={kind: len(positions) for kind, positions in rows.items()},
        ndcg={system: float(found.mean()) for system, found in scores.items()},
        by_kind={
            kind: {system: float(found[positions].mean()) for system, found in scores.items()}
            for kind, positions in rows.items()
        },
        shares=shares,
        share=share,
        found={system: float((each > 0).mean()) for system, each in scores.items()},  # NDCG@10 of 0: none of the ten
        difference=difference("adapted", "start"),
        hybrid=difference("adapted hybrid", "start hybrid") if "start hybrid" in scores else None,
    )
