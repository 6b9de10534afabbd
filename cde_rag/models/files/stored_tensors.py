"""Tensors of model files as NumPy arrays: int8 and four-bit codes are multiplied with their scales, without torch.

Equal bit by bit to `checkpoints.dequantise` and `four_bits.unpack_all`, which write what is read here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32, Shaped
from safetensors import SafetensorError, deserialize  # pyright: ignore[reportUnknownVariableType]

from cde_rag.errors import ModelError

SCALE: Final = ".scale"  # suffix of a tensor of codes' float16 scales
BLOCK: Final = 32  # entries of a row that share a scale, of four-bit codes
MIDDLE: Final = 8  # the four-bit code of zero
Array: TypeAlias = Shaped[np.ndarray, "..."]
_DTYPES: Final = {"I8": np.int8, "U8": np.uint8, "F16": np.float16, "F32": np.float32, "BF16": np.uint16}


def float_state(
    content: bytes, wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Float32[np.ndarray, "..."]]:
    """Return the tensors of a safetensors file in float32.

    Args:
        content: The file.
        wanted: Chooses tensors by their names; all by default.

    Raises:
        ModelError: It is no such file, or a tensor has another dtype, no fitting scales, or holds NaN or infinity.
    """
    stored = _stored(content, wanted)
    state: dict[str, Array] = {}
    for name, value in stored.items():
        if name.endswith(SCALE):
            continue
        state[name] = found = floats(name, value, stored.get(name + SCALE))
        if not np.isfinite(found).all():
            raise ModelError(
                f"Expected numbers in {name}, found values that are none. Make or download the model again."
            )
    return state


def _stored(content: bytes, wanted: Callable[[str], bool]) -> Mapping[str, Array]:
    try:
        entries = cast("list[tuple[str, Any]]", deserialize(content))
    except SafetensorError as error:
        raise ModelError(f"Expected safetensors, found: {error}. Make or download the model again.") from error
    stored: dict[str, Array] = {}
    for name, entry in entries:
        if not wanted(name.removesuffix(SCALE)):
            continue
        stored[name] = np.frombuffer(entry["data"], dtype=numpy_dtype(name, entry["dtype"])).reshape(entry["shape"])
    return stored


def numpy_dtype(name: str, dtype: str) -> type[np.generic]:
    """Return the dtype of a tensor as NumPy has it; uint16 for bfloat16.

    Raises:
        ModelError: Another dtype than those of codes and floats.
    """
    if (found := _DTYPES.get(dtype)) is None:
        raise ModelError(f"Expected {name} in codes or in floats of 16 or 32 bits, found {dtype}.")
    return found


def floats(name: str, value: Array, scales: Array | None) -> Float32[np.ndarray, "..."]:
    """Return a tensor, or rows of one, in float32.

    Args:
        name: Name of the tensor, for messages.
        value: Its values as stored: floats, the bits of bfloat16 in uint16, or codes.
        scales: The scales of codes.

    Raises:
        ModelError: Codes have no scales, or others.
    """
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    if value.dtype == np.uint16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    four_bits = value.dtype == np.uint8
    if scales is None or value.ndim != 2 or scales.ndim != 2 or len(scales) != len(value) or not _fit(value, scales):
        raise ModelError(f"Expected scales that fit the codes of {name}, found others or none. Make the model again.")
    if four_bits:
        packed = value.reshape(len(value), -1, BLOCK // 2)
        codes = np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.float32) - np.float32(MIDDLE)
    else:
        codes = value.reshape(*scales.shape, -1).astype(np.float32)
    codes *= scales.astype(np.float32)[..., None]
    return codes.reshape(len(value), -1)


def _fit(value: Array, scales: Array) -> bool:
    if value.dtype == np.uint8:
        return value.shape[1] * 2 == scales.shape[1] * BLOCK
    return scales.shape[1] > 0 and value.shape[1] % scales.shape[1] == 0
