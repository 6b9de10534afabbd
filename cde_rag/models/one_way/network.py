"""The network of a one-way model: both stages, the path of the context between them, and their embeddings."""

from itertools import islice

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import ContextKeyValues, Embeddings, EncoderLayer, mean_pool, split_heads
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.context_path import OutputMap, PreparedContext, SetAttention, sibling_weight
from cde_rag.models.runtimes.stage_runner import DOCUMENT, not_prepared


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


class FirstStage(nn.Module):
    """M1: a few encoder layers or none, mean pooling and a projection to the space of the second stage's embeddings.

    It reads every document of a corpus whose documents have siblings, so it has to be cheap; it runs in float32, since
    all vectors of a collection depend on its results.

    Source: paper §4.2 for the stage, figure 17 for its size mattering little.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.first_stage_layers))
        self.up = nn.Linear(config.dim, config.intermediate)
        self.down = nn.Linear(config.intermediate, config.dim)

    def forward(
        self, embeddings: Embeddings, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch dim"]:
        """Embed each text by itself.

        Returns:
            Float32, unit norm.
        """
        x = embeddings(ids)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        pooled = mean_pool(x, mask)
        return F.normalize(pooled + self.down(F.gelu(self.up(pooled))), dim=-1)


class TwoStage(nn.Module):
    """A two-stage model with one-way context attention.

    first_stage: texts → context embeddings (or siblings); set_attention and output_map: context embeddings → prepared
    context, once per Context; second_stage: texts, prepared context, siblings → embeddings. A rotated model's output
    map ends with a rotation, the same for every context: it changes no score, and costs nothing per query.

    Source: Morris & Rush 2024 §4.2 for the two stages; the one-way path between them is ours.
    """

    rotation: Float[Tensor, "dim dim"] | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.first_stage = FirstStage(config)
        self.set_attention = SetAttention(config)
        self.output_map = OutputMap()
        self.second_stage = SecondStage(config)
        identity = torch.zeros(config.dim, config.dim).fill_diagonal_(1)  # torch.eye on "meta" imports torch's compiler
        self.register_buffer("rotation", identity if config.rotated else None)

    @property
    def native_encoder(self) -> None:
        """None: its layers are ours, which add the keys of context and siblings, by SDPA."""

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Set the dtype of the second stage's layers; all else stays float32."""
        self.second_stage.layers.to(dtype)
        self.second_stage.given.to(dtype)

    def read(self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch dim"]:
        """Embed each text by itself with the first stage, float32, unit norm."""
        return self.first_stage(self.embeddings, ids, mask)

    def prepare(self, context: Float[Tensor, "context dim"], counts: Int[Tensor, "context"]) -> PreparedContext:
        """Compute the second stage's input from a corpus.

        Args:
            context: First-stage vectors of a sample of the corpus, float32, in any order; no rows for the null context.
            counts: Number of equal documents that each row stands for, at least 1.
        """
        given = self.second_stage.given
        latents = self.set_attention(context, counts).to(next(given.parameters()).dtype)
        weight = sibling_weight(context, counts, self.config.full_likeness)
        return self.second_stage.prepare(latents, self.turned(self.output_map(context, counts)), weight)

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
        role: int,
        prepared: object,
        siblings: Float[Tensor, "batch siblings dim"] | None = None,
        sibling_mask: Bool[Tensor, "batch siblings"] | None = None,
    ) -> Float[Tensor, "batch dim"]:
        """Embed a batch of texts with the second stage.

        Args:
            ids: Token ids, padded on the right.
            mask: True if there is a token.
            role: `QUERY` or `DOCUMENT`.
            prepared: Result of `prepare`; keys and values in the dtype of the layers.
            siblings: First-stage vectors of each text's siblings in their order, padded; None if no text of the
                batch has any.
            sibling_mask: True if there is a sibling; given together with `siblings`.

        Returns:
            Float32, unit norm.

        Raises:
            TypeError: `prepared` is of a model with another kind of context attention.
        """
        if not isinstance(prepared, PreparedContext):
            raise not_prepared(prepared)
        present = None if bool(mask.all()) else mask
        return self.second_stage(self.embeddings, ids, present, role, prepared, siblings, sibling_mask)

    def chunks(
        self,
        ids: Int[Tensor, "windows tokens"],
        mask: Bool[Tensor, "windows tokens"],
        spans: Bool[Tensor, "chunks tokens"],
        window: Int[Tensor, "chunks"],
        prepared: PreparedContext,
        siblings: Float[Tensor, "chunks siblings dim"] | None,
        sibling_mask: Bool[Tensor, "chunks siblings"] | None,
        around: Float[Tensor, "windows others dim"] | None,
        around_mask: Bool[Tensor, "windows others"] | None,
    ) -> Float[Tensor, "chunks dim"]:
        """Embed chunks that are read together in windows, each as the mean over its own tokens (late chunking).

        Args:
            ids: Token ids of the windows, padded on the right.
            mask: True if there is a token.
            spans: Tokens of each chunk in its window, and those that the window begins and ends with.
            window: Row of each chunk's window.
            prepared: Result of `prepare`.
            siblings: First-stage vectors of each chunk's siblings, padded; None if no chunk has any.
            sibling_mask: True if there is a sibling.
            around: First-stage vectors of chunks outside the window that its tokens attend to; None if there are none.
            around_mask: True if there is such a chunk.

        Returns:
            Float32, unit norm.

        Source: Günther et al. (2024) for the pooling; together with the context and siblings it is ours.
        """
        stage = self.second_stage
        x = stage.states(self.embeddings, ids, mask, DOCUMENT, prepared, around, around_mask)
        with torch.autocast(x.device.type, enabled=False):
            return stage.pooled(mean_pool(x[window], spans), prepared, siblings, sibling_mask)

    def turned(self, output_map: Float[Tensor, "dim dim"]) -> Float[Tensor, "dim dim"]:
        """Return the linear map of pooled texts: an output map, followed by the rotation of a rotated model."""
        return output_map if self.rotation is None else output_map @ self.rotation
