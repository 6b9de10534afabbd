"""Results of an evaluation: metrics per set, means over sets, intervals; as JSON and as a table for people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float64, Int64

from cde_rag.errors import counted
from cde_rag.evaluation.costs import Cost
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.metrics import METRICS
from cde_rag.evaluation.system_comparison import SystemComparison, table

SYSTEMS = {  # in the order of the table
    "own": "the corpus's own context",
    "own_without_relevant": "own, the relevant documents kept out of the context; for corpora of at most two contexts",
    "null": "no context",
    "foreign": "the context of another corpus",
    "parents": "own, each document given its siblings (weight 0.3 if the model is plain); for corpora with parents",
    "bm25": "BM25",
    "minilm": "all-MiniLM-L6-v2",
    "centred": "minilm, less the corpus's mean vector",
    "whitened": "minilm, mildly whitened by the corpus",
    "hybrid": "minilm and the words of a collection (BM25), fused as Collection.hybrid does",
    "own_hybrid": "own and the words of a collection, fused alike",
    "parents_hybrid": "parents and the words of a collection, fused alike; for corpora with parents",
    "headers": "own, each document with its parent's name in front; for corpora with parents",
    "headers_hybrid": "headers and the words of such a collection, fused alike; for corpora with parents",
    "siblings_mean": "minilm with 0.3 × the siblings' mean vector; for corpora with parents",
    "lead": "minilm with 0.5 × the vector of its parent's first passage; for corpora with parents",
    "whitened_lead": "the same of whitened; for corpora with parents",
    "neighbours": "minilm, each document with the texts before and after it (256 tokens); for corpora with parents",
    "late_chunking": "minilm, the documents of a parent read together (512 tokens at once); for corpora with parents",
}
MAIN_METRIC = "ndcg@10"
_Found = TypeVar("_Found")
SATURATED = frozenset({"pubmedqa", "xquad_en", "limit_small"})  # near 100 % or synthetic: they would hide the others
COMPARED = (
    ("own", "null"),
    ("own", "foreign"),
    ("own", "minilm"),
    ("own", "hybrid"),
    ("own", "centred"),
    ("own", "whitened"),
    ("own_hybrid", "own"),
    ("own_hybrid", "bm25"),
    ("own_hybrid", "hybrid"),
    ("own_without_relevant", "own"),
    ("parents", "own"),
    ("parents", "minilm"),
    ("parents", "hybrid"),
    ("parents", "siblings_mean"),
    ("parents", "lead"),
    ("parents", "whitened_lead"),
    ("parents", "neighbours"),
    ("parents", "late_chunking"),
    ("parents_hybrid", "parents"),
    ("parents_hybrid", "bm25"),
    ("parents_hybrid", "hybrid"),
    ("parents_hybrid", "own_hybrid"),
    ("headers", "own"),
    ("headers_hybrid", "own_hybrid"),
    ("headers_hybrid", "parents_hybrid"),
    ("siblings_mean", "minilm"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SetResult:
    """Results on one set.

    Attributes:
        name: Name of the set.
        documents: Number of documents with a text.
        passages: Number of embedded texts; more than documents if long ones were split.
        blank_documents: Number of documents left out, since they have neither title nor text.
        truncated_passages: Number of passages longer than the contextual model's limit.
        truncated_queries: Number of queries longer than that limit.
        context_documents: Number of documents in the own context.
        missing_documents: Number of judged documents that the corpus lacks; they count as never found.
        blank_queries: Number of judged queries left out, since their text is blank.
        foreign_corpus: Name of the corpus of the `foreign` context; None if that did not run.
        query_ids: Ids of the evaluated queries.
        blocks: Block number of each query; queries of one block share their best relevant document.
        scores: System → metric → one score per query, averaged over its contexts.
        costs: Cost of each system that a user can take.
    """

    name: str
    documents: int
    passages: int
    blank_documents: int
    truncated_passages: int
    truncated_queries: int
    context_documents: int
    missing_documents: int
    blank_queries: int
    foreign_corpus: str | None
    query_ids: tuple[str, ...]
    blocks: Int64[np.ndarray, " queries"]
    scores: Mapping[str, Mapping[str, Float64[np.ndarray, " queries"]]]
    costs: Mapping[str, Cost] = field(default_factory=dict[str, Cost])

    def mean(self, system: str, metric: str = MAIN_METRIC) -> float:
        """Return the mean over queries, a fraction."""
        return float(self.scores[system][metric].mean())

    def paired(self, system: str, other: str) -> PairedQueries | None:
        """Return NDCG@10 of one system minus another's, query by query; None if one of them did not run."""
        if not {system, other} <= self.scores.keys():
            return None
        return PairedQueries(self.scores[system][MAIN_METRIC] - self.scores[other][MAIN_METRIC], self.blocks)

    @cached_property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """Differences of the pairs in `COMPARED` that ran on this set."""
        return _differences([self])

    def to_json(self) -> dict[str, Any]:
        """Return counts, means and intervals as a JSON object, without single queries."""
        return {
            "documents": self.documents,
            "passages": self.passages,
            "queries": len(self.query_ids),
            "blank_documents": self.blank_documents,
            "truncated_passages": self.truncated_passages,
            "truncated_queries": self.truncated_queries,
            "context_documents": self.context_documents,
            "missing_documents": self.missing_documents,
            "blank_queries": self.blank_queries,
            "foreign_corpus": self.foreign_corpus,
            **{metric: {system: self.mean(system, metric) for system in self.scores} for metric in METRICS},
            "intervals": _intervals(self.differences),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Results on all sets. `str(evaluation)` is a table for people.

    Attributes:
        model: Exact name of the contextual model.
        context_size: Number of context documents requested.
        seeds: Random seeds of the contexts.
        sets: One result per set, in the order given.
    """

    model: str
    context_size: int
    seeds: tuple[int, ...]
    sets: tuple[SetResult, ...]

    @property
    def counted(self) -> tuple[SetResult, ...]:
        """The sets that means and intervals are over: all but the saturated ones, unless there are no others."""
        return tuple(one for one in self.sets if one.name not in SATURATED) or self.sets

    @property
    def systems(self) -> tuple[str, ...]:
        """Those that ran on any set, in the order of `SYSTEMS`, and those of further models."""
        ran = dict.fromkeys(name for one in self.sets for name in one.scores)
        return (*(name for name in SYSTEMS if name in ran), *(name for name in ran if name not in SYSTEMS))

    @cached_property
    def comparison(self) -> SystemComparison:
        """The systems that ran on all counted sets by NDCG@10, with their costs and advice."""
        ran = [name for name in self.systems if all(name in one.scores for one in self.counted)]
        costs = [{name: one.costs[name] for name in ran if name in one.costs} for one in self.counted]
        return SystemComparison(
            metric="NDCG@10",
            scores=[{name: one.scores[name][MAIN_METRIC] for name in ran} for one in self.counted],
            blocks=[one.blocks for one in self.counted],
            costs={name: sum((one[name] for one in costs), Cost()) for name in costs[0]},
        )

    def with_model(self, name: str, other: "Evaluation") -> "Evaluation":
        """Return the evaluation with the systems of another model on the same sets and queries.

        Args:
            name: Of the other model; its systems are named `"own --model NAME"`.
            other: Evaluation of that model.
        """

        def named(found: Mapping[str, _Found]) -> dict[str, _Found]:
            return {f"{system} --model {name}": each for system, each in found.items()}

        pairs = zip(self.sets, other.sets, strict=True)
        sets = [
            replace(one, scores={**one.scores, **named(more.scores)}, costs={**one.costs, **named(more.costs)})
            for one, more in pairs
        ]
        return replace(self, sets=tuple(sets))

    def mean(self, system: str, metric: str = MAIN_METRIC) -> float | None:
        """Return the mean over the counted sets on which the system ran, a fraction; None if it ran on none."""
        means = [one.mean(system, metric) for one in self.counted if system in one.scores]
        return float(np.mean(means)) if means else None

    def difference(self, system: str, other: str) -> Difference | None:
        """Return NDCG@10 of one system minus another's over the counted sets on which both ran; None if on none."""
        return _difference(self.counted, system, other)

    @cached_property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """Differences of the pairs in `COMPARED` that ran together on some counted set."""
        return _differences(self.counted)

    @property
    def foreign_corpus(self) -> str | None:
        """Corpus of the `foreign` context, or "the next set" if sets differ; None if it did not run."""
        names = {one.foreign_corpus for one in self.sets}
        return names.pop() if len(names) == 1 else "the next set"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; all metrics are fractions. Means are over the counted sets on which a system ran."""
        return {
            **{metric: self._means(metric) for metric in METRICS},
            "intervals": _intervals(self.differences),
            "comparison": self.comparison.to_json(),
            "foreign_corpus": self.foreign_corpus,
            "model": self.model,
            "context_size": self.context_size,
            "seeds": list(self.seeds),
            "sets": {one.name: one.to_json() for one in self.sets},
            "saturated": [one.name for one in self._apart],
        }

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        smaller = any(one.context_documents < self.context_size for one in self.sets)
        size = f"{'up to ' if smaller else ''}{counted(self.context_size, 'context document')}"
        name = f" · {self.sets[0].name}" if len(self.sets) == 1 else ""
        lines = [f"NDCG@10 × 100{name} · {self.model} · {size} · seeds {seeds}"]
        if len(self.sets) > 1:
            lines += [*table([["", *self.systems], *self._rows()]), ""]
        lines += table(self.comparison.rows())
        if self.differences:
            headings = ["difference", "mean", "95 % (queries)", "95 % (sets)"]
            pairs = [[" − ".join(pair), *described(found)] for pair, found in self.differences.items()]
            columns = len(headings) if any(found.sets for found in self.differences.values()) else len(headings) - 1
            lines += ["", *table([row[:columns] for row in (headings, *pairs)])]
        if self.foreign_corpus is not None:
            lines += ["", f"foreign context: {self.foreign_corpus}"]
        for one in self.sets:
            if one.truncated_passages:
                cut = f"{one.truncated_passages} of {one.passages} texts were cut"
                lines.append(f"{one.name}: {cut}; with at most 600 characters a passage few are (--max-characters)")
            if one.blank_queries:
                lines.append(f"{one.name}: blank judged queries, left out: {one.blank_queries}")
            if one.missing_documents:
                lines.append(f"{one.name}: judged documents that the corpus lacks: {one.missing_documents}")
        return "\n".join([*lines, *(["", self.comparison.advice] if self.comparison.advice else [])])

    @property
    def _apart(self) -> list[SetResult]:
        return [one for one in self.sets if one not in self.counted]

    def _means(self, metric: str) -> dict[str, float]:
        means = {system: self.mean(system, metric) for system in self.systems}
        return {system: mean for system, mean in means.items() if mean is not None}

    def _rows(self) -> list[list[str]]:
        """Return the table's rows: counted sets, means of the systems that ran on all of several, other sets."""
        means = (
            self.mean(system) if all(system in one.scores for one in self.counted) else None for system in self.systems
        )
        rows = [self._row(one) for one in self.counted]
        if len(self.counted) > 1:
            rows.append(["mean", *map(_percent, means)])
        return rows + [["(apart)"]] + [self._row(one) for one in self._apart] if self._apart else rows

    def _row(self, one: SetResult) -> list[str]:
        figures = (one.mean(system) if system in one.scores else None for system in self.systems)
        return [one.name, *map(_percent, figures)]


def _difference(sets: Sequence[SetResult], system: str, other: str) -> Difference | None:
    pairs = (one.paired(system, other) for one in sets)
    told = [pair for pair in pairs if pair is not None]
    return compare(told) if told else None


def _differences(sets: Sequence[SetResult]) -> dict[tuple[str, str], Difference]:
    found = {pair: _difference(sets, *pair) for pair in COMPARED}
    return {pair: difference for pair, difference in found.items() if difference is not None}


def _intervals(differences: Mapping[tuple[str, str], Difference]) -> dict[str, Any]:
    return {"-".join(pair): asdict(difference) for pair, difference in differences.items()}


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.1f}"


def described(difference: Difference) -> list[str]:
    """Return mean and intervals of a difference in percent, for a table."""
    intervals = (difference.queries, difference.sets)
    return [
        f"{100 * difference.mean:+.2f}",
        *("" if ends is None else f"{100 * ends[0]:+.2f} … {100 * ends[1]:+.2f}" for ends in intervals),
    ]
