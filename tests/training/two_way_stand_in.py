"""The published two-stage layout on ModernBERT, small and slow: what the golden gradients were made with.

Keys and semantics (`train`) are those of cde-small-v2; the backbones are transformers' own.
"""

from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertModel

SOFT_TOKENS = 8
LEGACY = {"reference_compile"}


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Over the tokens that are there."""
    weights = mask.to(hidden.dtype)
    return torch.einsum("btd,bt->bd", hidden, weights) / weights.sum(dim=1, keepdim=True)


class TwoWay(nn.Module):
    """Both stages under the published keys."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.colon = config["golden_instruction_end_id"]
        given = {key: value for key, value in config["backbone_config"].items() if key not in LEGACY}
        backbone = ModernBertConfig(**given, attn_implementation="sdpa")
        dim = backbone.hidden_size
        self.first_stage_model = nn.ModuleDict(
            {
                "embedder": ModernBertModel(backbone),
                "mlp": nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)),
            }
        )
        self.second_stage_model = nn.ModuleDict(
            {
                "backbone": ModernBertModel(backbone),
                "prompt_projection": nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, SOFT_TOKENS * dim)),
                "output_projection": nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)),
            }
        )

    def first(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Context documents → context embeddings."""
        stage = self.first_stage_model
        hidden = stage["embedder"](input_ids=ids, attention_mask=mask).last_hidden_state
        return stage["mlp"](mean(hidden, mask))

    def second(self, ids: Tensor, mask: Tensor, context: Tensor) -> Tensor:
        """Texts, given context embeddings → embeddings, not normalised."""
        stage, batch = self.second_stage_model, len(ids)
        soft = stage["prompt_projection"](torch.ones_like(context[0])).reshape(SOFT_TOKENS, -1)
        prefix = torch.cat([context, soft]).expand(batch, -1, -1)
        inputs = torch.cat([prefix, stage["backbone"].embeddings(ids)], dim=1)
        whole = torch.cat([mask.new_ones(batch, prefix.shape[1]), mask], dim=1)
        hidden = stage["backbone"](inputs_embeds=inputs, attention_mask=whole).last_hidden_state
        pooled = mean(hidden[:, prefix.shape[1] :], self._after_prefix(ids, mask))
        return pooled + stage["output_projection"](pooled)

    def _after_prefix(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The mask without what stands up to the first colon."""
        colons = F.pad((ids == self.colon)[:, 1:] & (mask[:, 1:] == 1), (1, 0))
        before = colons.int().cumsum(dim=1) - colons.int() == 0
        return torch.where(colons.any(dim=1, keepdim=True) & before, torch.zeros_like(mask), mask)


def two_way(folder: Any, config: dict[str, Any]) -> TwoWay:
    """The tiny golden model, weights and all."""
    model = TwoWay(config)
    model.load_state_dict(load_file(folder / "v2_tiny" / "model.safetensors"))
    return model.eval()
