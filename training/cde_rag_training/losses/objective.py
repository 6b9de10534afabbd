"""Training objective: masks of negatives, and the configured losses of the embeddings."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cde_rag.errors import CorpusError
from cde_rag_training.config import LossConfig
from cde_rag_training.corpora.batch import Batch
from cde_rag_training.corpora.filtering import FilterConfig, by_rule, duplicates
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.views import SameQueries
from cde_rag_training.losses.loss import (
    contrastive_loss,
    distillation_loss,
    graded_loss,
    improved_contrastive_loss,
    matryoshka,
    mixture,
)
from cde_rag_training.processes import own_first

Teacher = Callable[[Batch], tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"]]]  # queries, documents


class BatchLoss:
    """Loss of one batch's embeddings: this process's queries among the documents of all processes.

    Embeddings are those of the process's own queries, documents, and hard negatives pair by pair.

    Args:
        config: The loss configuration.
        order: All pairs, this process's own first.
        own: Their number.
        mask: True where a text is no negative: queries × (documents, hard negatives pair by pair), as in the batch.
        teacher: Scores of all queries with all documents, as in the batch; None without distillation.
        grades: Relevance of each query's own document, as in the batch; None: 1 each.
    """

    def __init__(
        self,
        config: LossConfig,
        order: Int[Tensor, " batch"],
        own: int,
        mask: Bool[Tensor, "batch texts"],
        teacher: Float[Tensor, "batch batch"] | None,
        grades: Float[Tensor, " batch"] | None = None,
    ) -> None:
        self._config, self._own = config, own
        self._gathered = own_first if own < len(order) else _alone  # a batch that no other process has a share of
        negatives = mask.shape[1] // len(order) - 1
        slots = torch.arange(negatives, device=mask.device)
        columns = torch.cat([order, (len(order) + negatives * order[:, None] + slots).flatten()])
        rows = order if config.kind == "improved" else order[:own]
        self._mask = mask[rows][:, columns]
        self._teacher = None if teacher is None else teacher[order[:own]][:, order]
        self._grades = torch.ones(own, device=mask.device) if grades is None else grades[order[:own]]
        self.contrastive = self.distillation = float("nan")

    @property
    def masked(self) -> float:
        """Share of texts that are no negatives, the queries' own aside."""
        return float(self._mask.sum()) / max(1, self._mask.numel() - len(self._mask))

    def __call__(self, embeddings: Float[Tensor, "texts dim"]) -> Float[Tensor, ""]:
        """Compute the loss; its terms are kept in `contrastive` and `distillation`."""
        queries, documents = embeddings[: self._own], self._gathered(embeddings[self._own : 2 * self._own])
        negatives = embeddings[2 * self._own :]
        texts = torch.cat([documents, self._gathered(negatives)]) if len(negatives) else documents
        asking = self._gathered(queries) if self._config.kind == "improved" else queries
        loss = matryoshka(self._of_pairs, self._config.dims) if self._config.dims else self._of_pairs
        value = loss(asking, texts)
        self.contrastive = float(value.detach())
        if self._teacher is None:
            return value
        distillation = distillation_loss(
            queries,
            documents,
            self._teacher,
            self._config.temperature,
            teacher_temperature=self._config.teacher_temperature,
        )
        self.distillation = float(distillation.detach())
        return torch.lerp(value, distillation, self._config.teacher_weight)

    def _of_pairs(
        self, queries: Float[Tensor, "queries dim"], documents: Float[Tensor, "documents dim"]
    ) -> Float[Tensor, ""]:
        config = self._config
        if config.kind == "graded":
            return graded_loss(queries, documents, self._mask, self._grades, config.temperature, config.bias)
        loss = improved_contrastive_loss if config.kind == "improved" else contrastive_loss
        return loss(queries, documents, self._mask, config.temperature)


def _alone(rows: Float[Tensor, "own dim"]) -> Float[Tensor, "own dim"]:
    return rows


class Objective:
    """Factory of each batch's loss.

    Args:
        config: The loss configuration.
        rule: Filter rule, in addition to duplicates, which are always masked.
        prepared: The data, with surrogate embeddings.
        device: Device of the loss.
        start: The teacher of `teacher = "start"`: embeddings of a batch's queries and documents.
    """

    def __init__(
        self,
        config: LossConfig,
        rule: FilterConfig,
        prepared: Prepared,
        *,
        device: torch.device,
        start: Teacher | None = None,
    ) -> None:
        self._config, self._rule, self._prepared, self._device, self._start = config, rule, prepared, device, start
        self._same_queries = SameQueries(prepared)

    def of(self, batch: Batch, own: slice) -> BatchLoss:
        """Return the loss of a batch, for the process whose pairs are `own`."""
        pairs = torch.arange(len(batch.pairs), device=self._device)
        order = torch.cat([pairs[own], pairs[: own.start], pairs[own.stop :]])
        grades = None if self._prepared.grades is None else self._tensor(self._prepared.grades[batch.pairs])
        return BatchLoss(self._config, order, own.stop - own.start, self.mask(batch), self._teacher(batch), grades)

    def mask(self, batch: Batch) -> Bool[Tensor, "batch texts"]:
        """Compute a mask, True where a text is no negative of a query: documents, then hard negatives pair by pair.

        Masked texts: those that the configured rule masks by the embeddings of the filter's surrogate, other answers to
        the same query, and copies of the document (near-duplicates and other views too). Of a pair's own hard negatives
        only those are masked whose text answers the same query: they were chosen to be near. Random documents in their
        place are masked as any other.

        Source: paper eq. 4, where S(q, d) is of all documents; own hard negatives stay as in the paper's code.
        """
        held = self._prepared.filter_vectors_of(batch.pairs)
        queries, documents = (torch.from_numpy(each).to(self._device) for each in held)
        asked, answers = self._tensor(batch.queries), self._tensor(self._prepared.documents[batch.pairs])
        lexical = self._lexical(batch) if self._rule.rule == "agreement" else None
        right = torch.from_numpy(self._same_queries(batch.pairs, batch.queries)).to(self._device)  # j answers query i
        rows = batch.hard_negatives.ravel()
        if len(rows):
            answers = torch.cat([answers, self._tensor(rows)])
            documents = torch.cat([documents, torch.from_numpy(self._negative_vectors(rows)).to(self._device)])
            if lexical is not None:
                lexical = torch.cat([lexical, self._lexical_of_negatives(batch.pairs, rows)], dim=1)
        mask = by_rule(self._rule, queries @ documents.T, lexical) | duplicates(asked, answers, documents)
        count = len(queries)
        mask[:, :count] |= right.clone().fill_diagonal_(0)
        if len(rows):
            mask[:, count:] &= ~self._own_negatives(batch)
            same = (answers[:count, None] == answers[None, count:]).float()
            mask[:, count:] |= right.float() @ same > 0
        return mask

    def _own_negatives(self, batch: Batch) -> Bool[Tensor, "batch negatives"]:
        """Return True where a hard negative is the query's own, and no random document in its place."""
        own = torch.from_numpy(batch.own_negatives).to(self._device)  # (batch, negatives of a pair)
        pairs = torch.eye(len(own), dtype=torch.bool, device=self._device)
        return (pairs[:, :, None] & own[None]).flatten(1)

    def _negative_vectors(self, rows: np.ndarray) -> np.ndarray:
        try:
            return self._prepared.negative_vectors_of(rows)
        except KeyError as error:
            raise CorpusError(
                f"{self._prepared.folder}: expected surrogate embeddings of hard negatives, which the filter compares, "
                "found none. Prepare the data again."
            ) from error

    def _lexical_of_negatives(self, pairs: np.ndarray, rows: np.ndarray) -> Float[Tensor, "batch negatives"]:
        """Return BM25 of the queries with hard negatives, or with documents in their place."""
        lexical, (places, is_negative) = self._prepared.lexical, self._prepared.places_of(rows)
        if lexical is None:
            raise self._no_weights()
        scores = np.zeros((len(pairs), len(rows)), dtype=np.float32)
        scores[:, ~is_negative] = lexical.scores_of_documents(pairs, places[~is_negative])
        if is_negative.any():
            scores[:, is_negative] = lexical.scores_of_negatives(pairs, places[is_negative])
        return torch.from_numpy(scores).to(self._device)

    def surrogate(self, batch: Batch) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"]]:
        """Return surrogate embeddings of the pairs' own queries and complete documents."""
        pairs = batch.pairs
        return (
            torch.from_numpy(self._prepared.query_vectors_of(pairs)),
            torch.from_numpy(self._prepared.document_vectors_of(pairs)),
        )

    def _teacher(self, batch: Batch) -> Float[Tensor, "batch batch"] | None:
        """Return the teacher's scores; BM25 is mixed in for rows that show the pair's own query."""
        source = self._prepared.source_names[int(self._prepared.sources[batch.pairs[0]])]
        if self._config.teacher == "none" or source not in (self._config.teacher_sources or (source,)):
            return None
        teach = self._start if self._config.teacher == "start" else self.surrogate
        if teach is None:
            raise ValueError("Expected the start model, which is to be the teacher, found none. Give `start`.")
        queries, documents = (vectors.to(self._device) for vectors in teach(batch))
        scores = queries @ documents.T
        if not self._config.lexical_share:
            return scores
        own = torch.from_numpy(batch.queries == self._prepared.queries[batch.pairs]).to(self._device)
        return torch.where(own[:, None], mixture(scores, self._lexical(batch), self._config.lexical_share), scores)

    def _lexical(self, batch: Batch) -> Float[Tensor, "batch batch"]:
        if self._prepared.lexical is None:
            raise self._no_weights()
        return torch.from_numpy(self._prepared.lexical.scores(batch.pairs)).to(self._device)

    def _no_weights(self) -> ValueError:
        return ValueError(
            f"Expected BM25 weights in {self._prepared.folder}, found none. Prepare the data with them, or "
            "leave the rule "
            "'agreement' and lexical_share out."
        )

    def _tensor(self, rows: object) -> Shaped[Tensor, " rows"]:
        return torch.as_tensor(rows, device=self._device)
