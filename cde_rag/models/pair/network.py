"""The network of a pair: a one-way model and a plain encoder, whose vectors are concatenated."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import Embeddings, EncoderLayer, mean_pool
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.pair.config import PairConfig
from cde_rag.models.runtimes.stage_runner import not_prepared


class PlainEncoder(nn.Module):
    """A BERT encoder of each text by itself; a text's vector is the normalised mean over its tokens.

    Source: Devlin et al. 2018; Wang et al. 2024 (multilingual E5).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))

    def forward(
        self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch dim"]:
        """Embed each text by itself.

        Returns:
            Float32, unit norm.
        """
        present = None if bool(mask.all()) else mask
        text_mask = None if present is None else present[:, None, None, :]
        x = self.embeddings(ids).to(next(self.layers.parameters()).dtype)
        for layer in self.layers:
            x = layer(x, text_mask)
        return F.normalize(mean_pool(x, present), dim=-1)


class PairNetwork(nn.Module):
    """Two encoders as one: weighted vectors are concatenated, so that a score is the weighted sum of both scores.

    The first half reads corpus and siblings, the second neither: every context is the null context to it. A rotation,
    which changes no score, mixes the dimensions of both halves so that the first ones carry the most information.

    Source: ours.
    """

    rotation: Float[Tensor, "dim dim"]

    def __init__(self, config: PairConfig, first: TwoStage) -> None:
        super().__init__()
        self.config = config
        self.first = first
        self.second = PlainEncoder(config.second)
        self.register_buffer("rotation", torch.zeros(config.dim, config.dim).fill_diagonal_(1))

    @property
    def native_encoder(self) -> None:
        """None: its layers are ours, which add the keys of context and siblings, by SDPA."""

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Set the dtype of both encoders' layers; the first stage and all else stay float32."""
        self.first.set_dtype(dtype)
        self.second.layers.to(dtype)

    def read(self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch dim"]:
        """Embed each text with the first half's first stage, float32, unit norm; the second half's dimensions are 0."""
        (first_ids, first_mask), _ = halves(ids, mask, self.first.config.vocab_size)
        vectors = self.first.read(first_ids, first_mask)
        return F.pad(vectors, (0, self.config.second_dim))

    def prepare(self, context: Float[Tensor, "context dim"], counts: Int[Tensor, "context"]) -> PreparedContext:
        """Compute the first half's input from a corpus; the second half reads none."""
        return self.first.prepare(self._of_first(context), counts)

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
        role: int,
        prepared: object,
        siblings: Float[Tensor, "batch siblings dim"] | None = None,
        sibling_mask: Bool[Tensor, "batch siblings"] | None = None,
    ) -> Float[Tensor, "batch dim"]:
        """Embed a batch of texts; arguments as in `TwoStage.forward`.

        Returns:
            Float32, unit norm.

        Raises:
            TypeError: `prepared` is of a model with another kind of context attention.
        """
        if not isinstance(prepared, PreparedContext):
            raise not_prepared(prepared)
        (first_ids, first_mask), (second_ids, second_mask) = halves(ids, mask, self.first.config.vocab_size)
        read = None if siblings is None else self._of_first(siblings)
        first = self.first(first_ids, first_mask, role, prepared, read, sibling_mask)
        return self.joined(first, self.second(second_ids, second_mask))

    def joined(
        self, first: Float[Tensor, "batch first"], second: Float[Tensor, "batch second"]
    ) -> Float[Tensor, "batch dim"]:
        """Weigh, concatenate and rotate the vectors of both halves, each of unit norm."""
        share = self.config.second_share
        both = torch.cat([(1 - share) ** 0.5 * first, share**0.5 * second], dim=1)
        return F.normalize(both @ self.rotation, dim=-1)

    def _of_first(self, vectors: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows first"]:
        return vectors[..., : self.first.config.dim].contiguous()


def halves(
    ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"], start: int
) -> tuple[
    tuple[Int[Tensor, "batch first"], Bool[Tensor, "batch first"]],
    tuple[Int[Tensor, "batch second"], Bool[Tensor, "batch second"]],
]:
    """Split a padded batch of a pair's rows into two, one of the first half's ids and one of the second's.

    Args:
        ids: Rows of a `PairTokenizer`, padded on the right.
        mask: True if there is a token.
        start: First id of the second half, as in the tokenizer.
    """
    first = (mask & (ids < start)).sum(dim=1, keepdim=True)
    second = mask.sum(dim=1, keepdim=True) - first
    places = torch.arange(int(second.max()), device=ids.device)
    here, there = mask[:, : int(first.max())], places < second
    here = here & (torch.arange(here.shape[1], device=ids.device) < first)
    second_ids = (ids.gather(1, (first + places).clamp(max=ids.shape[1] - 1)) - start).where(there, 0)
    return (ids[:, : here.shape[1]].where(here, 0), here), (second_ids, there)
