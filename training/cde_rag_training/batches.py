"""What one update sees: pairs of one source, a context they do not stand in, and the siblings of passages.

A batch is a pure function of the data, the seed and the update's number, so that a resumed run sees what an
uninterrupted one would have seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.siblings import choose_siblings
from cde_rag_training.filtering import DUPLICATE
from cde_rag_training.pairs import Pair, parents_of
from cde_rag_training.queries import KeywordQueries, sentence_and_rest, without_parent


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """What batches are made of. All from design §9 (ours), but for the sources named."""

    batch_size: int = 128  # pairs
    clustered_share: float = 0.7  # of a cluster batch that is from one cluster; the rest is from its domain
    smallest_context: int = 32  # context documents; their number is drawn log-uniformly
    largest_context: int = 512  # context documents, paper §5
    null_share: float = 0.2  # batches under the null context
    parents_share: float = 0.5  # batches made of several passages of each of some parents
    no_siblings_share: float = 0.25  # of the parents' batches, those without siblings
    lone_share: float = 0.1  # documents of a batch with siblings that are given none
    wrong_share: float = 0.05  # documents of a batch with siblings that are given another parent's
    passages_per_parent: tuple[int, int] = (3, 7)  # least and most in a batch
    nameless_share: float = 0.5  # queries that lose their parent's name
    sentence_share: float = 0.1  # queries that are a sentence of the document, which loses it
    keyword_share: float = 0.1  # queries that are a few words of the document
    source_exponent: float = 0.7  # α: a source is drawn with probability ∝ pairs^α (GTE §3.2)
    max_siblings: int = 16


@dataclass(frozen=True)
class Batch:
    """Pairs by their position in the data, and how they are shown.

    Attributes:
        positions: Of the pairs.
        queries: What asks; not always the pair's own query.
        documents: What answers; not always whole.
        context: Positions of the pairs whose documents are the context; empty under the null context.
        siblings: For each pair the positions of its document's siblings.
    """

    positions: list[int]
    queries: list[str]
    documents: list[str]
    context: list[int]
    siblings: list[list[int]]


class Batches:
    """Draws batches.

    Args:
        pairs: The training data.
        documents: Surrogate embeddings of the pairs' documents, unit norm.
        clusters: The cluster of each pair, inside its source.
        config: What batches are made of.
        seed: Of every draw.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        documents: Float32[np.ndarray, "pairs dim"],
        clusters: Int64[np.ndarray, " pairs"],
        config: BatchConfig,
        *,
        seed: int,
    ) -> None:
        self._pairs, self._vectors, self._config, self._seed = pairs, documents, config, seed
        self._keywords = KeywordQueries([pair.document for pair in pairs])
        self._sources = _groups([pair.source for pair in pairs])
        self._domains = _groups([pair.domain for pair in pairs])
        self._clusters = _groups([f"{pair.source} {cluster}" for pair, cluster in zip(pairs, clusters, strict=True)])
        self._cluster_of = [f"{pair.source} {cluster}" for pair, cluster in zip(pairs, clusters, strict=True)]
        self._parents = {parent: group for parent, group in parents_of(pairs).items() if len(group) > 1}
        self._place = {position: place for group in self._parents.values() for place, position in enumerate(group)}
        self._of_domain: dict[str, list[tuple[str, str]]] = {}
        for domain, parent in self._parents:
            self._of_domain.setdefault(domain, []).append((domain, parent))

    def draw(self, update: int) -> Batch:
        """The batch of one update."""
        random = np.random.default_rng([self._seed, update])
        config = self._config
        of_parents = random.random() < config.parents_share
        positions = self._passages(random) if of_parents else self._cluster(random)
        with_siblings = of_parents and random.random() >= config.no_siblings_share
        shown = [self._shown(position, random) for position in positions]
        return Batch(
            positions,
            [query for query, _ in shown],
            [document for _, document in shown],
            [] if random.random() < config.null_share else self._context(positions, random),
            [self._siblings(position, random) if with_siblings else [] for position in positions],
        )

    def _cluster(self, random: np.random.Generator) -> list[int]:
        config = self._config
        weights = np.array([len(group) for group in self._sources.values()], dtype=np.float64) ** config.source_exponent
        source = list(self._sources)[random.choice(len(weights), p=weights / weights.sum())]
        anchor = int(random.choice(self._sources[source]))
        near = random.permutation(self._clusters[self._cluster_of[anchor]]).tolist()
        domain = random.permutation(self._domains[self._pairs[anchor].domain]).tolist()
        whole = random.permutation(self._sources[source]).tolist()
        near = near[: round(config.clustered_share * config.batch_size)]
        return list(dict.fromkeys(near + domain + whole))[: config.batch_size]

    def _passages(self, random: np.random.Generator) -> list[int]:
        config = self._config
        domains = list(self._of_domain)
        sizes = np.array([sum(len(self._parents[parent]) for parent in self._of_domain[domain]) for domain in domains])
        weights = sizes.astype(np.float64) ** config.source_exponent
        first = domains[random.choice(len(domains), p=weights / weights.sum())]
        source = self._pairs[self._parents[self._of_domain[first][0]][0]].source
        others = [domain for domain in domains if domain != first and self._pairs[self._first(domain)].source == source]
        positions: list[int] = []
        for domain in [first, *random.permutation(others).tolist()]:
            for number in random.permutation(len(self._of_domain[domain])).tolist():
                group = self._parents[self._of_domain[domain][number]]
                least, most = config.passages_per_parent
                size = min(int(random.integers(least, most + 1)), len(group), config.batch_size - len(positions))
                positions += random.choice(group, size=size, replace=False).tolist()
                if len(positions) == config.batch_size:
                    return positions
        return positions

    def _first(self, domain: str) -> int:
        return self._parents[self._of_domain[domain][0]][0]

    def _context(self, positions: list[int], random: np.random.Generator) -> list[int]:
        """Documents of the batch's domain (or source, where that is small) but not the batch or its near-duplicates."""
        config = self._config
        low, high = np.log(config.smallest_context), np.log(config.largest_context)
        size = round(float(np.exp(random.uniform(low, high))))
        pair = self._pairs[positions[0]]
        pool = self._domains[pair.domain]
        if len(pool) < config.batch_size + size:
            pool = self._sources[pair.source]
        taken = set(positions)
        candidates = [
            position for position in random.permutation(pool)[: size + 2 * len(taken)].tolist() if position not in taken
        ]
        nearest = (self._vectors[candidates] @ self._vectors[positions].T).max(axis=1)
        return [position for position, near in zip(candidates, nearest.tolist(), strict=True) if near < DUPLICATE][
            :size
        ]

    def _siblings(self, position: int, random: np.random.Generator) -> list[int]:
        pair = self._pairs[position]
        group = self._parents.get((pair.domain, pair.parent))
        if group is None or random.random() < self._config.lone_share:
            return []
        if random.random() < self._config.wrong_share:
            others = self._of_domain[pair.domain]
            wrong = self._parents[others[int(random.integers(len(others)))]]
            return [other for other in wrong[: self._config.max_siblings] if other != position]
        chosen = choose_siblings(self._place[position], len(group), self._config.max_siblings)
        return [group[place] for place in chosen]

    def _shown(self, position: int, random: np.random.Generator) -> tuple[str, str]:
        pair, config = self._pairs[position], self._config
        kind = random.random()
        if kind < config.sentence_share and (split := sentence_and_rest(pair.document, random)):
            return split
        if kind > 1 - config.keyword_share and (query := self._keywords.draw(pair.document, random)):
            return query, pair.document
        if random.random() < config.nameless_share:
            return without_parent(pair.query, pair.parent), pair.document
        return pair.query, pair.document


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        groups.setdefault(name, []).append(position)
    return groups
