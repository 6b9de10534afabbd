"""Start model as a teacher of distillation, and as a check of the false-negative filter."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.config import PhaseConfig
from cde_rag_training.corpora.batch import Batch, Batches
from cde_rag_training.corpora.filtering import FilterConfig, StartBatch
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import DocumentTokens
from cde_rag_training.loop.prefixes import Prefix, Prefixes
from cde_rag_training.losses.objective import Objective
from cde_rag_training.networks.stages import Stages

BATCHES, PAIRS = 10, 64  # that are looked at before a phase begins


class StartModel:
    """Embeds a batch's texts as training found the model, under the null context and without siblings.

    Args:
        stages: A copy of the network that training leaves alone.
        prepared: The data.
        prefixes: Task prefixes of the texts; None: the model's own for all.
        mini_batch_size: Texts per forward pass.
    """

    def __init__(
        self, stages: Stages, prepared: Prepared, *, prefixes: Prefixes | None = None, mini_batch_size: int
    ) -> None:
        self._stages, self._prepared, self._size = stages, prepared, mini_batch_size
        self._prefixes = Prefixes(prepared, (), stages) if prefixes is None else prefixes
        self._documents = DocumentTokens(prepared)
        with torch.no_grad():
            self._given = stages.prepare(torch.zeros(0, stages.context_dim, device=stages.device), [], [])

    def __call__(self, batch: Batch) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"]]:
        """Embed queries and documents as the batch shows them, unit norm."""
        queries = [self._prepared.texts[row] for row in batch.queries.tolist()]
        documents = self._documents(batch.documents.tolist(), batch.transformation)
        before = self._prefixes.of_queries(batch.pairs), self._prefixes.of_documents(batch.pairs)
        return self._embed(queries, QUERY, before[0]), self._embed(documents, DOCUMENT, before[1])

    def _embed(self, texts: list[list[int]], role: int, before: list[Prefix]) -> Float[Tensor, "texts dim"]:
        ids = [self._stages.second_ids(each, role, prefix) for each, prefix in zip(texts, before, strict=True)]
        return self._stages.embed(ids, role, self._given, mini_batch_size=self._size)


def start_batches(
    start: StartModel, phase: PhaseConfig, batches: Batches, prepared: Prepared, *, device: torch.device
) -> Iterator[StartBatch]:
    """Yield scores and masks of a phase's first batches, for `warn_of_start_model`."""
    rule = Objective(phase.loss, phase.filter, prepared, device=device)
    always = Objective(phase.loss, FilterConfig(rule="none"), prepared, device=device)
    for update in range(BATCHES):
        batch = batches.batch(update)
        part = replace(
            batch,
            **{name: getattr(batch, name)[:PAIRS] for name in ("pairs", "queries", "documents", "siblings")},
            hard_negatives=batch.hard_negatives[:PAIRS, :0],
            filled=None,
        )
        queries, documents = start(part)
        known = always.mask(part)
        yield StartBatch(queries @ documents.T, rule.mask(part) & ~known, known)
