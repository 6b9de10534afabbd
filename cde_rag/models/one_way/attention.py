"""Transformer layers whose text attends to given keys and values, which never attend to the text."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.config import ModelConfig


def split_heads(x: Float[Tensor, "batch tokens dim"], heads: int) -> Float[Tensor, "batch {heads} tokens head_dim"]:
    """Split the last axis into heads and move them before the tokens."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch tokens dim"]:
    """Merge the heads into the last axis; the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def attention(
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch heads others head_dim"],
    value: Float[Tensor, "batch heads others head_dim"],
    mask: Bool[Tensor, "batch 1 1 others"] | None,
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Compute scaled dot-product attention as plain products, for training on a CPU.

    On a CPU the backward pass of torch's fused attention takes three times as long as that of these products. It keeps
    the scores, which take little memory for texts of some hundred tokens.

    Source: Vaswani et al. 2017, eq. 1.
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ value


class ContextKeyValues(NamedTuple):
    """Keys, values (gated already) and mask of the vectors that text attends to in addition to itself."""

    keys: Float[Tensor, "batch heads given head_dim"]
    values: Float[Tensor, "batch heads given head_dim"]
    mask: Bool[Tensor, "batch 1 1 given"] | None  # True if there is a vector; None: all are there


class EncoderLayer(nn.Module):
    """A post-norm BERT layer with gated cross-attention inside its attention.

    The text's queries attend to its own keys and, in a separate softmax, to the given ones. Each head's second output,
    whose values carry the factor tanh(gate), is added to the first before the output projection. So the layer is
    exactly BERT's while the gates are zero, and a context needs no further projection of the text when they are not.

    Source: Devlin et al. 2018 for the layer; the gated one-way attention is ours.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.attention_norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.up = nn.Linear(config.dim, config.intermediate)
        self.down = nn.Linear(config.intermediate, config.dim)
        self.output_norm = nn.LayerNorm(config.dim, eps=config.norm_eps)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch 1 1 tokens"] | None,
        given: ContextKeyValues | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Apply the layer to the text, which also attends to the given vectors if there are any."""
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x).chunk(3, dim=-1))
        attend = attention if self.training and x.device.type == "cpu" else F.scaled_dot_product_attention
        answer = attend(query, key, value, mask)
        if given is not None:
            answer = answer + attend(query, given.keys, given.values, given.mask)
        x = self.attention_norm(x + self.output(merge_heads(answer)))
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


class Embeddings(nn.Module):
    """Embeddings of word pieces and positions; shared by both stages, always float32."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        words, positions = (config.vocab_size, config.dim), (config.max_positions, config.dim)
        # Not nn.Embedding's own initialisation: on the meta device, where weights are read, it imports a compiler.
        self.word = nn.Embedding(*words, _weight=torch.randn(*words))
        self.position = nn.Embedding(*positions, _weight=torch.randn(*positions))
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)

    def forward(
        self, ids: Int[Tensor, "batch tokens"], role: Float[Tensor, "dim"] | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Embed token ids; `role` is added to every token (second stage only)."""
        x = self.word(ids) + self.position.weight[: ids.shape[1]]
        return self.norm(x if role is None else x + role)


def mean_pool(
    x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None
) -> Float[Tensor, "batch dim"]:
    """Compute the mean over the tokens where `mask` is True, or over all without one, in float32."""
    if mask is None:
        return x.float().mean(dim=1)
    weights = mask.float()
    return torch.einsum("btd,bt->bd", x.float(), weights) / weights.sum(dim=1, keepdim=True).clamp(min=1)
