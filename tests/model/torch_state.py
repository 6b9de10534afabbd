"""Tensors of model files decoded by torch: the reference of `stored_tensors.float_state`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from cde_rag.models.pair.checkpoint import unpack


def torch_state(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 tensors of int8 codes, four-bit codes and floats."""
    state: dict[str, Tensor] = {}
    for name, value in stored.items():
        scales = stored.get(f"{name}.scale")
        if scales is None and not name.endswith(".scale"):
            state[name] = value.float()
        elif scales is not None and value.dtype == torch.uint8:
            state[name] = unpack(value, scales)
        elif scales is not None:
            state[name] = (value.reshape(*scales.shape, -1) * scales.float()[..., None]).flatten(1)
    return state
