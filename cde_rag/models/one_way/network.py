"""The network of a one-way model: both stages, the path of the context between them, and their embeddings."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import Embeddings, mean_pool
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.context_path import OutputMap, PreparedContext, SetAttention, sibling_weight
from cde_rag.models.one_way.first_stage import FirstStage
from cde_rag.models.one_way.second_stage import DOCUMENT, SecondStage
from cde_rag.models.runtimes.stage_runner import not_prepared


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
            role: `second_stage.QUERY` or `second_stage.DOCUMENT`.
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
