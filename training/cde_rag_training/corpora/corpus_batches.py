"""Batches from corpora of varying granularity: negatives, context and siblings from the same small or large corpus."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64

from cde_rag.errors import CorpusError
from cde_rag_training.corpora.batch import Batch, hard_negatives_of
from cde_rag_training.corpora.batch_contexts import ContextConfig, Contexts
from cde_rag_training.corpora.granularity import CorpusGenerator, GranularityConfig, TrainingCorpus
from cde_rag_training.corpora.groups import Groups
from cde_rag_training.corpora.parent_batches import ParentConfig, Parents
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import TransformationConfig, draw_transformation
from cde_rag_training.data.views import ViewConfig, Views


@dataclass(frozen=True, kw_only=True)
class CorporaConfig:
    """Configuration of corpora and of the batches drawn from them."""

    batch_size: int = 512  # pairs                                                         paper table 1
    source_exponent: float = 0.5  # α: a source is drawn with probability ∝ pairs^α        GTE §3.4
    clustered_share: float = 0.7  # of a batch whose corpus is wider than a cluster, from `anchors` clusters    ours
    anchors: int = 4  # clusters that this share comes from in equal parts                 ours
    hard_negatives: int = 1  # of each pair, at most                                       the paper's code
    granularity: GranularityConfig = field(default_factory=GranularityConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    parents: ParentConfig = field(default_factory=ParentConfig)
    transformations: TransformationConfig = field(default_factory=TransformationConfig)

    def __post_init__(self) -> None:
        """Refuse numbers that no batch can be made of."""
        if min(self.batch_size, self.anchors) < 1 or self.hard_negatives < 0 or not 0 <= self.clustered_share <= 1:
            raise ValueError(
                "Expected batch_size and anchors of at least 1, hard_negatives of at least 0 and a "
                f"clustered_share in 0 … 1, found {self.batch_size}, {self.anchors}, {self.hard_negatives} and "
                f"{self.clustered_share}."
            )


class Corpora:
    """Sampler of batches. A batch is a pure function of the data, the config, the seed and the update's number.

    A batch has a corpus: the cluster, wide cluster, domain, domains or source around a pair that is drawn. Either it is
    made of several passages of each of some parents in that corpus, or of pairs of a few of its clusters and, for the
    rest, of all of it. A corpus that is too small is filled up from the corpora around it.

    Args:
        prepared: The data.
        config: What batches are made of.
        seed: Random seed of every draw.

    Raises:
        CorpusError: A source has fewer pairs than a batch and its smallest context.

    Source: ours, design §9.
    """

    def __init__(self, prepared: Prepared, config: CorporaConfig, *, seed: int) -> None:
        self._prepared, self._config, self._seed = prepared, config, seed
        self._generator = CorpusGenerator(prepared, config.granularity)
        self._views = Views(prepared, config.views)
        self._contexts = Contexts(prepared, config.context)
        self._parents = Parents(prepared, config.parents)
        sources = np.asarray(prepared.sources)
        self._sources = Groups(sources)
        self._families = Groups(np.where(self._parents.families, sources, -1))
        self._refuse_small_sources()

    @property
    def per_epoch(self) -> int:
        """Number of batches that have together as many pairs as the data; pairs are drawn, not all."""
        return int((self._sources.sizes // self._config.batch_size).sum())

    def batch(self, update: int) -> Batch:
        """Return the batch of one update."""
        random = np.random.default_rng([self._seed, update])
        config = self._config
        drawn, siblings_drawn = random.random(2)
        of_parents = drawn < config.parents.share and self._families.sizes.any()
        with_siblings = siblings_drawn >= (
            config.parents.no_siblings_share if of_parents else 1 - config.parents.apart_share
        )
        corpus = self._generator.around(self._anchor(self._families if of_parents else self._sources, random), random)
        pairs = self._passages(corpus, random) if of_parents else self._clustered(corpus, random)
        queries, documents = self._views.draw(pairs, random)
        header = int(self._prepared.documents[random.choice(self._sources.of(corpus.source))])
        transformation = draw_transformation(
            config.transformations, header, max_length=self._prepared.max_length, random=random
        )
        context = self._contexts.draw(pairs, documents, corpus.rings, random)
        siblings: list[list[int]] = [[] for _ in pairs]
        if with_siblings:
            siblings = self._parents.siblings(pairs, documents, random)
        lacking = transformation.titled or (any(siblings) and self._prepared.passages is None)
        source = self._sources.of(corpus.source)
        most = 0 if lacking else config.hard_negatives
        hard_negatives, filled = hard_negatives_of(self._prepared, pairs, source, most, random)
        return Batch(
            pairs=pairs,
            queries=queries,
            documents=documents,
            hard_negatives=hard_negatives,
            context=context,
            siblings=siblings,
            transformation=transformation,
            corpus=f"parents in {corpus.name}" if of_parents else corpus.name,
            filled=filled,
            negative_siblings=(
                self._parents.siblings_of_negatives(hard_negatives, random)
                if any(siblings) and hard_negatives.size
                else []
            ),
        )

    def _anchor(self, sources: Groups, random: np.random.Generator) -> int:
        """Draw a pair: its source with probability ∝ pairs^α, the pair in it uniformly."""
        weights = np.where(sources.sizes > 0, sources.sizes.astype(np.float64) ** self._config.source_exponent, 0.0)
        return int(random.choice(sources.of(int(random.choice(len(weights), p=weights / weights.sum())))))

    def _clustered(self, corpus: TrainingCorpus, random: np.random.Generator) -> Int64[np.ndarray, " batch"]:
        config = self._config
        each = -(-round(config.clustered_share * config.batch_size) // config.anchors)
        parts: list[np.ndarray] = []
        for anchor in random.choice(corpus.rings[0], size=config.anchors).tolist():
            cluster = self._generator.cluster_of(anchor)
            parts.append(random.permutation(cluster[corpus.holds(cluster)])[:each])
        pairs, first = np.unique(np.concatenate(parts), return_index=True)
        return self._filled(pairs[np.argsort(first)][: config.batch_size], corpus, random)

    def _passages(self, corpus: TrainingCorpus, random: np.random.Generator) -> Int64[np.ndarray, " batch"]:
        return self._filled(self._parents.draw(corpus.rings, self._config.batch_size, random), corpus, random)

    def _filled(
        self, pairs: Int64[np.ndarray, " some"], corpus: TrainingCorpus, random: np.random.Generator
    ) -> Int64[np.ndarray, " batch"]:
        """Fill the pairs up to a batch with others of the corpus."""
        size = self._config.batch_size
        for ring in corpus.rings:
            if len(pairs) == size:
                break
            more = random.choice(ring, size=min(2 * size, len(ring)), replace=False)
            pairs = np.concatenate([pairs, more[~np.isin(more, pairs)][: size - len(pairs)]])
        return pairs

    def _refuse_small_sources(self) -> None:
        config = self._config
        context = config.context.smallest if config.context.documents == "corpus" else 0
        for name, size in zip(self._prepared.source_names, self._sources.sizes.tolist(), strict=True):
            if size < config.batch_size + context:
                raise CorpusError(
                    f"Expected {config.batch_size + context} pairs or more of each source (a batch of "
                    f"{config.batch_size}, and {context} documents of a context apart from it), found {size} of "
                    f"{name!r}. Leave that source out, join it to another, or choose smaller batches."
                )
