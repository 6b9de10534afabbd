"""Path of the context: from vectors of a sample of the corpus to the input of every layer of the second stage."""

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import merge_heads, split_heads
from cde_rag.models.one_way.config import ModelConfig


@dataclass(frozen=True)
class PreparedContext:
    """Second-stage input from a Context; derived, reproducible, a few hundred kB for cde-mini.

    Attributes:
        keys: Key of each latent, per context layer and head.
        values: Likewise the values, multiplied with the head's gate.
        output_map: Linear map of pooled texts to the corpus's space; the identity for the null context, but for the
            rotation of a rotated model.
        sibling_weight: Factor of the siblings' part of the output, 0 … 1; see `sibling_weight`.
    """

    keys: Float[Tensor, "layers heads latents head_dim"]
    values: Float[Tensor, "layers heads latents head_dim"]
    output_map: Float[Tensor, "dim dim"]
    sibling_weight: Float[Tensor, ""]

    def to(self, dtype: torch.dtype) -> "PreparedContext":
        """Return a copy with keys and values in another dtype; all else stays float32."""
        return replace(self, keys=self.keys.to(dtype), values=self.values.to(dtype))


class SetAttention(nn.Module):
    """Attention from learned latents to a set of context embeddings, of any size and in any order.

    A row that stands for several equal documents has their number as its weight (the logarithm is added to its scores).
    The null context is a separate learned set of latents, used from here on in the same way.

    Source: ours, after the induced points of Lee et al. 2019 (Set Transformer, §3.1).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.latents = nn.Parameter(torch.randn(config.latents, config.dim))
        self.null_latents = nn.Parameter(torch.randn(config.latents, config.dim))
        self.latent_norm = nn.LayerNorm(config.dim)
        self.context_norm = nn.LayerNorm(config.dim)
        self.query = nn.Linear(config.dim, config.dim)
        self.key_value = nn.Linear(config.dim, 2 * config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.feed_norm = nn.LayerNorm(config.dim)
        self.up = nn.Linear(config.dim, 2 * config.dim)
        self.down = nn.Linear(2 * config.dim, config.dim)
        self.output_norm = nn.LayerNorm(config.dim)

    def forward(
        self, context: Float[Tensor, "context dim"], counts: Int[Tensor, "context"]
    ) -> Float[Tensor, "latents dim"]:
        """Compute the latents of the set; those of the null context if the set is empty."""
        if context.shape[0] == 0:
            return self.output_norm(self.null_latents)
        query = split_heads(self.query(self.latent_norm(self.latents))[None], self.heads)
        key, value = (
            split_heads(part, self.heads) for part in self.key_value(self.context_norm(context))[None].chunk(2, dim=-1)
        )
        answer = F.scaled_dot_product_attention(query, key, value, attn_mask=counts.float().log()[None, None, None, :])
        x = self.latents + self.output(merge_heads(answer))[0]
        return self.output_norm(x + self.down(F.gelu(self.up(self.feed_norm(x)))))


class OutputMap(nn.Module):
    """A mild whitening by the context's second moments: U ((λ/λ̄ + s) / (1 + s))^(-a) Uᵀ.

    λ and U are the eigenvalues and eigenvectors of the context embeddings' second-moment matrix and λ̄ their mean; a is
    learned and zero at the start, so that the map is the identity, and s ≥ 0 is learned. Directions that all documents
    of the corpus share distinguish them least and are shortened. Differentiable in a and s only.

    Source: ours.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.zeros(()))
        self.log_shift = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(
        self, context: Float[Tensor, "context dim"], counts: Int[Tensor, "context"]
    ) -> Float[Tensor, "dim dim"]:
        """Compute the map for a set of context embeddings, float32; the identity if the set is empty."""
        if context.shape[0] == 0:
            return torch.eye(context.shape[1], device=context.device)
        with torch.no_grad():
            rows, weights = context.double(), (counts / counts.sum()).double()
            moments = (rows * weights[:, None]).T @ rows
            values, vectors = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(moments))  # pyright: ignore[reportUnknownMemberType]
            relative = (values.clamp(min=0) / values.mean()).float()
            vectors = vectors.float()
        shift = self.log_shift.exp()
        scale = ((relative + shift) / (1 + shift)) ** -self.exponent
        return (vectors * scale) @ vectors.T


def sibling_weight(
    context: Float[Tensor, "context dim"], counts: Int[Tensor, "context"], full_likeness: float
) -> Float[Tensor, ""]:
    """Compute the factor of the siblings' weight, 0 … 1: the corpus's likeness divided by the full likeness.

    Likeness is the mean cosine between two different documents of the context. If all are of one kind, such as the
    pages of one product, a passage alone seldom identifies its document, and siblings do; if each has a subject of its
    own, its own words identify it, and siblings blur them.

    Args:
        context: Context embeddings, unit norm.
        counts: Number of equal documents that each row stands for.
        full_likeness: Likeness from which on siblings have their full weight; 0: always.

    Returns:
        Float32, without gradients; a half if there are no two rows to compare, but 1 if `full_likeness` is 0.

    Source: ours.
    """
    if full_likeness == 0:
        return context.new_ones(())
    if context.shape[0] < 2:
        return context.new_full((), 0.5)
    with torch.no_grad():
        weights = counts.double()
        rows = context.double() * weights[:, None]
        pairs = weights.sum().square() - weights.square().sum()  # of different documents
        likeness = (rows.sum(0).square().sum() - rows.square().sum()) / pairs
        return (likeness / full_likeness).clamp(0, 1).float()
