"""Loss and gradients of one batch, and the loss under another context."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag_training.corpora.batch import Batch
from cde_rag_training.data.transformations import PLAIN
from cde_rag_training.loop.first_vectors import FirstStageVectors
from cde_rag_training.loop.gradcache import CachedStage, Loss, second_stage_step, two_stage_step
from cde_rag_training.loop.mini_batches import Cutter, MiniBatches
from cde_rag_training.losses.objective import BatchLoss, Objective
from cde_rag_training.networks.stages import Stages, TextBatch
from cde_rag_training.processes import count, rank


class Figures(NamedTuple):
    """Metrics of one batch.

    Attributes:
        total: Total loss, in nats.
        contrastive: The loss of pairs.
        distillation: KL to the teacher; NaN without one.
        masked: Share of texts that are no negatives.
        tokens: Number of tokens that the second stage read in this process.
        siblings: Number of siblings of all documents of this process.
    """

    total: float
    contrastive: float
    distillation: float
    masked: float
    tokens: int
    siblings: int


class Gradients:
    """Computation of a batch's gradients, which are added to the parameters' `grad`.

    Args:
        stages: The network.
        cutter: Splits batches into mini-batches.
        objective: The training loss.
        vectors: Vectors of a frozen first stage; None if it is trained.
        context_dropout: Probability that a context embedding is left out.
        dropout_by_text: True to draw for each text apart, False once for a batch.
        caching: True to cache gradients (memory of a mini-batch), False to keep all activations of the batch.
        mini_batch_size: Texts per forward pass of the first stage over context and siblings.
        seed: Random seed of every draw.
        shared: True if several processes share each batch, False if each has batches of its own.
        depths: Numbers of the second stage's lowest layers, of which one is drawn for each batch: the mean of the
            losses by all layers and by these counts. Empty: by all layers alone.
    """

    def __init__(
        self,
        stages: Stages,
        cutter: Cutter,
        objective: Objective,
        *,
        vectors: FirstStageVectors | None,
        context_dropout: float,
        dropout_by_text: bool = False,
        caching: bool,
        mini_batch_size: int,
        seed: Sequence[int],
        shared: bool = True,
        depths: Sequence[int] = (),
    ) -> None:
        self._stages, self._cutter, self._objective, self._vectors = stages, cutter, objective, vectors
        self._dropout, self._caching, self._size, self._seed = context_dropout, caching, mini_batch_size, list(seed)
        self._by_text, self._shared, self._depths = dropout_by_text, shared, list(depths)
        self._latest: tuple[Batch, MiniBatches, BatchLoss] | None = None

    def add(self, batch: Batch, number: int, *, scale: float = 1.0) -> Figures:
        """Add one batch's gradients; of several processes that share it, each those of its own queries' losses.

        Everything random in it is a function of the seed, the batch's number and, where it is shared, the process.

        Args:
            batch: The complete batch.
            number: Its number.
            scale: Factor of the loss, and so of the gradients.
        """
        stages, (parts, loss) = self._stages, self._cut(batch)
        drawn = np.random.default_rng([*self._seed, number])
        dropped = (drawn.random(len(parts.context)) < self._dropout).tolist()
        if self._by_text:
            dropped, parts = [False] * len(dropped), self._dropped(batch, parts, drawn)
        order, by_all_layers = parts.order, not self._depths
        if self._depths:
            depth = int(drawn.choice(self._depths))
            parts = parts._replace(second=[*parts.second, *(part._replace(layers=depth) for part in parts.second)])

        def of_all(embeddings: Float[Tensor, "texts dim"]) -> Float[Tensor, ""]:
            if by_all_layers:
                return loss(embeddings[order])
            whole, lowest = embeddings.chunk(2)
            return (loss(lowest[order]) + loss(whole[order])) / 2  # the latest call's figures are logged

        with torch.random.fork_rng(devices=[stages.device] if stages.device.type == "cuda" else []):
            torch.manual_seed(int(drawn.integers(2**62)) + (rank() if self._shared else 0))
            value = self._backward(batch, parts, dropped, lambda embeddings: scale * of_all(embeddings))
        return Figures(
            total=float(value.detach()) / scale,
            contrastive=loss.contrastive,
            distillation=loss.distillation,
            masked=loss.masked,
            tokens=parts.tokens,
            siblings=parts.siblings,
        )

    def _dropped(self, batch: Batch, parts: MiniBatches, drawn: np.random.Generator) -> MiniBatches:
        """Draw which context embeddings are null for each text: the same whatever processes and mini-batches share."""
        size, negatives = batch.hard_negatives.shape
        mask = drawn.random((size * (2 + negatives), self._stages.context_tokens)) < self._dropout
        rows, own = np.arange(size * (2 + negatives)), self._own(batch)
        of_negatives = rows[2 * size :].reshape(size, negatives)[own].ravel()
        texts = np.concatenate([rows[:size][own], rows[size : 2 * size][own], of_negatives])[
            parts.order.argsort().numpy()
        ]
        second: list[TextBatch] = []
        for part in parts.second:
            second.append(part._replace(dropped=torch.from_numpy(mask[texts[: len(part.ids)]])))
            texts = texts[len(part.ids) :]
        return parts._replace(second=second)

    def _own(self, batch: Batch) -> slice:
        """Return this process's pairs of a batch."""
        size, (process, processes) = len(batch.pairs), (rank(), count()) if self._shared else (0, 1)
        return slice(process * size // processes, (process + 1) * size // processes)

    def _cut(self, batch: Batch) -> tuple[MiniBatches, BatchLoss]:
        """Return this process's share of a batch, split into mini-batches; the latest one is cached."""
        if self._latest is None or self._latest[0] is not batch:
            own = self._own(batch)
            self._latest = batch, self._cutter(batch, own), self._objective.of(batch, own)
        return self._latest[1:]

    def _backward(self, batch: Batch, parts: MiniBatches, dropped: Sequence[bool], loss: Loss) -> Float[Tensor, ""]:
        stages = self._stages
        first = CachedStage(stages.first, device=str(stages.device))
        second = CachedStage(stages.second, device=str(stages.device))

        def prepare(vectors: Float[Tensor, "vectors dim"]) -> list[Tensor]:
            return stages.prepare(vectors, parts.context, dropped)

        finished = self._vectors is not None or not parts.first
        if self._caching and not finished:
            return two_stage_step(first, prepare, second, parts.first_ids, parts.second, loss)
        if finished:
            vectors = self._read(parts.first, batch)
        else:
            vectors = torch.cat([stages.first(ids, ()) for ids in parts.first_ids])
        given = prepare(vectors)
        if self._caching:
            return second_stage_step(second, given, parts.second, loss)
        value = loss(torch.cat([stages.second(texts, given) for texts in parts.second]))
        value.backward()
        return value

    def _read(self, rows: Sequence[int], batch: Batch) -> Float[Tensor, "rows dim"]:
        """Compute first-stage vectors of a batch's documents, without gradients."""
        if not rows:
            return torch.zeros(0, self._stages.context_dim, device=self._stages.device)
        if self._vectors is not None and batch.transformation == PLAIN:
            return self._vectors(rows)
        return self._stages.read(self._cutter.first_ids(rows, batch), mini_batch_size=self._size)

    @torch.no_grad()
    def losses_under(self, batch: Batch, contexts: Sequence[Batch | None]) -> list[float]:
        """Compute the loss of a batch under other batches' contexts, or none (None), without context dropout."""
        parts, loss = self._cut(batch)
        own = self._read(parts.first, batch)
        losses: list[float] = []
        for other in contexts:
            rows = [] if other is None else other.context.tolist()
            vectors = own if other is None else torch.cat([own, self._read(rows, other)])
            given = self._stages.prepare(vectors, range(len(own), len(vectors)), [False] * len(rows))
            loss(torch.cat([self._stages.second(texts, given) for texts in parts.second])[parts.order])
            losses.append(loss.contrastive)
        return losses
