"""Quantisation to four bits: blocks of 32 entries of a row with a float16 scale each, as in llama.cpp's Q4_0."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor

from cde_rag.errors import ModelError

BLOCK = 32  # entries of a row that share a scale
MIDDLE = 8  # the code of zero
SCALE = ".scale"  # beside a tensor of codes: its scales


def pack(value: Float[Tensor, "rows columns"]) -> tuple[UInt8[Tensor, "rows halves"], Float16[Tensor, "rows blocks"]]:
    """Quantise a matrix whose rows are multiples of a block to codes and scales; unpacked matrices return bit by bit.

    The entry of largest magnitude of a block becomes −8 times its scale, the others the nearest of −8 … 7 times it.

    Source: llama.cpp, quantize_row_q4_0.
    """
    blocks = value.float().reshape(len(value), -1, BLOCK)
    largest = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))
    scale = (largest / -MIDDLE).half()
    inverse = torch.where(scale == 0, 0.0, 1 / scale.float())
    codes = (blocks * inverse + MIDDLE + 0.5).floor().clamp(0, 2 * MIDDLE - 1).to(torch.uint8)
    low, high = codes.chunk(2, dim=2)
    return (low | high << 4).flatten(1), scale[..., 0]


def unpack(
    codes: UInt8[Tensor, "rows halves"], scales: Float16[Tensor, "rows blocks"]
) -> Float[Tensor, "rows columns"]:
    """Compute the float32 matrix of codes and scales; of a block the low halves of its bytes come first."""
    packed = codes.reshape(len(codes), -1, BLOCK // 2)
    entries = torch.cat([packed & 15, packed >> 4], dim=2).float() - MIDDLE
    return (entries * scales.float()[..., None]).flatten(1)


def unpack_all(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the float32 state of a file's tensors; float32 tensors pass unchanged.

    Raises:
        ModelError: A tensor is of another dtype, has no fitting scales, or holds NaN or infinity.
    """
    state: dict[str, Tensor] = {}
    for key, value in stored.items():
        if key.endswith(SCALE):
            continue
        if value.dtype not in (torch.uint8, torch.float32):
            raise ModelError(f"Expected {key} in 4-bit codes or float32, found {value.dtype}. Make the model again.")
        scales = stored.get(key + SCALE)
        if value.dtype == torch.uint8 and (
            scales is None
            or scales.dtype != torch.float16
            or (len(value), value.shape[-1] * 2) != (len(scales), scales.shape[-1] * BLOCK)
        ):
            raise ModelError(f"Expected a float16 scale for each {BLOCK} entries of {key}, found others or none.")
        state[key] = value if scales is None else unpack(value, scales)
        if not torch.isfinite(state[key]).all():
            raise ModelError(f"Expected numbers in {key}, found values that are none. Make the model again.")
    return state
