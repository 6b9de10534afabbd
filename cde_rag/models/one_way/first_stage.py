"""The first stage: an encoder of each text by itself, for contexts and siblings."""

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.models.one_way.attention import Embeddings, EncoderLayer, mean_pool
from cde_rag.models.one_way.config import ModelConfig


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
