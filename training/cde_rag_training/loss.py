"""The contrastive loss and the documents that must not serve as negatives."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

DUPLICATE = 0.95  # surrogate cosine from which two documents count as one
MARGIN = 0.10  # by how much a surrogate must prefer another document to be believed


def false_negatives(
    queries: Float[Tensor, "pairs dim"],
    documents: Float[Tensor, "pairs dim"],
    same_query: Int[Tensor, "pairs"],
) -> Bool[Tensor, "pairs pairs"]:
    """Mark the documents that must not serve as negatives for a query.

    Args:
        queries: Surrogate embeddings, unit norm.
        documents: Surrogate embeddings, unit norm; row i belongs to query i.
        same_query: Equal numbers where two queries are the same text.

    Returns:
        `mask[i, j]` is true where pair j has the same query as pair i, document j is a duplicate of document i
        (cosine ≥ 0.95) or scores more than 0.10 above document i for query i. The diagonal is false.

    Source: paper §4.1 eq. 4 with a margin, since the start model is the surrogate: the plain rule would mask, for
    42 % of the queries, just what is to be learned.
    """
    scores = queries @ documents.T
    mask = (scores > scores.diagonal()[:, None] + MARGIN) | (documents @ documents.T >= DUPLICATE)
    mask |= same_query[:, None] == same_query[None, :]
    return mask & ~torch.eye(len(mask), dtype=torch.bool, device=mask.device)


def contrastive_loss(
    queries: Float[Tensor, "pairs dim"],
    documents: Float[Tensor, "pairs dim"],
    mask: Bool[Tensor, "pairs pairs"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Cross-entropy of each query's own document among all documents of the batch that are not masked, in nats.

    Args:
        queries: Unit norm.
        documents: Unit norm; row i belongs to query i.
        mask: True where document j is no negative for query i.
        temperature: τ, divides scores.

    Source: paper eq. 4.
    """
    scores = (queries @ documents.T / temperature).masked_fill(mask, float("-inf"))
    return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
