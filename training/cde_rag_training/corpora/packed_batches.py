"""The paper's batches: packed clusters, each pair once an epoch, the batch's own documents as its context."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from jaxtyping import Int64

from cde_rag_training.clustering.packing import Packing, PackingConfig
from cde_rag_training.corpora.batch import Batch, hard_negatives_of
from cde_rag_training.corpora.batch_contexts import ContextConfig, Contexts
from cde_rag_training.corpora.groups import Groups
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import PLAIN

PASSED_OVER = 64  # batches of other processes, or looked at already: fewer are cheaper than to begin again


class PackedBatches:
    """Batches of a packing, in which each pair has its own query: no siblings, no transformation.

    With α = 1 an epoch over all sources has every pair once. Otherwise a source is drawn with probability ∝ pairs^α,
    and each goes through epochs of its own.

    Args:
        prepared: The data.
        packing: How clusters, the finest that are prepared, become batches; its seed is that of every draw.
        context: Made of the batch's own documents.
        hard_negatives: Maximum number per pair.

    Raises:
        CorpusError: A source has fewer pairs than a batch.
        ValueError: The context is to be made of other documents.

    Source: paper §4.1, §4.2, §10.5.
    """

    def __init__(
        self, prepared: Prepared, packing: PackingConfig, context: ContextConfig, *, hard_negatives: int = 1
    ) -> None:
        if context.documents != "batch":
            raise ValueError(
                f'Expected a context of documents = "batch" for packed batches, found "{context.documents}". Set it, '
                "or draw batches from corpora."
            )
        self._prepared, self._config, self._hard_negatives = prepared, packing, hard_negatives
        self._contexts = Contexts(prepared, context)
        names = [prepared.source_names[source] for source in prepared.sources]
        clusters = np.ascontiguousarray(prepared.clusters[:, 0])
        self._packing = Packing(clusters, names, prepared.document_vectors, packing)
        self._sources = Groups(np.asarray(prepared.sources))
        self._following: tuple[int, Iterator[Int64[np.ndarray, " batch"]]] = 0, self._packing.batches()

    @property
    def per_epoch(self) -> int:
        """Number of batches in which each pair is seen once, if α = 1; less than a batch of each source is left out."""
        return self._packing.per_epoch

    def batch(self, update: int) -> Batch:
        """Return the batch of one update."""
        random = np.random.default_rng([self._config.seed, update])
        pairs = self._pairs(update)
        queries, documents = self._prepared.queries[pairs], self._prepared.documents[pairs]
        source = self._sources.of(int(self._prepared.sources[pairs[0]]))
        hard, filled = hard_negatives_of(self._prepared, pairs, source, self._hard_negatives, random)
        return Batch(
            pairs=pairs,
            queries=queries,
            documents=documents,
            hard_negatives=hard,
            context=self._contexts.draw(pairs, documents, (), random),
            siblings=[[] for _ in pairs],
            transformation=PLAIN,
            filled=filled,
            corpus=f"pack of {self._prepared.source_names[int(self._prepared.sources[pairs[0]])]}",
        )

    def _pairs(self, update: int) -> Int64[np.ndarray, " batch"]:
        """Return the pairs of one update; near ones continue the packing instead of starting anew."""
        number, batches = self._following
        if not number <= update <= number + PASSED_OVER:
            number, batches = update, self._packing.batches(update)
        pairs = next(islice(batches, update - number, None))
        self._following = update + 1, batches
        return pairs
