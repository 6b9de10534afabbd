"""Attention of transformers' encoders: SDPA everywhere, flash attention where a GPU and the package are.

Flash attention reads a batch without its padding. The vectors are the same up to rounding, so a collection may be
written with one and searched with the other.

Source: Dao 2023, FlashAttention-2; transformers' `attn_implementation`.
"""

import importlib.util
from typing import Any, Final, Literal, TypeAlias, get_args

from cde_rag.errors import ModelError

Attention: TypeAlias = Literal["auto", "sdpa", "flash_attention_2"]
"""Values of `attn_implementation`; see `EmbedderOptions`."""

AUTO: Final = "auto"
SDPA: Final = "sdpa"
FLASH: Final = "flash_attention_2"
IMPLEMENTATIONS: Final[tuple[str, ...]] = get_args(Attention)
_HALF: Final = ("float16", "bfloat16")  # dtypes that flash attention computes in


def check_attention(asked: str) -> str:
    """Return the name of an implementation.

    Raises:
        ValueError: It is another one.
    """
    if asked not in IMPLEMENTATIONS:
        raise ValueError(f"Expected attn_implementation {', '.join(IMPLEMENTATIONS)}, found {asked!r}.")
    return asked


def check_without_torch(asked: str, runtime: str) -> None:
    """Check the attention of a model that runs without torch, where flash attention is not.

    Raises:
        ModelError: Flash attention is asked for.
        ValueError: The name is of no implementation.
    """
    if check_attention(asked) == FLASH:
        raise ModelError(
            f"attn_implementation={FLASH!r} is of torch, found the runtime {runtime!r}. Give runtime='torch'."
        )


def use_attention(encoder: Any | None, asked: str, *, device: str, dtype: str) -> str:
    """Set the attention of an encoder, and return its name, "sdpa" or "flash_attention_2".

    Args:
        encoder: Module of transformers; None for a network that computes attention itself, by SDPA.
        asked: "auto" takes flash attention where `flash_missing` finds nothing missing, else leaves what is there.
        device: Device of the computation, such as "cpu" or "cuda:0".
        dtype: Dtype of the encoder's layers.

    Raises:
        ModelError: Flash attention is asked for, and something is missing.
        ValueError: The name is of no implementation.
    """
    missing = flash_missing(encoder, device=device, dtype=dtype)
    if check_attention(asked) == FLASH and missing is not None:
        raise ModelError(f"attn_implementation={FLASH!r} {missing}. Leave attn_implementation out.")
    chosen = SDPA if asked == SDPA or missing is not None else FLASH
    if encoder is not None and (chosen == FLASH or asked == SDPA):
        encoder.config.dtype = encoder.dtype  # which transformers compares, and an encoder built from sizes lacks
        encoder.set_attn_implementation(chosen)
    return chosen


def flash_missing(encoder: Any | None, *, device: str, dtype: str) -> str | None:
    """Return the reason why an encoder cannot have flash attention, after "flash attention"; None if it can.

    The package is looked for by itself: without it transformers may download a kernel, which nobody asked for.

    Args:
        encoder: As in `use_attention`.
        device: As in `use_attention`.
        dtype: As in `use_attention`.
    """
    if not getattr(encoder, "_supports_flash_attn", False):
        return "is for ModernBERT and other encoders of transformers; this model computes attention by SDPA"
    return flash_lacking(device=device, dtype=dtype)


def flash_lacking(*, device: str, dtype: str) -> str | None:
    """Return the reason why a machine has no flash attention, worded as in `flash_missing`; None if it has.

    Args:
        device: As in `use_attention`.
        dtype: As in `use_attention`.
    """
    if not device.startswith("cuda"):
        return f"needs a CUDA device, found {device}"
    if dtype not in _HALF:
        return f"needs dtype {' or '.join(_HALF)}, found {dtype}"
    if importlib.util.find_spec("flash_attn") is None:
        return "needs the package flash-attn, which is not installed"
    return None
