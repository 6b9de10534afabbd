"""The native backbones' layers run one by one, where the native classes cannot do what is asked.

That is: angles that differ by head (the remote code of cde-small-v1), and keys and values that are kept from a context
that is read once, by itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.model.attention import merge_heads, split_heads


@dataclass(frozen=True)
class PreparedKeys:
    """What the text of a cached two-way model attends to: keys and values of context and soft tokens, in every layer.

    Attributes:
        keys: Rotated already.
        values: Likewise for each layer.
    """

    keys: Float[Tensor, "layers contexts heads given head_dim"]
    values: Float[Tensor, "layers contexts heads given head_dim"]

    def to(self, dtype: torch.dtype) -> "PreparedKeys":
        """In the dtype of the backbone."""
        return PreparedKeys(self.keys.to(dtype), self.values.to(dtype))


class Layers:
    """The layers of a native backbone.

    Args:
        native: transformers' module.
        heads: Of attention.
    """

    def __init__(self, native: nn.Module, heads: int) -> None:
        self.native: Any = native
        self.heads = heads

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """Context and soft tokens as the first layer reads them."""
        raise NotImplementedError

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Text as the first layer reads it, after given tokens."""
        raise NotImplementedError

    def run(
        self,
        x: Float[Tensor, "batch tokens dim"],
        there: Bool[Tensor, "batch sequence"],
        kept: PreparedKeys | None = None,
    ) -> tuple[Float[Tensor, "batch tokens dim"], PreparedKeys]:
        """All layers over the last tokens of a sequence.

        Args:
            x: The tokens, embedded.
            there: Where in the whole sequence there is a token.
            kept: Keys and values of what comes before; None where `x` is the whole sequence.

        Returns:
            The tokens' states, and their own keys and values.
        """
        batch, sequence = there.shape
        first = sequence - x.shape[1]
        places = torch.arange(sequence, device=x.device)
        own: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.native.layers):
            query, key, value = self._project(layer, x, places[first:])
            own.append((key, value))
            if kept is not None:
                key = torch.cat([kept.keys[number].expand(batch, -1, -1, -1), key], dim=2)
                value = torch.cat([kept.values[number].expand(batch, -1, -1, -1), value], dim=2)
            seen = there[:, None, None, :] & self._near(number, places[first:], places)
            x = self._finish(layer, x, merge_heads(F.scaled_dot_product_attention(query, key, value, attn_mask=seen)))
        keys, values = (torch.stack(each) for each in zip(*own, strict=True))
        return self._last(x), PreparedKeys(keys, values)

    def _project(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values."""
        raise NotImplementedError

    def _near(
        self, number: int, places: Int[Tensor, "tokens"], others: Int[Tensor, "sequence"]
    ) -> Bool[Tensor, "tokens sequence"]:
        """Which tokens of the sequence a layer lets each token see."""
        del number
        return torch.ones(len(places), len(others), dtype=torch.bool, device=places.device)

    def _finish(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], answer: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """The rest of a layer, after its attention."""
        raise NotImplementedError

    def _last(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """What follows all layers."""
        return x


class NomicLayers(Layers):
    """NomicBERT's. The first `unrotated` places of a sequence are not rotated, and given tokens have no token type."""

    def __init__(self, native: nn.Module, heads: int, unrotated: int) -> None:
        super().__init__(native, heads)
        self.unrotated = unrotated

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """As in the class above."""
        return self.native.embeddings.LayerNorm(given)

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """As in the class above."""
        embeddings = self.native.embeddings
        return embeddings.LayerNorm(embeddings.word_embeddings(ids) + embeddings.token_type_embeddings.weight[0])

    def _project(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        attention = layer.self_attn
        cosines, sines = self._angles(x, places)
        query, key = (
            _rotated(split_heads(project(x), self.heads), cosines, sines)
            for project in (attention.q_proj, attention.k_proj)
        )
        return query, key, split_heads(attention.v_proj(x), self.heads)

    def _angles(self, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines, for (heads or 1, tokens, head_dim)."""
        return self.native.rotary_emb(x, torch.where(places < self.unrotated, 0, places)[None])

    def _finish(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], answer: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        x = layer.post_attention_layernorm(x + layer.self_attn.o_proj(answer))
        return layer.post_mlp_layernorm(x + layer.mlp(x))


class NomicLayersByHead(NomicLayers):
    """NomicBERT's as the remote code of cde-small-v1 reads them.

    Rotated by the number of the head; token type added twice to text and once to given tokens.
    """

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """As in the class above."""
        return super().embed_given(given + self.native.embeddings.token_type_embeddings.weight[0])

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """As in the class above."""
        embeddings = self.native.embeddings
        return embeddings.LayerNorm(embeddings.word_embeddings(ids) + 2 * embeddings.token_type_embeddings.weight[0])

    def _angles(self, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]) -> tuple[Tensor, Tensor]:
        by_head = self.native.rotary_emb(x, torch.arange(self.heads, device=x.device)[None])
        cosines, sines = (each[0][:, None, :] for each in by_head)  # (heads, 1, head_dim)
        turned = (places >= self.unrotated)[None, :, None]
        return torch.where(turned, cosines, torch.ones_like(cosines)), torch.where(
            turned, sines, torch.zeros_like(sines)
        )


class ModernLayers(Layers):
    """ModernBERT's: text is normalised twice, places run through, and a local layer sees half its window each way."""

    def __init__(self, native: nn.Module, heads: int, window: int) -> None:
        super().__init__(native, heads)
        self.window = window

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """As in the class above."""
        return self.native.embeddings(inputs_embeds=given)

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """As in the class above."""
        return self.native.embeddings(inputs_embeds=self.native.embeddings(input_ids=ids))

    def _project(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = layer.attn.Wqkv(layer.attn_norm(x)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        cosines, sines = self.native.rotary_emb(x, places[None], layer.attention_type)
        return _rotated(query, cosines, sines), _rotated(key, cosines, sines), value

    def _near(
        self, number: int, places: Int[Tensor, "tokens"], others: Int[Tensor, "sequence"]
    ) -> Bool[Tensor, "tokens sequence"]:
        if self.native.config.layer_types[number] == "full_attention":
            return super()._near(number, places, others)
        return (places[:, None] - others).abs() <= self.window // 2

    def _finish(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], answer: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        x = x + layer.attn.Wo(answer)
        return x + layer.mlp(layer.mlp_norm(x))

    def _last(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        return self.native.final_norm(x)


def _rotated(
    x: Float[Tensor, "batch heads tokens head_dim"], cosines: Tensor, sines: Tensor
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Each pair of the two halves turned by its angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-second, first], dim=-1) * sines
