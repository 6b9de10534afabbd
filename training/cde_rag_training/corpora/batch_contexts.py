"""Context documents of a batch: documents of its corpus outside the batch, or its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from cde_rag_training.corpora.filtering import DUPLICATE
from cde_rag_training.corpora.groups import Groups
from cde_rag_training.data.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """Configuration of a batch's context documents.

    `documents` is "corpus" (some of the batch's corpus, but none of the batch's own nor their near-duplicates; if the
    corpus is one domain whose passages the data has, some of these; ours, design §9) or "batch" (the batch's own in
    random order, a query's own document maybe among them; paper §4.2).
    """

    documents: Literal["corpus", "batch"] = "corpus"
    smallest: int = 32  # documents; their number is drawn log-uniformly   ours, design §9
    largest: int = 512  # documents; a two-way model has its context_size  paper §5
    null_share: float = 0.2  # of batches, under the null context          ours, design §9

    def __post_init__(self) -> None:
        """Refuse sizes out of order, and shares outside 0 … 1."""
        if not 1 <= self.smallest <= self.largest:
            raise ValueError(
                f"Expected 1 ≤ smallest ≤ largest context documents, found {self.smallest} and {self.largest}."
            )
        if not 0 <= self.null_share <= 1:
            raise ValueError(f"Expected a null_share in 0 … 1, found {self.null_share}.")


class Contexts:
    """Sampler of context documents.

    Args:
        prepared: The data.
        config: Configuration of the contexts.
    """

    def __init__(self, prepared: Prepared, config: ContextConfig) -> None:
        self._config, self._prepared = config, prepared
        self._documents = np.asarray(prepared.documents)
        self._passages = None if prepared.passages is None else Groups(np.ascontiguousarray(prepared.passages[:, 1]))

    def draw(
        self,
        pairs: Int64[np.ndarray, " batch"],
        documents: Int64[np.ndarray, " batch"],
        rings: Sequence[Int64[np.ndarray, " _"]],
        random: np.random.Generator,
    ) -> Int64[np.ndarray, " context"]:
        """Draw the text rows of one batch's context, each once; an empty array is the null context.

        Args:
            pairs: Pairs of the batch.
            documents: Documents of the batch, as they are shown.
            rings: Pairs of the batch's corpus, then of wider ones, used if it has too few outside the batch.
            random: Draws.
        """
        config = self._config
        low, high = np.log(config.smallest), np.log(config.largest)
        null, size = random.random() < config.null_share, round(float(np.exp(random.uniform(low, high))))
        if null:
            return np.zeros(0, dtype=np.int64)
        if config.documents == "batch":
            return random.permutation(np.unique(documents))[:size]
        return self._apart(pairs, documents, size, rings, random)

    def _apart(
        self,
        pairs: Int64[np.ndarray, " batch"],
        documents: Int64[np.ndarray, " batch"],
        size: int,
        rings: Sequence[Int64[np.ndarray, " _"]],
        random: np.random.Generator,
    ) -> Int64[np.ndarray, " context"]:
        taken = np.union1d(documents, self._documents[pairs])
        vectors = self._prepared.document_vectors_of(pairs)
        context = np.setdiff1d(self._of_domain(rings[0]), taken)
        if len(context) > size:
            return random.permutation(context)[:size]
        for ring in rings:
            candidates = random.permutation(ring)
            while len(candidates) and len(context) < size:
                few, candidates = np.split(candidates, [min(2 * size, len(candidates))])
                few = few[~np.isin(self._documents[few], np.concatenate([taken, context]))]
                few = few[np.sort(np.unique(self._documents[few], return_index=True)[1])]
                nearest = (self._prepared.document_vectors_of(few) @ vectors.T).max(axis=1)
                context = np.concatenate([context, self._documents[few[nearest < DUPLICATE]]])
        return context[:size]

    def _of_domain(self, pairs: Int64[np.ndarray, " corpus"]) -> Int64[np.ndarray, " rows"]:
        """Return the text rows of all passages of the pairs' domain; none if they are of several, or have none."""
        domains = np.unique(np.asarray(self._prepared.domains)[pairs])
        passages = self._prepared.passages
        if self._passages is None or passages is None or len(domains) > 1 or domains[0] >= len(self._passages.sizes):
            return np.zeros(0, dtype=np.int64)
        return np.asarray(passages[self._passages.of(int(domains[0])), 0])
