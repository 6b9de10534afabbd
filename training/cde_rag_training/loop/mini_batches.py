"""A batch as the two stages read it: in mini-batches of texts of similar length, longest first."""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cde_rag.models.batching import length_buckets
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.corpora.batch import Batch
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import DocumentTokens
from cde_rag_training.loop.prefixes import Prefixes
from cde_rag_training.networks.stages import Stages, TextBatch


class MiniBatches(NamedTuple):
    """One process's share of a batch.

    Attributes:
        first: Text rows of documents that the first stage reads, each once, in the order of its mini-batches.
        first_ids: Their token ids in mini-batches.
        context: Which of them are the context.
        second: Queries, documents and hard negatives.
        order: `embeddings[order]` are the queries, the documents, and the hard negatives pair by pair, as in the batch.
        tokens: That the second stage reads.
        siblings: Siblings of all documents and hard negatives together.
    """

    first: list[int]
    first_ids: list[list[list[int]]]
    context: list[int]
    second: list[TextBatch]
    order: Int[Tensor, " texts"]
    tokens: int
    siblings: int


class Cutter:
    """Cuts batches into mini-batches.

    Args:
        prepared: The data.
        stages: Who reads it.
        prefixes: Task prefixes of the texts; None: the model's own for all.
        mini_batch_size: Texts per forward pass.
    """

    def __init__(
        self, prepared: Prepared, stages: Stages, *, prefixes: Prefixes | None = None, mini_batch_size: int
    ) -> None:
        self._prepared, self._stages, self._size = prepared, stages, mini_batch_size
        self._documents = DocumentTokens(prepared)
        self._prefixes = Prefixes(prepared, (), stages) if prefixes is None else prefixes

    def first_ids(self, rows: Sequence[int], batch: Batch) -> list[list[int]]:
        """Return token ids of a batch's documents for the first stage."""
        documents = self._documents(rows, batch.transformation)
        return [
            self._stages.first_ids(ids, prefix)
            for ids, prefix in zip(documents, self._prefixes.of_rows(rows), strict=True)
        ]

    def __call__(self, batch: Batch, own: slice) -> MiniBatches:
        """Split a process's share of a batch into mini-batches.

        Args:
            batch: The complete batch.
            own: This process's pairs.
        """
        count = batch.hard_negatives.shape[1]
        siblings = [*batch.siblings[own], *batch.negative_siblings[own.start * count : own.stop * count]]
        if not self._stages.reads_siblings:
            siblings = [[] for _ in siblings]
        rows = np.unique(np.concatenate([batch.context, *(np.array(group, dtype=np.int64) for group in siblings)]))
        ids = self.first_ids(rows.tolist(), batch)
        buckets = list(length_buckets([len(each) for each in ids], self._size))
        first = [int(rows[place]) for bucket in buckets for place in bucket]
        places = {row: place for place, row in enumerate(first)}
        second, order = self._second(batch, own, [[places[row] for row in group] for group in siblings])
        return MiniBatches(
            first=first,
            first_ids=[[ids[place] for place in bucket] for bucket in buckets],
            context=[places[row] for row in batch.context.tolist()],
            second=second,
            order=order,
            tokens=sum(len(each) for texts in second for each in texts.ids),
            siblings=sum(map(len, siblings)),
        )

    def _second(
        self, batch: Batch, own: slice, siblings: list[list[int]]
    ) -> tuple[list[TextBatch], Int[Tensor, " texts"]]:
        queries = [self._prepared.texts[row] for row in batch.queries[own].tolist()]
        shown = [*batch.documents[own].tolist(), *batch.hard_negatives[own].ravel().tolist()]
        documents = self._documents(shown, batch.transformation)
        given = [*siblings, *([] for _ in shown[len(siblings) :])]
        pairs, count = batch.pairs[own], batch.hard_negatives.shape[1]
        before = {
            QUERY: self._prefixes.of_queries(pairs),
            DOCUMENT: self._prefixes.of_documents(np.concatenate([pairs, np.repeat(pairs, count)])),
        }
        parts: list[TextBatch] = []
        taken: list[int] = []
        for role, texts, start in ((QUERY, queries, 0), (DOCUMENT, documents, len(queries))):
            ids = [self._stages.second_ids(*each) for each in zip(texts, repeat(role), before[role], strict=False)]
            of = given if role == DOCUMENT else [[] for _ in texts]
            for bucket in length_buckets([len(each) for each in ids], self._size):
                parts.append(TextBatch([ids[place] for place in bucket], role, [of[place] for place in bucket]))
                taken += [start + place for place in bucket]
        return parts, torch.tensor(taken).argsort()
