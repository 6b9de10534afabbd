"""Network of the published design: both stages, and the preparation of a context for them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import mean_pool
from cde_rag.models.runtimes.stage_runner import not_prepared
from cde_rag.models.two_way import backbones
from cde_rag.models.two_way.config import CACHED, TwoWayConfig, reads_no_siblings, round_robin
from cde_rag.models.two_way.layers import PreparedKeys


@dataclass(frozen=True)
class PreparedTokens:
    """Second-stage input of a two-way model from a Context: the tokens that stand before every text.

    Attributes:
        tokens: Context embeddings and soft tokens, float32; one row for all texts, or one for each.
    """

    tokens: Float[Tensor, "contexts given dim"]

    def to(self, dtype: torch.dtype) -> "PreparedTokens":
        """Return the object itself, since the backbone casts its input."""
        del dtype
        return self


class TwoWayFirstStage(nn.Module):
    """M1: an encoder of a text by itself to one vector, the projected mean of its token states.

    With several tokens per document it gives as many vectors, of equal segments of the text.

    Source: paper §4.2 and §10.11; cde/model.py, which cuts a batch's padded length, where ours cuts the text's own.
    """

    def __init__(self, config: TwoWayConfig) -> None:
        super().__init__()
        self.segments = config.tokens_per_document
        self.backbone = backbones.build(config.of_first_stage)
        self.projection = nn.Sequential(nn.Linear(config.dim, config.dim), nn.GELU(), nn.Linear(config.dim, config.dim))

    def forward(
        self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch context_dim"]:
        """Embed each text by itself.

        Returns:
            Float32, of any norm; several vectors of a text one after the other.
        """
        states = self.backbone.read(ids, mask)
        if self.segments == 1:
            return self.projection(mean_pool(states, mask))
        return self.projection(segment_means(states, mask, self.segments)).flatten(1)


def segment_means(
    states: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"], segments: int
) -> Float[Tensor, "batch segments dim"]:
    """Compute the means of equal segments of each text, in float32; a segment without a token has the text's mean.

    A segment has the text's length, divided by their number and rounded up; the last ones may be shorter or empty.

    Args:
        states: States of the tokens.
        mask: True where there is a token; texts are padded on the right.
        segments: Their number.
    """
    lengths = mask.sum(dim=1, keepdim=True)
    size = (lengths + segments - 1).div(segments, rounding_mode="floor").clamp(min=1)
    number = torch.arange(mask.shape[1], device=mask.device) // size  # (batch, tokens)
    inside = (number[:, None] == torch.arange(segments, device=mask.device)[:, None]) & mask[:, None]
    counts = inside.sum(dim=2, keepdim=True)
    means = inside.float() @ states.float() / counts.clamp(min=1)
    return torch.where(counts > 0, means, mean_pool(states, mask)[:, None])


class TwoWaySecondStage(nn.Module):
    """M2: an encoder of the sequence [context | soft tokens | text], whose tokens all attend to each other.

    Source: paper §4.2; cde/model.py for soft tokens and pooling.
    """

    def __init__(self, config: TwoWayConfig, prefix_end: int) -> None:
        super().__init__()
        dim = config.dim
        self.pooling = config.pooling
        self.adds_pooled = config.adds_pooled
        self.prefix_end = prefix_end
        self.soft_tokens = config.soft_tokens
        self.backbone = backbones.build(config)
        self.soft = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, config.soft_tokens * dim))
        self.output = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.null_embedding = nn.Parameter(torch.zeros(dim)) if config.null_embedding else None

    def prepare(self, context: Float[Tensor, "contexts context dim"]) -> PreparedTokens:
        """Append the soft tokens to context embeddings in their order; one row for all texts, or one for each."""
        soft = self.soft(torch.ones_like(context[0, 0])).reshape(1, self.soft_tokens, -1)
        return PreparedTokens(torch.cat([context, soft.expand(len(context), -1, -1)], dim=1))

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
        prepared: PreparedTokens | PreparedKeys,
    ) -> Float[Tensor, "batch dim"]:
        """Embed a batch of texts, whose ids include their prefix.

        Args:
            ids: Token ids, padded on the right.
            mask: True if there is a token.
            prepared: Result of `TwoWay.prepare`.

        Returns:
            Float32, of any norm.
        """
        counted = mask & self._after_prefix(ids, mask) if self.pooling == "text_after_prefix" else mask
        if isinstance(prepared, PreparedKeys):
            states = self.backbone.read_after_prepared(prepared, ids, mask)
        else:
            given = prepared.tokens.expand(len(ids), -1, -1)
            there = mask.new_ones(given.shape[:2])
            states = self.backbone.read_after(given, ids, torch.cat([there, mask], dim=1))
            counted = torch.cat([there if self.pooling == "sequence" else ~there, counted], dim=1)
        pooled = mean_pool(states, counted)
        output = self.output(pooled)
        return output + pooled if self.adds_pooled else output

    def _after_prefix(
        self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Bool[Tensor, "batch tokens"]:
        """Return True after the first token, [CLS] apart, that ends a prefix; True everywhere in a row without one."""
        ends = (ids == self.prefix_end) & mask
        ends[:, 0] = False
        before = ends.cumsum(dim=1) - ends.long()  # ends before a token
        return (before > 0) | ~ends.any(dim=1, keepdim=True)


class TwoWay(nn.Module):
    """A two-stage model with two-way context attention.

    Source: Morris & Rush 2024 §4.2.
    """

    def __init__(self, config: TwoWayConfig, *, prefix_end: int) -> None:
        super().__init__()
        self.config = config
        self.first_stage = TwoWayFirstStage(config)
        self.second_stage = TwoWaySecondStage(config, prefix_end)

    @property
    def native_encoder(self) -> nn.Module | None:
        """Encoder of the second stage if its attention may be another: one that transformers computes completely."""
        backbone = self.second_stage.backbone
        return backbone.native if backbone.takes_flash else None

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Set the dtype of the second stage's backbone; all else stays float32."""
        self.second_stage.backbone.to(dtype)

    def restore_tables(self) -> None:
        """Compute the tables of both backbones, which are never stored, after a construction on the meta device."""
        self.first_stage.backbone.restore_tables()
        self.second_stage.backbone.restore_tables()

    def read(
        self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch context_dim"]:
        """Embed each text by itself with the first stage, float32, of any norm."""
        return self.first_stage(ids, mask)

    def prepare(
        self, context: Float[Tensor, "context context_dim"], counts: Int[Tensor, "context"]
    ) -> PreparedTokens | PreparedKeys:
        """Compute the second stage's input from exactly `context_size` context documents, or none for the null context.

        Args:
            context: First-stage vectors, one for each different document; no rows for the null context.
            counts: Number of equal documents that each row stands for. Repeated rows follow after all rows, as by
                `config.round_robin`.

        Raises:
            ContextError: Another number of documents, or the null context of a model that never learned one.
        """
        self.config.check_context(int(counts.sum()))
        null = self.second_stage.null_embedding
        if len(context) == 0 and null is not None:
            return self._kept(self.second_stage.prepare(null.expand(1, self.config.context_tokens, -1)))
        rows = torch.as_tensor(round_robin(counts.cpu().numpy()), device=context.device)
        return self._kept(self.second_stage.prepare(context[rows].reshape(1, -1, self.config.dim)))

    def _kept(self, prepared: PreparedTokens) -> PreparedTokens | PreparedKeys:
        """Return the tokens before a text or, for cached attention, their keys and values in every layer."""
        return self.second_stage.backbone.prepare(prepared.tokens) if self.config.attention == CACHED else prepared

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
        role: int,
        prepared: object,
        siblings: Float[Tensor, "batch siblings dim"] | None = None,
        sibling_mask: Bool[Tensor, "batch siblings"] | None = None,
    ) -> Float[Tensor, "batch dim"]:
        """Embed a batch of texts with the second stage; a text's role is in the prefix that its ids begin with.

        Returns:
            Float32, unit norm.

        Raises:
            ModelError: Siblings are given.
            TypeError: `prepared` is of a model with another kind of context attention.
        """
        del role, sibling_mask
        if not isinstance(prepared, PreparedTokens | PreparedKeys):
            raise not_prepared(prepared)
        if siblings is not None:
            raise reads_no_siblings(self.config.name)
        return F.normalize(self.second_stage(ids, mask, prepared), dim=-1)
