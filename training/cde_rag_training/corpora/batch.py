"""Training batches, and the interface that draws them."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from cde_rag.errors import CorpusError
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
        hard_negatives: As many of each pair as the one with the most has, at most; pairs with fewer are filled up with
            random documents of their source. No columns where no pair has any, nor where documents are shown with
            titles or siblings that hard negatives lack, so that these would be known by it.
        context: Documents, each once; empty under the null context.
        siblings: Siblings of each document, never itself.
        transformation: Transformation of all documents.
        corpus: Name of the corpus that the batch was drawn from ("cluster 17 of docs"), for logs and `inspect`.
        negative_siblings: Siblings of each hard negative, pair by pair; empty if none has any.
        filled: True for random documents among the hard negatives; None if all are the pairs' own.
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
    filled: Bool[np.ndarray, "batch negatives"] | None = None

    @property
    def own_negatives(self) -> Bool[np.ndarray, "batch negatives"]:
        """True for hard negatives that are the pair's own, and no random documents."""
        return np.ones(self.hard_negatives.shape, dtype=np.bool_) if self.filled is None else ~self.filled

    @property
    def random_negatives(self) -> int:
        """Number of random documents among the hard negatives."""
        return int((~self.own_negatives).sum())


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


class HardNegatives(NamedTuple):
    """Hard negatives of a batch.

    Attributes:
        rows: Text rows.
        filled: True for random documents in place of missing ones.
    """

    rows: Int64[np.ndarray, "batch negatives"]
    filled: Bool[np.ndarray, "batch negatives"]


def hard_negatives_of(
    prepared: Prepared,
    pairs: Int64[np.ndarray, " batch"],
    source: Int64[np.ndarray, " source"],
    most: int,
    random: np.random.Generator,
) -> HardNegatives:
    """Draw hard negatives among those of each pair; a pair with fewer than another gets random documents.

    Args:
        prepared: The data.
        pairs: Pairs of the batch.
        source: All pairs of the batch's source, of whose documents the random ones are drawn.
        most: Maximum number per pair.
        random: Draws.

    Raises:
        CorpusError: A pair lacks some, and its source has no other document.

    Source: the paper's code; random documents as in Li et al. 2023 (GTE) §3.3.
    """
    rows = prepared.hard_negatives[pairs]
    columns = min(most, int((rows >= 0).sum(axis=1).max()))
    order = np.argsort(np.where(rows >= 0, random.random(rows.shape), 2), axis=1)
    drawn = np.take_along_axis(rows, order[:, :columns], axis=1)
    filled = drawn < 0
    others = np.unique(prepared.documents[source]) if filled.any() else source
    for row in np.flatnonzero(filled.any(axis=1)).tolist():
        lacking = int(filled[row].sum())
        few = random.choice(others, size=min(lacking + 1, len(others)), replace=False)
        if len(few := few[few != prepared.documents[pairs[row]]]) == 0:
            raise CorpusError(
                f"Expected two documents or more of {prepared.source_names[int(prepared.sources[pairs[0]])]!r}, "
                "of which "
                "some stand for missing hard negatives, found one. Set corpora.hard_negatives to 0."
            )
        drawn[row, filled[row]] = np.resize(few, lacking)
    return HardNegatives(drawn, filled)
