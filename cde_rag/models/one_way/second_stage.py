"""The second stage: an encoder of a text given its corpus and, for a passage, its siblings."""

from itertools import islice

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import ContextKeyValues, Embeddings, EncoderLayer, mean_pool, split_heads
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.roles import DOCUMENT as DOCUMENT
from cde_rag.models.roles import QUERY as QUERY


class SecondStage(nn.Module):
    """M2: an encoder whose topmost layers let text attend to the prepared context and to its siblings, never back.

    Source: ours (one-way context attention); pooling over text tokens as in paper §4.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.lead_share = config.lead_share
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.given = nn.ModuleList(nn.Linear(config.dim, 2 * config.dim) for _ in range(config.context_layers))
        self.gates = nn.Parameter(torch.zeros(config.context_layers, config.heads))
        self.roles = nn.Parameter(torch.zeros(2, config.dim))
        self.sibling_norm = nn.LayerNorm(config.dim)
        self.sibling_level = nn.Parameter(torch.zeros(config.dim))
        self.sibling_output = nn.Linear(config.dim, config.dim, bias=False)

    def keys_and_values(
        self, layer: int, x: Float[Tensor, "batch given dim"]
    ) -> tuple[Float[Tensor, "batch heads given head_dim"], Float[Tensor, "batch heads given head_dim"]]:
        """Compute keys and gated values of latents or siblings, for the text of one of the context layers."""
        key, value = self.given[layer](x).chunk(2, dim=-1)
        gate = torch.tanh(self.gates[layer])[:, None, None].to(value.dtype)
        return split_heads(key, self.heads), split_heads(value, self.heads) * gate

    def prepare(
        self,
        latents: Float[Tensor, "latents dim"],
        output_map: Float[Tensor, "dim dim"],
        sibling_weight: Float[Tensor, ""],
    ) -> PreparedContext:
        """Compute the keys and values of a corpus for all context layers, once.

        Args:
            latents: Latents of the context.
            output_map: Linear map of pooled texts.
            sibling_weight: Factor of the siblings' part of the output, 0 … 1.
        """
        pairs = [self.keys_and_values(layer, latents[None]) for layer in range(len(self.given))]
        return PreparedContext(
            keys=torch.cat([key for key, _ in pairs]),
            values=torch.cat([value for _, value in pairs]),
            output_map=output_map,
            sibling_weight=sibling_weight,
        )

    def forward(
        self,
        embeddings: Embeddings,
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"] | None,
        role: int,
        prepared: PreparedContext,
        siblings: Float[Tensor, "batch siblings dim"] | None = None,
        sibling_mask: Bool[Tensor, "batch siblings"] | None = None,
    ) -> Float[Tensor, "batch dim"]:
        """Embed a batch of texts.

        Args:
            embeddings: Embeddings, shared with the first stage.
            ids: Token ids, padded on the right.
            mask: True if there is a token; None if every row is full.
            role: `QUERY` or `DOCUMENT`.
            prepared: Prepared context of the corpus; keys and values in the dtype of the layers.
            siblings: First-stage vectors of each text's siblings in their order, padded; None if no text of the
                batch has any.
            sibling_mask: True if there is a sibling; given together with `siblings`.

        Returns:
            Float32, unit norm.
        """
        x = self.states(embeddings, ids, mask, role, prepared, siblings, sibling_mask)
        with torch.autocast(x.device.type, enabled=False):
            return self.pooled(mean_pool(x, mask), prepared, siblings, sibling_mask)

    def states(
        self,
        embeddings: Embeddings,
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"] | None,
        role: int,
        prepared: PreparedContext,
        siblings: Float[Tensor, "batch siblings dim"] | None = None,
        sibling_mask: Bool[Tensor, "batch siblings"] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Compute the last layer's output for each token; arguments as in `forward`."""
        batch = ids.shape[0]
        dtype = prepared.keys.dtype
        x = embeddings(ids, self.roles[role]).to(dtype)
        text_mask = None if mask is None else mask[:, None, None, :]
        given_mask, sibling_input = None, None
        if siblings is not None and sibling_mask is not None:
            sibling_input = (self.sibling_norm(siblings) + self.sibling_level).to(dtype)
            latents_mask = sibling_mask.new_ones(batch, prepared.keys.shape[2])
            given_mask = torch.cat([latents_mask, sibling_mask], dim=1)[:, None, None, :]
        every_keys, every_values = (
            x.unsqueeze(1).expand(-1, batch, -1, -1, -1).unbind() for x in (prepared.keys, prepared.values)
        )
        layers = iter(self.layers)
        for layer in islice(layers, len(self.layers) - len(self.given)):
            x = layer(x, text_mask)
        for number, (layer, keys, values) in enumerate(zip(layers, every_keys, every_values, strict=True)):
            if sibling_input is not None:
                sibling_keys, sibling_values = self.keys_and_values(number, sibling_input)
                keys, values = torch.cat([keys, sibling_keys], dim=2), torch.cat([values, sibling_values], dim=2)
            x = layer(x, text_mask, ContextKeyValues(keys, values, given_mask))
        return x

    def pooled(
        self,
        means: Float[Tensor, "texts dim"],
        prepared: PreparedContext,
        siblings: Float[Tensor, "texts siblings dim"] | None,
        sibling_mask: Bool[Tensor, "texts siblings"] | None,
    ) -> Float[Tensor, "texts dim"]:
        """Turn the means over texts' tokens into embeddings, float32, unit norm."""
        pooled = F.normalize(means, dim=-1)
        if siblings is not None and sibling_mask is not None:
            lead = siblings[:, 0] * sibling_mask[:, :1]
            parent = torch.lerp(mean_pool(siblings, sibling_mask), lead, self.lead_share)
            pooled = pooled + prepared.sibling_weight * self.sibling_output(parent)
        return F.normalize(pooled @ prepared.output_map, dim=-1)
