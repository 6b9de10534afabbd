"""Model folders with config.json, model.safetensors and tokenizer.json. No pickle, no remote code."""

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.models.files.model_files import ALIASES as ALIASES
from cde_rag.models.files.model_files import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    ModelHeader,
    checked,
    digest,
    read_header,
    write_files,
)
from cde_rag.models.files.model_files import find as find
from cde_rag.models.files.model_files import local as local
from cde_rag.models.files.stored_tensors import SCALE, float_state
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.tokenizer import TextTokenizer

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


def write(folder: Path, network: TwoStage, tokenizer_json: str) -> None:
    """Write a model as three files, its matrices in int8; `config.json` has the digests of the other two."""
    write_files(folder, network.config, {WEIGHTS: save(quantise(network.state_dict()))}, tokenizer_json)


def read_state(folder: Path, header: ModelHeader) -> dict[str, Float[Tensor, "..."]]:
    """Read a model's tensors in float32, and check the digests of their files.

    Raises:
        ModelError: A file is missing or damaged, or no safetensors file of codes and floats.
    """
    states = [float_state(checked(path, expected)) for path, expected in header.weights(folder)]
    return {name: torch.as_tensor(value) for state in states for name, value in state.items()}


def read(folder: Path) -> tuple[TwoStage, TextTokenizer, str]:
    """Read a model folder.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        ModelError: A file is missing, damaged, of a newer format, or its tensors are not those of the config.
    """
    header = read_header(folder)
    config = ModelConfig.from_json(header.config)
    state = read_state(folder, header)
    tokenizer = TextTokenizer(checked(folder / TOKENIZER, header.tokenizer_sha256).decode())
    with torch.device("meta"):
        network = TwoStage(config)
    try:
        network.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS} does not hold the tensors that {CONFIG} describes: {error}") from error
    return network.eval().requires_grad_(requires_grad=False), tokenizer, digest(config, header.all_weights_sha256)
