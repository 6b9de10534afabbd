"""Layers of the native backbones run one by one, for computations that the native classes do not offer.

These are angles that differ by head (the remote code of cde-small-v1), and keys and values that are kept from a context
that is read once, by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import merge_heads, split_heads


@dataclass(frozen=True)
class PreparedKeys:
    """Keys and values of context and soft tokens, in every layer, for the text of a cached two-way model.

    Attributes:
        keys: Keys of each layer, rotated already.
        values: Values of each layer.
    """

    keys: Float[Tensor, "layers contexts heads given head_dim"]
    values: Float[Tensor, "layers contexts heads given head_dim"]

    def to(self, dtype: torch.dtype) -> "PreparedKeys":
        """Return a copy in another dtype, that of the backbone."""
        return PreparedKeys(self.keys.to(dtype), self.values.to(dtype))


class Layers:
    """The layers of a native backbone.

    Args:
        native: transformers' module.
        heads: Number of attention heads.
    """

    def __init__(self, native: nn.Module, heads: int) -> None:
        self.native: Any = native
        self.heads = heads
        self.unplaced = 0

    @property
    def blocks(self) -> Iterable[Any]:
        """The layers, from the bottom."""
        return self.native.layers

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """Embed context and soft tokens for the first layer."""
        raise NotImplementedError

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Embed text after given tokens for the first layer."""
        raise NotImplementedError

    def run(
        self,
        x: Float[Tensor, "batch tokens dim"],
        there: Bool[Tensor, "batch sequence"],
        kept: PreparedKeys | None = None,
    ) -> tuple[Float[Tensor, "batch tokens dim"], PreparedKeys]:
        """Apply all layers to the last tokens of a sequence.

        Args:
            x: The tokens, embedded.
            there: True if there is a token at that place of the complete sequence.
            kept: Keys and values of the tokens before them; None if `x` is the complete sequence.

        Returns:
            The tokens' states, and their own keys and values.
        """
        own: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.blocks):
            x, key, value = self.step(number, layer, x, there, kept)
            own.append((key, value))
        keys, values = (torch.stack(each) for each in zip(*own, strict=True))
        return self._last(x), PreparedKeys(keys, values)

    def step(
        self,
        number: int,
        layer: Any,
        x: Float[Tensor, "batch tokens dim"],
        there: Bool[Tensor, "batch sequence"],
        kept: PreparedKeys | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply one layer; arguments as in `run`.

        Returns:
            The tokens' states, and their own keys and values.
        """
        batch, sequence = there.shape
        places = torch.arange(sequence, device=x.device)
        last = places[sequence - x.shape[1] :]
        query, key, value = self._project(layer, x, last)
        keys, values = key, value
        if kept is not None:
            keys = torch.cat([kept.keys[number].expand(batch, -1, -1, -1), key], dim=2)
            values = torch.cat([kept.values[number].expand(batch, -1, -1, -1), value], dim=2)
        seen = there[:, None, None, :] & self._near(number, last, places)
        answer = merge_heads(F.scaled_dot_product_attention(query, keys, values, attn_mask=seen))
        return self._finish(layer, x, answer), key, value

    def _project(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries and keys, rotated, and values."""
        raise NotImplementedError

    def _near(
        self, number: int, places: Int[Tensor, "tokens"], others: Int[Tensor, "sequence"]
    ) -> Bool[Tensor, "tokens sequence"]:
        """Return a mask that is True if a layer lets a token attend to another one; by default everywhere."""
        del number
        return torch.ones(len(places), len(others), dtype=torch.bool, device=places.device)

    def _finish(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], answer: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Apply the rest of a layer, after its attention."""
        raise NotImplementedError

    def _last(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """Apply the part of the encoder after all layers; by default nothing."""
        return x


class NomicLayers(Layers):
    """Layers of NomicBERT. The first `unrotated` places are not rotated, and given tokens have no token type."""

    def __init__(self, native: nn.Module, heads: int, unrotated: int) -> None:
        super().__init__(native, heads)
        self.unrotated = unrotated

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """Normalise given tokens, without a token type."""
        return self.native.embeddings.LayerNorm(given)

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Embed token ids with token type 0, and normalise them."""
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
        """Compute cosines and sines of the angles, for (heads or 1, tokens, head_dim)."""
        return self.native.rotary_emb(x, torch.where(places < self.unrotated, 0, places)[None])

    def _finish(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], answer: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        x = layer.post_attention_layernorm(x + layer.self_attn.o_proj(answer))
        return layer.post_mlp_layernorm(x + layer.mlp(x))


class NomicLayersByHead(NomicLayers):
    """Layers of NomicBERT as in the remote code of cde-small-v1.

    Tokens are rotated by the number of the head; the token type is added twice to text and once to given tokens.
    """

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """Add token type 0 to given tokens, and normalise them."""
        return super().embed_given(given + self.native.embeddings.token_type_embeddings.weight[0])

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Embed token ids with token type 0 added twice, and normalise them."""
        embeddings = self.native.embeddings
        return embeddings.LayerNorm(embeddings.word_embeddings(ids) + 2 * embeddings.token_type_embeddings.weight[0])

    def _angles(self, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]) -> tuple[Tensor, Tensor]:
        by_head = self.native.rotary_emb(x, torch.arange(self.heads, device=x.device)[None])
        cosines, sines = (each[0][:, None, :] for each in by_head)  # (heads, 1, head_dim)
        turned = (places >= self.unrotated)[None, :, None]
        return torch.where(turned, cosines, torch.ones_like(cosines)), torch.where(
            turned, sines, torch.zeros_like(sines)
        )


class BertLayers(Layers):
    """Layers of BERT. Given tokens have neither position nor token type; the text counts its own positions."""

    @property
    def blocks(self) -> Iterable[Any]:
        """The layers, from the bottom."""
        return self.native.encoder.layer

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """Normalise given tokens, without a position or token type."""
        return self.native.embeddings.LayerNorm(given)

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Embed token ids at the positions of a text by itself, and normalise them."""
        return self.native.embeddings(input_ids=ids)

    def _project(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        del places
        attention = layer.attention.self
        query, key, value = (
            split_heads(project(x), self.heads) for project in (attention.query, attention.key, attention.value)
        )
        return query, key, value

    def _finish(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], answer: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        x = layer.attention.output(answer, x)
        return layer.output(layer.intermediate(x), x)


class ModernLayers(Layers):
    """Layers of ModernBERT: text is normalised twice, positions run through, local layers see half a window a side.

    The first `unplaced` tokens of a sequence all stand at position 0.
    """

    def __init__(self, native: nn.Module, heads: int, window: int, unplaced: int) -> None:
        super().__init__(native, heads)
        self.window, self.unplaced = window, unplaced

    def _positions(self, places: Int[Tensor, "tokens"]) -> Int[Tensor, "tokens"]:
        return torch.where(places < self.unplaced, 0, places)

    def embed_given(self, given: Float[Tensor, "batch given dim"]) -> Float[Tensor, "batch given dim"]:
        """Normalise given tokens."""
        return self.native.embeddings(inputs_embeds=given)

    def embed_text(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens dim"]:
        """Embed and normalise token ids, and normalise the result again."""
        return self.native.embeddings(inputs_embeds=self.native.embeddings(input_ids=ids))

    def _project(
        self, layer: Any, x: Float[Tensor, "batch tokens dim"], places: Int[Tensor, "tokens"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = layer.attn.Wqkv(layer.attn_norm(x)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        cosines, sines = self.native.rotary_emb(x, self._positions(places)[None], layer.attention_type)
        return _rotated(query, cosines, sines), _rotated(key, cosines, sines), value

    def _near(
        self, number: int, places: Int[Tensor, "tokens"], others: Int[Tensor, "sequence"]
    ) -> Bool[Tensor, "tokens sequence"]:
        if self.native.config.layer_types[number] == "full_attention":
            return super()._near(number, places, others)
        return (self._positions(places)[:, None] - self._positions(others)).abs() <= self.window // 2

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
    """Rotate each pair of entries of the two halves by its angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-second, first], dim=-1) * sines
