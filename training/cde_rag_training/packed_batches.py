"""The paper's batches: packed clusters, each pair once an epoch, the batch's own documents as its context."""

from cde_rag_training.batch import Batch
from cde_rag_training.corpora import ContextConfig
from cde_rag_training.packing import PackingConfig
from cde_rag_training.prepared import Prepared


class PackedBatches:
    """Batches of a packing, in which each pair asks with its own query; no siblings, no transformation.

    With α = 1 an epoch over all sources has every pair once; otherwise sources are drawn ∝ pairs^α, and each goes
    through epochs of its own.

    Args:
        prepared: The data.
        packing: How clusters of about 512 become batches.
        context: Its documents are the batch's own.
        hard_negatives: Of each pair, at most.

    Raises:
        CorpusError: A source has fewer pairs than a batch.
        ValueError: Another context than the batch's documents is asked for.
    """

    def __init__(
        self, prepared: Prepared, packing: PackingConfig, context: ContextConfig, *, hard_negatives: int = 1
    ) -> None:
        raise NotImplementedError

    def batch(self, update: int) -> Batch:
        """What one update sees."""
        raise NotImplementedError
