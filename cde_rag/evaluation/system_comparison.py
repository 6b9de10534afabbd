"""Comparison of systems by quality and cost: differences with intervals, and a sentence of advice."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int64

from cde_rag.errors import counted
from cde_rag.evaluation.costs import Cost
from cde_rag.evaluation.hybrid_weight import FEWEST
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare

DEFAULTS: Final = ("index", "parents_hybrid", "own_hybrid")  # the first of them that ran is what a user has anyway
REFERENCES: Final = ("minilm", "null", "bm25")  # the first of them that ran is what the others are compared with
TIE: Final = 0.02  # a smaller gain that is not sure decides nothing; a larger one is likely, sure or not
SAME_COST: Final = 1.25  # times of embedding closer than that are the same: so much they vary on a busy machine
_POWER: Final = ((1.96 + 0.84) / 1.96) ** 2  # to show a difference four times in five; 1 would be every other time
_MB: Final = 1e6


@dataclass(frozen=True, eq=False)
class SystemComparison:
    """Systems on the same sets of queries, with their costs.

    A system is surely better than another one if the 95 % interval of the paired difference is above 0, and there are
    20 queries or more (with fewer, the bootstrap's intervals are too narrow). With several sets the interval is that
    for unseen ones. The default stays unless another system is surely above it. Of those that are, or of all if no
    default ran, the system to take is the cheapest that the best one surpasses by less than two points, and not surely;
    of those with the same cost, the best. By sureness alone few questions would always take BM25.

    Attributes:
        metric: Heading of the scores.
        scores: For each set, each system's score of each query; fractions.
        blocks: For each set the block number of each query.
        costs: Cost of each system that a user can take, all sets together; others are compared, but not advised.
    """

    metric: str
    scores: Sequence[Mapping[str, Float64[np.ndarray, " queries"]]]
    blocks: Sequence[Int64[np.ndarray, " queries"]]
    costs: Mapping[str, Cost]

    @cached_property
    def systems(self) -> tuple[str, ...]:
        """Systems that ran on all sets."""
        return tuple(name for name in self.scores[0] if all(name in one for one in self.scores))

    @cached_property
    def queries(self) -> int:
        """Number of queries."""
        return sum(map(len, self.blocks))

    @property
    def is_enough(self) -> bool:
        """True if there are queries enough to be sure of anything."""
        return self.queries >= FEWEST

    @cached_property
    def reference(self) -> str:
        """The system that the others are compared with."""
        return next((name for name in REFERENCES if name in self.systems), self.systems[0])

    def mean(self, system: str) -> float:
        """Return the mean over sets of the mean over queries, a fraction."""
        return float(np.mean([one[system].mean() for one in self.scores]))

    def difference(self, system: str, other: str) -> Difference:
        """Return one system less another, with intervals."""
        pairs = zip(self.scores, self.blocks, strict=True)
        return compare([PairedQueries(one[system] - one[other], blocks) for one, blocks in pairs])

    def is_sure(self, found: Difference) -> bool:
        """Return True if a difference is surely above 0."""
        return self.is_enough and _interval(found)[0] > 0

    @cached_property
    def best(self) -> str:
        """The system with the highest mean, of those that can be taken; of several the cheapest."""
        return self._best_of(self._takeable)

    def _best_of(self, names: Sequence[str]) -> str:
        return max(names, key=lambda name: (self.mean(name), -self.costs[name].seconds))

    @cached_property
    def default(self) -> str | None:
        """The system that a user has who chooses nothing; None if it did not run."""
        return next((name for name in DEFAULTS if name in self._takeable), None)

    @cached_property
    def taken(self) -> str:
        """The system to take: the default, unless others are surely better; the cheapest of those that are as good."""
        names = self._takeable
        if (default := self.default) is not None:
            names = [one for one in names if one != default and self.is_sure(self.difference(one, default))]
            if not names:
                return default
        best = self._best_of(names)
        ties = [name for name in names if name == best or self._is_tie(self.difference(best, name))]
        cheapest = min(self.costs[name].seconds for name in ties)
        same = [name for name in ties if self.costs[name].seconds <= SAME_COST * cheapest]
        return max(same, key=self.mean)

    def _is_tie(self, found: Difference) -> bool:
        return found.mean < TIE and not self.is_sure(found)

    @property
    def _takeable(self) -> list[str]:
        return [name for name in self.systems if name in self.costs]

    def needed(self, found: Difference) -> int | None:
        """Return the queries that would show a difference, if it stays: four times in five; None if it is not positive.

        Rounded up to two digits; at least 20.
        """
        low, high = _interval(found)
        if found.mean <= 0:
            return None
        count = max(FEWEST, self.queries * ((high - low) / 2 / found.mean) ** 2 * _POWER)
        step = 10 ** max(0, math.floor(math.log10(count)) - 1)
        return math.ceil(count / step) * step

    @property
    def advice(self) -> str:
        """Sentence that names the system to take, and the price of the best one; empty if there is no choice."""
        if len(self._takeable) < 2:
            return ""
        if not self.is_enough:
            other = self.reference if self.best != self.reference else self._second
            lead = self.difference(self.best, other)
            more = "" if (count := self.needed(lead)) is None else f"; about {count:,} would show that"
            few = f"{counted(self.queries, 'question')} {'is' if self.queries == 1 else 'are'} too few to choose by"
            return f"{few}, {FEWEST} are the fewest: so far {self.best} leads {other} by {_points(lead)}{more}."
        other = self.reference if self.default in (None, self.taken) else self.default
        if self.taken == self.default:
            found = f"Keep {self.taken}, the default: nothing is surely better"
            if other == self.taken:
                return f"{found}{self._price}."
            found += "; it is"
        elif self.taken == other:
            return f"Take {self.taken}: nothing is surely better{self._price}."
        else:
            found = f"Take {self.taken}:"
        gain = self.difference(self.taken, other)
        if gain.mean < 0 and self.taken not in (self.best, self.default):  # no loss is a reason to take it
            return f"Take {self.taken}, about as good as the best and cheaper{self._price}."
        relation = "over" if gain.mean >= 0 else "against"
        return f"{found} {_points(gain)} {relation} {other}, {self._sureness(gain)}{self._price}."

    @property
    def _second(self) -> str:
        return max((name for name in self._takeable if name != self.best), key=self.mean)

    @property
    def _price(self) -> str:
        """Return the clause about the best system, if it is not the one to take."""
        if self.taken == self.best:
            return ""
        more = self.difference(self.best, self.taken)
        old, new = self.costs[self.taken].seconds, self.costs[self.best].seconds
        price = f"at {new / old:.1f} times the cost" if old > 0 else f"for {seconds(new)} s of embedding"
        return f"; {self.best} would add {_points(more)} {price}, {self._sureness(more)}"

    def _sureness(self, found: Difference) -> str:
        if self.is_sure(found):
            return "surely"
        count = self.needed(found)
        return "not surely" if count is None else f"not surely (about {count:,} questions would show it)"

    def rows(self) -> list[list[str]]:
        """Return a table for people: mean, difference to the reference with intervals, and costs."""
        several = len(self.scores) > 1
        heading = ["", self.metric, f"− {self.reference}", "95 % (queries)"]
        heading += [*(["95 % (sets, too)"] if several else []), "embed s", "vectors MB", "model MB"]
        found = [heading]
        for name in self.systems:
            cells = ["", "", *([""] if several else [])]
            if name != self.reference:
                one = self.difference(name, self.reference)
                cells = [f"{100 * one.mean:+.1f}", *(_ends(each) for each in (one.queries, one.sets) if each)]
            found.append([name, f"{100 * self.mean(name):.1f}", *cells, *_shown(self.costs.get(name))])
        return found

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; differences are fractions."""
        others = [name for name in self.systems if name != self.reference]
        differences = {name: self.difference(name, self.reference) for name in others}
        found: dict[str, Any] = {
            "metric": self.metric,
            "reference": self.reference,
            "differences": {name: {**asdict(one), "sure": self.is_sure(one)} for name, one in differences.items()},
            "costs": {name: asdict(cost) for name, cost in self.costs.items()},
            "advice": self.advice,
        }
        if not self.advice:
            return found
        more = self.difference(self.best, self.taken) if self.best != self.taken else None
        return {
            **found,
            "take": self.taken if self.is_enough else None,
            "best": self.best,
            "queries": self.queries,
            "queries_needed": None if more is None else self.needed(more),
        }


def _interval(found: Difference) -> tuple[float, float]:
    return found.sets or found.queries


def _ends(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:+.1f} … {100 * ends[1]:+.1f}"


def _points(found: Difference) -> str:
    return f"{100 * found.mean:+.1f} ({_ends(_interval(found))})"


def seconds(value: float) -> str:
    """Return seconds with two digits, or in full from 10 on."""
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


def _shown(cost: Cost | None) -> list[str]:
    if cost is None:
        return ["", "", ""]
    sizes = (f"{each / _MB:,.1f}" if each else "–" for each in (cost.vector_bytes, cost.model_bytes))
    return [seconds(cost.seconds) if cost.seconds else "–", *sizes]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as columns of equal width: the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    ]
