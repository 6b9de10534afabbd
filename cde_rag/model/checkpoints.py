"""Model folders with config.json, model.safetensors and tokenizer.json. No pickle, no remote code."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.model.config import ModelConfig
from cde_rag.model.model_files import ALIASES as ALIASES
from cde_rag.model.model_files import CONFIG, TOKENIZER, WEIGHTS, checked, digest, read_header
from cde_rag.model.model_files import find as find
from cde_rag.model.model_files import local as local
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_stage import TwoStage

_DTYPES = (torch.int8, torch.bfloat16, torch.float16, torch.float32)
SCALE = ".scale"  # beside an int8 tensor: its float16 scales, per row and group
GROUP = 64  # entries of a row that share a scale


def quantise(state: Mapping[str, Float[Tensor, "..."]]) -> dict[str, Tensor]:
    """Quantise every matrix of `state` to int8 with a float16 scale for each `GROUP` entries of a row.

    The largest absolute value of a group becomes 127, so that no entry changes by more than a 254th of it (and by
    the rounding of the scale). If the length of rows is no multiple of `GROUP`, a row has one scale. Vectors and
    scalars become float32.
    """
    stored: dict[str, Tensor] = {}
    for key, value in state.items():
        if value.ndim == 2:
            width = GROUP if value.shape[1] % GROUP == 0 else value.shape[1]
            groups = value.float().reshape(len(value), -1, width)
            scale = (groups.abs().amax(dim=2, keepdim=True) / 127).clamp(min=1e-7).half()
            stored[key] = torch.round(groups / scale.float()).clamp(-127, 127).to(torch.int8).flatten(1)
            stored[key + SCALE] = scale[..., 0]
        else:
            stored[key] = value.float().contiguous()
    return stored


def dequantise(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the float32 state of tensors from `quantise`; float tensors are converted to float32.

    Raises:
        ModelError: A tensor is of another dtype, or holds NaN or infinity.
    """
    state: dict[str, Tensor] = {}
    for key, value in stored.items():
        if value.dtype not in _DTYPES:
            raise ModelError(f"Expected {key} in int8 or in floats of 16 or 32 bits, found {value.dtype}.")
        if value.dtype == torch.int8:
            scale = stored[key + SCALE].float()
            state[key] = (value.reshape(*scale.shape, -1) * scale[..., None]).flatten(1)
        elif not key.endswith(SCALE):
            state[key] = value.float()
    for key, value in state.items():
        if not torch.isfinite(value).all():
            raise ModelError(
                f"Expected numbers in {key}, found values that are none. Make or download the model again."
            )
    return state


def write(folder: Path, network: TwoStage, tokenizer_json: str) -> None:
    """Write a model as three files, its matrices in int8; `config.json` has the digests of the other two."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save(quantise(network.state_dict()))
    config = network.config.to_json() | {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "tokenizer_sha256": hashlib.sha256(tokenizer_json.encode()).hexdigest(),
    }
    (folder / WEIGHTS).write_bytes(weights)
    (folder / TOKENIZER).write_text(tokenizer_json, encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> tuple[TwoStage, TextTokenizer, str]:
    """Read a model folder.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        ModelError: A file is missing, damaged, of a newer format, or its tensors are not those of the config.
    """
    header = read_header(folder)
    config = ModelConfig.from_json(header.config)
    contents = [checked(path, expected) for path, expected in header.weights(folder)]
    tokenizer = TextTokenizer(checked(folder / TOKENIZER, header.tokenizer_sha256).decode())
    with torch.device("meta"):
        network = TwoStage(config)
    try:
        stored = {name: tensor for content in contents for name, tensor in load(content).items()}
        network.load_state_dict(dequantise(stored), strict=True, assign=True)
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ModelError(f"{folder / WEIGHTS} does not hold the tensors that {CONFIG} describes: {error}") from error
    return network.eval().requires_grad_(requires_grad=False), tokenizer, digest(config, header.all_weights_sha256)
