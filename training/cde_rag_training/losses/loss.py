"""Losses of a batch of pairs, in nats: embeddings in, one number out.

Everywhere row i of the queries belongs to row i of the documents. Further documents (hard negatives, or those of other
processes) stand after the queries' own.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 256  # queries whose scores are held at a time: memory grows with the batch, not with its square

PairsLoss = Callable[[Float[Tensor, "queries dim"], Float[Tensor, "documents dim"]], Float[Tensor, ""]]


def _mean_over_rows(count: int, part: Callable[[slice], Float[Tensor, ""]]) -> Float[Tensor, ""]:
    """Average a loss over `count` queries, where `part` sums it over some of them.

    Scores of more than `ROWS` queries are not kept for the backward pass, which computes them again.
    """
    if count <= ROWS:
        return part(slice(0, count)) / count
    starts = range(0, count, ROWS)
    parts = [
        checkpoint(part, slice(start, min(start + ROWS, count)), use_reentrant=False, preserve_rng_state=False)
        for start in starts
    ]
    return torch.stack(parts).sum() / count


def _own(rows: slice, device: torch.device) -> Int[Tensor, "rows"]:
    return torch.arange(rows.start, rows.stop, device=device)


def contrastive_loss(
    queries: Float[Tensor, "queries dim"],
    documents: Float[Tensor, "documents dim"],
    mask: Bool[Tensor, "queries documents"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Compute the cross-entropy of each query's own document among all unmasked documents of the batch.

    Args:
        queries: Unit norm.
        documents: Unit norm; row i belongs to query i, further rows are negatives only.
        mask: True where document j is no negative for query i.
        temperature: τ, divides scores.

    Source: paper eq. 4.
    """

    def part(rows: slice) -> Float[Tensor, ""]:
        scores = (queries[rows] @ documents.T / temperature).masked_fill(mask[rows], float("-inf"))
        return F.cross_entropy(scores, _own(rows, scores.device), reduction="sum")

    return _mean_over_rows(len(queries), part)


def improved_contrastive_loss(
    queries: Float[Tensor, "queries dim"],
    documents: Float[Tensor, "documents dim"],
    mask: Bool[Tensor, "queries documents"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Compute the contrastive loss in both directions, with negatives of both kinds on both sides.

    The partition function of pair i sums over documents for query i, other queries for query i, queries for document i
    and other documents for document i; so the positive stands in it twice, and the loss is at least log 2. What is
    masked in one direction is masked between queries and between documents too: two queries that share an answer, or
    two answers to one query, are not to be driven apart.

    Args:
        queries: Unit norm.
        documents: Unit norm; row i belongs to query i, further rows are negatives only.
        mask: True where document j is no negative for query i.
        temperature: τ, divides scores; GTE has 0.01.

    Source: Li et al. 2023 (GTE) eq. 5–6; the masks are ours.
    """
    count = len(queries)
    pairs = mask[:, :count]
    themselves = torch.eye(count, dtype=torch.bool, device=mask.device)
    alike = pairs | pairs.T | themselves
    own = documents[:count]

    def part(rows: slice) -> Float[Tensor, ""]:
        q, d = queries[rows], own[rows]
        scores = torch.cat([q @ documents.T, q @ queries.T, d @ queries.T, d @ documents.T], dim=1) / temperature
        masks = torch.cat([mask[rows], alike[rows], pairs.T[rows], alike[rows], mask[rows, count:]], dim=1)
        return F.cross_entropy(scores.masked_fill(masks, float("-inf")), _own(rows, scores.device), reduction="sum")

    return _mean_over_rows(count, part)


def graded_loss(
    queries: Float[Tensor, "queries dim"],
    documents: Float[Tensor, "documents dim"],
    mask: Bool[Tensor, "queries documents"],
    grades: Float[Tensor, " queries"],
    temperature: float,
    bias: float,
) -> Float[Tensor, ""]:
    """Compute the binary cross-entropy of each query with each unmasked document, summed over documents.

    A query's own document has its grade as the probability, all others have 0. Pairs are independent of each other, so
    that a weak answer is not pulled as near as a right one.

    Args:
        queries: Unit norm.
        documents: Unit norm; row i belongs to query i, further rows are negatives only.
        mask: True where document j is no negative for query i.
        grades: Relevance of each query's own document, 0 … 1.
        temperature: τ, divides scores.
        bias: Added to the divided scores; below 0, since nearly all pairs are negatives.

    Source: Tsirigotis et al. 2025 (BiXSE), with the sum and the bias of Zhai et al. 2023 (SigLIP) §3.2; both learn
        temperature and bias, which are fixed here.
    """

    def part(rows: slice) -> Float[Tensor, ""]:
        logits = queries[rows] @ documents.T / temperature + bias
        own = _own(rows, logits.device)
        targets = torch.zeros_like(logits).index_put_((own - rows.start, own), grades[rows])
        terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return terms.masked_fill(mask[rows], 0).sum()

    return _mean_over_rows(len(queries), part)


def matryoshka(loss: PairsLoss, dims: Sequence[int]) -> PairsLoss:
    """Return the mean of a loss over embeddings truncated to their first `dims` dimensions and normalised again.

    Args:
        loss: Loss of queries and documents.
        dims: Such as (384, 256, 128, 64).

    Raises:
        ValueError: No dims, or some below 1; when called, some above the embeddings' own.

    Source: Kusupati et al. 2022 (Matryoshka Representation Learning) eq. 1, all weights equal.
    """
    if not dims or min(dims) < 1:
        raise ValueError(f"Expected one or more dims of at least 1, found {list(dims)}. Give such as (384, 256, 128).")

    def nested(queries: Float[Tensor, "queries dim"], documents: Float[Tensor, "documents dim"]) -> Float[Tensor, ""]:
        if max(dims) > queries.shape[1]:
            raise ValueError(
                f"Expected dims of at most {queries.shape[1]}, those of the embeddings, found {list(dims)}. Leave the "
                "larger ones out."
            )
        cut = [(F.normalize(queries[:, :dim], dim=1), F.normalize(documents[:, :dim], dim=1)) for dim in dims]
        return torch.stack([loss(*both) for both in cut]).mean()

    return nested


def distillation_loss(
    queries: Float[Tensor, "queries dim"],
    documents: Float[Tensor, "documents dim"],
    teacher: Float[Tensor, "queries documents"],
    temperature: float,
    *,
    teacher_temperature: float,
) -> Float[Tensor, ""]:
    """Compute KL(teacher ‖ ours) of the distributions over the batch's documents, mean over queries.

    Args:
        queries: Unit norm.
        documents: Unit norm.
        teacher: Scores of the teacher, such as the start model's under the null context, or a `mixture`.
        temperature: Divides our scores.
        teacher_temperature: Divides the teacher's scores.

    Source: Hinton et al. 2015, over in-batch documents.
    """

    def part(rows: slice) -> Float[Tensor, ""]:
        ours = F.log_softmax(queries[rows] @ documents.T / temperature, dim=1)
        theirs = F.log_softmax(teacher[rows] / teacher_temperature, dim=1)
        return F.kl_div(ours, theirs, reduction="sum", log_target=True)

    return _mean_over_rows(len(queries), part)


def mixture(
    first: Float[Tensor, "queries documents"], second: Float[Tensor, "queries documents"], share: float
) -> Float[Tensor, "queries documents"]:
    """Mix two teachers' scores, on the scale of the first.

    Args:
        first: Such as cosines.
        second: Such as BM25 scores; per query they are given the first's mean and spread, or its mean alone where all
            are alike.
        share: Share of the second, 0 … 1.

    Source: ours.
    """
    centred = second - second.mean(dim=1, keepdim=True)
    spread = centred.std(dim=1, keepdim=True, correction=0)
    scale = first.std(dim=1, keepdim=True, correction=0) / torch.where(spread > 0, spread, torch.ones_like(spread))
    return (1 - share) * first + share * (first.mean(dim=1, keepdim=True) + centred * scale)
