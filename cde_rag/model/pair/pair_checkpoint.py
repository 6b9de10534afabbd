"""Folders of pairs: the second half's weights in four bits, and name and digest of the first half's model."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.model import checkpoints, model_packages
from cde_rag.model.checkpoints import CONFIG, TOKENIZER, WEIGHTS, checked
from cde_rag.model.pair.four_bits import SCALE, pack, unpack_all
from cde_rag.model.pair.pair_config import PAIR, PairConfig
from cde_rag.model.pair.pair_network import PairNetwork
from cde_rag.model.pair.pair_tokenizer import PairTokenizer

FIRST = "first."  # names of the first half's tensors begin so; they are in its own file
_FOUR_BITS = ("word.weight", "query_key_value.weight", "output.weight", "up.weight", "down.weight")  # of the second


def is_pair(config: Mapping[str, Any]) -> bool:
    """Return True if a model's config.json is that of a pair."""
    return config.get("attention") == PAIR


def write(folder: Path, network: PairNetwork, tokenizer: PairTokenizer) -> None:
    """Write a pair as three files; its first half is only named in them."""
    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        if name.startswith("second.") and name.endswith(_FOUR_BITS):
            stored[name], stored[name + SCALE] = pack(value)
        elif not name.startswith(FIRST):
            stored[name] = value.float().contiguous()
    weights = save(stored)
    config = network.config.to_json() | {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "tokenizer_sha256": hashlib.sha256(tokenizer.serialised.encode()).hexdigest(),
    }
    (folder / WEIGHTS).write_bytes(weights)
    (folder / TOKENIZER).write_text(tokenizer.serialised, encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> tuple[PairNetwork, PairTokenizer, str]:
    """Read a pair's folder, and its first half from the package.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        ModelError: A file is missing, damaged or of a newer format, its tensors are not those of the config, or the
            first half is not in the package or differs from that with which the pair was made.
    """
    try:
        value: Any = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights_sha256, tokenizer_sha256 = value.pop("weights_sha256"), value.pop("tokenizer_sha256")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(
            f"Expected a pair's config with the digests of its files at {folder / CONFIG}, found: {error!r}. Make or "
            "download the model again."
        ) from error
    config = PairConfig.from_json(value)
    first, first_tokenizer, found = checkpoints.read(_first(config))
    if found != config.first_sha256:
        raise ModelError(
            f"{config.name}: expected {config.first} with the digest {config.first_sha256[:16]}… as its first half, "
            f"found {found[:16]}…. Install the version of cde-rag that the model was made with."
        )
    if config.dim != first.config.dim + config.second_dim:
        raise ModelError(
            f"The config's dim has to be {first.config.dim} + {config.second_dim}, its halves'; found {config.dim}."
        )
    content = checked(folder / WEIGHTS, weights_sha256)
    serialised = checked(folder / TOKENIZER, tokenizer_sha256).decode()
    tokenizer = PairTokenizer(first_tokenizer, first.config.vocab_size, serialised)
    with torch.device("meta"):
        network = PairNetwork(config, first)
    try:
        state = unpack_all(load(content))
        named = {FIRST + name: tensor for name, tensor in first.state_dict().items()}
        network.load_state_dict(state | named, strict=True, assign=True)
    except (SafetensorError, RuntimeError) as error:
        raise ModelError(f"{folder / WEIGHTS} does not hold the tensors that {CONFIG} describes: {error}") from error
    return network.eval().requires_grad_(requires_grad=False), tokenizer, checkpoints.digest(config, weights_sha256)


def _first(config: PairConfig) -> Path:
    folder = checkpoints.packaged(config.first)
    if folder is None:
        raise model_packages.missing(config.first) or ModelError(
            f"{config.name}: expected its first half, {config.first!r}, among the installed models "
            f"({', '.join(sorted(checkpoints.packaged_names()))}), found no such model. Install the version of cde-rag "
            "that the model was made with."
        )
    return folder
