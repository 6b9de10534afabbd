"""Quantisation to four bits: blocks of 32 entries of a row with a float16 scale each, as in llama.cpp's Q4_0."""

import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor

from cde_rag.models.files.stored_tensors import BLOCK, MIDDLE


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
