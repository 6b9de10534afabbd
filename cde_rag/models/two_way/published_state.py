"""Tensors of a published model under their published names, and under those of this library's network."""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.models.two_way import published
from cde_rag.models.two_way.config import NOMIC_BERT, TwoWayConfig
from cde_rag.models.two_way.published import FIRST, SECOND

_PLACES = {  # prefixes of keys: published, ours
    f"{FIRST}embedder.": "first_stage.backbone.native.",
    f"{FIRST}mlp.": "first_stage.projection.",
    f"{SECOND}backbone.": "second_stage.backbone.native.",
    f"{SECOND}prompt_projection.": "second_stage.soft.",
    f"{SECOND}output_projection.": "second_stage.output.",
    f"{SECOND}sequence_dropout_null_embedding": "second_stage.null_embedding",
}
_NOMIC_NAMES = {  # parts of NomicBERT's keys: published, transformers'
    "encoder.layers.": "layers.",
    "emb_ln.": "embeddings.LayerNorm.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".fc11.": ".up_proj.",
    ".fc12.": ".gate_proj.",
    ".fc2.": ".down_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}


def own_state(state: Mapping[str, Float[Tensor, "..."]], config: TwoWayConfig) -> dict[str, Tensor]:
    """Convert the tensors of a published model to this library's names, in float32.

    Raises:
        ModelError: Tensors are missing, unknown, of another shape, or no floats; the message lists them.
    """
    published.check_tensors({name: tuple(tensor.shape) for name, tensor in state.items()}, published.layout(config))
    own: dict[str, Tensor] = {}
    for name in published.layout(config):
        tensor = state[name]
        if not tensor.is_floating_point():
            raise ModelError(
                f"Tensors are not those that the config describes: {name} {tensor.dtype} instead of floats."
            )
        own.update(_own(name, tensor.float(), config.family))
    return own


def _own(name: str, tensor: Float[Tensor, "..."], family: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor under its own name, or the three parts of a joint projection under theirs."""
    start = next(start for start in _PLACES if name.startswith(start))
    place, rest = _PLACES[start], name.removeprefix(start)
    if family == NOMIC_BERT and place.endswith("native."):
        for old, new in _NOMIC_NAMES.items():
            rest = rest.replace(old, new)
        if rest.endswith(".attn.Wqkv.weight"):
            layer = rest.removesuffix("attn.Wqkv.weight")
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{place}{layer}self_attn.{letter}_proj.weight", part
            return
    yield place + rest, tensor


def published_state(own: Mapping[str, Float[Tensor, "..."]], config: TwoWayConfig) -> dict[str, Tensor]:
    """Convert the tensors of this library's network to their published names; the inverse of `own_state`."""
    return {
        name: torch.cat([own[part] for part, _ in _own(name, torch.empty(3, 0), config.family)])
        for name in published.layout(config)
    }
