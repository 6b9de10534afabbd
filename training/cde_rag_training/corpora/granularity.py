"""Corpora of varying granularity, from a cluster to all of a source."""

from dataclasses import astuple, dataclass

import numpy as np
from jaxtyping import Bool, Int64

from cde_rag_training.corpora.groups import Groups
from cde_rag_training.data.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class GranularityConfig:
    """Shares of batches whose corpus is of each kind. All ours, design §9."""

    cluster: float = 0.3  # of about 512 pairs, the finest that is prepared
    wide_cluster: float = 0.2  # of about 4 096 pairs, the coarsest that is prepared
    domain: float = 0.2
    domains: float = 0.15  # two or more of a source's, not all; the source where it has only two
    source: float = 0.15

    def __post_init__(self) -> None:
        """Refuse shares that are no distribution."""
        if min(astuple(self)) < 0 or abs(sum(astuple(self)) - 1) > 1e-6:
            raise ValueError(f"Expected shares of 0 or more whose sum is 1, found {self}.")


@dataclass(frozen=True, eq=False)
class TrainingCorpus:
    """Pool of pairs from which negatives and context of one batch are drawn.

    Attributes:
        name: Its kind and which.
        source: Code of the source that it lies in.
        codes: What its pairs have in common is one of these …
        column: … in this column of the data.
        rings: Positions of its pairs, then of wider corpora around it, up to the source.
    """

    name: str
    source: int
    codes: Int64[np.ndarray, " codes"]
    column: Int64[np.ndarray, " pairs"]
    rings: tuple[Int64[np.ndarray, " _"], ...]

    def holds(self, pairs: Int64[np.ndarray, " some"]) -> Bool[np.ndarray, " some"]:
        """Return a mask of the pairs that belong to it."""
        return np.isin(self.column[pairs], self.codes)


class CorpusGenerator:
    """Draws corpora.

    Args:
        prepared: The data.
        config: How often there is which kind.
    """

    def __init__(self, prepared: Prepared, config: GranularityConfig) -> None:
        self._shares = np.array(astuple(config)) / sum(astuple(config))
        self._prepared = prepared
        self._columns = {
            "cluster": np.ascontiguousarray(prepared.clusters[:, 0]),
            "wide cluster": np.ascontiguousarray(prepared.clusters[:, -1]),
            "domain": np.asarray(prepared.domains),
            "source": np.asarray(prepared.sources),
        }
        self._groups = {name: Groups(column) for name, column in self._columns.items()}
        source_of = np.full(len(prepared.domain_names), -1)
        source_of[self._columns["domain"]] = self._columns["source"]
        self._domains_of = Groups(source_of)

    def cluster_of(self, pair: int) -> Int64[np.ndarray, " group"]:
        """Return the pairs of a pair's cluster, at the finest prepared level."""
        return self._around(pair, "cluster")

    def around(self, pair: int, random: np.random.Generator) -> TrainingCorpus:
        """Draw a corpus that contains the pair.

        Args:
            pair: Its position.
            random: Draws the kind, and which further domains.
        """
        kind = str(random.choice(["cluster", "wide cluster", "domain", "domains", "source"], p=self._shares))
        if kind == "domains":
            return self._domains(pair, random)
        column = self._columns[kind]
        code, source = int(column[pair]), int(self._columns["source"][pair])
        name = f"{kind} {code} of {self._prepared.source_names[source]}"
        if kind == "domain":
            name = f"domain {self._prepared.domain_names[code]} of {self._prepared.source_names[source]}"
        elif kind == "source":
            name = f"source {self._prepared.source_names[source]}"
        wider = {
            "cluster": ("wide cluster", "source"),
            "wide cluster": ("source",),
            "domain": ("source",),
            "source": (),
        }
        rings = tuple(self._around(pair, name) for name in (kind, *wider[kind]))
        return TrainingCorpus(name, source, np.array([code]), column, rings)

    def _around(self, pair: int, kind: str) -> Int64[np.ndarray, " group"]:
        return self._groups[kind].of(int(self._columns[kind][pair]))

    def _domains(self, pair: int, random: np.random.Generator) -> TrainingCorpus:
        own, source = int(self._columns["domain"][pair]), int(self._columns["source"][pair])
        whole, all_of_them = self._around(pair, "source"), self._domains_of.of(source)
        others = all_of_them[all_of_them != own]
        if len(others) < 2:
            name = f"source {self._prepared.source_names[source]}"
            return TrainingCorpus(name, source, np.array([source]), self._columns["source"], (whole,))
        chosen = random.choice(others, size=int(random.integers(1, len(others))), replace=False)
        codes = np.concatenate([[own], chosen])
        names = ", ".join(self._prepared.domain_names[code] for code in codes)
        name = f"domains {names} of {self._prepared.source_names[source]}"
        ring = np.concatenate([self._groups["domain"].of(int(code)) for code in codes])
        return TrainingCorpus(name, source, codes, self._columns["domain"], (ring, whole))
