"""Training batches, and the interface that draws them."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import Transformation


@dataclass(frozen=True, eq=False)
class Batch:
    """Batch of pairs of one source, with the texts to embed. Texts are rows of `Prepared.texts`.

    Queries are shown as they are (`prepared.texts[row]`); documents, context, siblings and hard negatives through
    `DocumentTokens` under the batch's transformation. Of several processes, process `rank` takes the contiguous rows
    from `rank * size // processes` on, so that rows gathered in order of rank are in the batch's order.

    Attributes:
        pairs: Positions of the pairs, none twice.
        queries: The queries to embed; not always the pair's own query.
        documents: The documents to embed; not always complete.
        hard_negatives: As many of each pair as the one with the fewest has: no columns where a pair has none, nor where
            documents are shown with titles or siblings that hard negatives lack, so that these would be known by it.
        context: Documents, each once; empty under the null context.
        siblings: Siblings of each document, never itself.
        transformation: Transformation of all documents.
        corpus: Name of the corpus that the batch was drawn from ("cluster 17 of docs"), for logs and `inspect`.
        negative_siblings: Siblings of each hard negative, pair by pair; empty if none has any.
    """

    pairs: Int64[np.ndarray, " batch"]
    queries: Int64[np.ndarray, " batch"]
    documents: Int64[np.ndarray, " batch"]
    hard_negatives: Int64[np.ndarray, "batch negatives"]
    context: Int64[np.ndarray, " context"]
    siblings: list[list[int]]
    transformation: Transformation
    corpus: str
    negative_siblings: list[list[int]] = field(default_factory=list)


@runtime_checkable
class Batches(Protocol):
    """Batches by number. A pure function: the same in every process, and after a resume."""

    def batch(self, update: int) -> Batch:
        """Return the batch of one update."""
        ...

    @property
    def per_epoch(self) -> int:
        """Number of batches that have together as many pairs as the data, up to less than a batch of each source."""
        ...


def hard_negatives_of(
    prepared: Prepared, pairs: Int64[np.ndarray, " batch"], most: int, random: np.random.Generator
) -> Int64[np.ndarray, "batch negatives"]:
    """Draw text rows of hard negatives among those of each pair.

    Args:
        prepared: The data.
        pairs: Pairs of the batch.
        most: Maximum number per pair.
        random: Draws.
    """
    rows = prepared.hard_negatives[pairs]
    columns = min(most, int((rows >= 0).sum(axis=1).min()))
    order = np.argsort(np.where(rows >= 0, random.random(rows.shape), 2), axis=1)
    return np.take_along_axis(rows, order[:, :columns], axis=1)
