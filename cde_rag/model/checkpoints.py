"""Model folders with config.json, model.safetensors and tokenizer.json. No pickle, no remote code."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.model import model_packages
from cde_rag.model.config import ModelConfig
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_stage import TwoStage

BUNDLED = Path(__file__).parent / "bundled"
ALIASES = {"cde-mini": "cde-mini-1"}  # what new collections get
_DTYPES = (torch.int8, torch.bfloat16, torch.float16, torch.float32)
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
SCALE = ".scale"  # beside an int8 tensor: its float16 scales, per row and group
GROUP = 64  # entries of a row that share a scale
MAX_WEIGHTS_BYTES = 2 * 1024**3


@runtime_checkable
class WrittenAsJson(Protocol):
    """Protocol of a model's config, as a digest needs it."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields that determine the vector space, and the model's name."""
        ...


def find(name: str | Path) -> Path:
    """Return the folder of a model by its name in this or another package, an alias, or its own path.

    Raises:
        ModelError: There is no such model, or its package is not installed.
    """
    folder = local(name)
    if folder is not None:
        return folder
    raise model_packages.missing(str(name)) or ModelError(
        f"Expected a bundled model ({', '.join(sorted({*ALIASES, *packaged_names()}))}), a folder with {CONFIG}, or a "
        f"hub id such as jxm/cde-small-v2, found {str(name)!r}."
    )


def local(name: str | Path) -> Path | None:
    """Return the folder of a model by its name, an alias, or its own path; None if there is no such model."""
    return packaged(ALIASES.get(str(name), str(name))) or (Path(name) if (Path(name) / CONFIG).is_file() else None)


def packaged(name: str) -> Path | None:
    """Return the folder of a model that is bundled or in an installed package of its own; None for other names."""
    if Path(name).name != name:
        return None
    folder = BUNDLED / name if (BUNDLED / name / CONFIG).is_file() else model_packages.installed(name)
    return folder if folder is not None and (folder / CONFIG).is_file() else None


def packaged_names() -> set[str]:
    """Return the names of all bundled models and of those in installed packages of their own."""
    return {folder.parent.name for folder in BUNDLED.glob(f"*/{CONFIG}")} | model_packages.names()


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


def checked(path: Path, expected: str) -> bytes:
    """Read a file of a model and check its digest.

    Raises:
        ModelError: The file is missing, too large, or its sha256 is not `expected`.
    """
    try:
        if path.stat().st_size > MAX_WEIGHTS_BYTES:
            raise ModelError(f"{path} is larger than {MAX_WEIGHTS_BYTES} bytes; is it a model of this library?")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"Expected {path}, found: {error}. Give the folder of a complete model.") from error
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ModelError(
            f"{path}: {CONFIG} expects sha256 {expected[:16]}…, found {found[:16]}…. The file is damaged or of another "
            "model; install or download it again."
        )
    return content


def read(folder: Path) -> tuple[TwoStage, TextTokenizer, str]:
    """Read a model folder.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        ModelError: A file is missing, damaged, of a newer format, or its tensors are not those of the config.
    """
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
        value: Any = json.loads(text)
        weights_sha256, tokenizer_sha256 = value.pop("weights_sha256"), value.pop("tokenizer_sha256")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"Expected a model config at {folder / CONFIG}, found: {error!r}.") from error
    config = ModelConfig.from_json(value)
    content = checked(folder / WEIGHTS, weights_sha256)
    tokenizer = TextTokenizer(checked(folder / TOKENIZER, tokenizer_sha256).decode())
    with torch.device("meta"):
        network = TwoStage(config)
    try:
        network.load_state_dict(dequantise(load(content)), strict=True, assign=True)
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ModelError(f"{folder / WEIGHTS} does not hold the tensors that {CONFIG} describes: {error}") from error
    return network.eval().requires_grad_(requires_grad=False), tokenizer, digest(config, weights_sha256)


def digest(config: WrittenAsJson, weights_sha256: str) -> str:
    """Compute the digest that a Context is bound to: sha256 hex of the config (without its name) and the weights."""
    sizes = {key: value for key, value in config.to_json().items() if key != "name"}
    return hashlib.sha256(json.dumps([sizes, weights_sha256], sort_keys=True).encode()).hexdigest()
