"""Folders of two-way models: the published files unchanged and, after `convert`, with their digests."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from cde_rag._files import file_sha256
from cde_rag.errors import ModelError
from cde_rag.model import hub
from cde_rag.model.names import ModelName
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_way import published
from cde_rag.model.two_way.config import TwoWayConfig
from cde_rag.model.two_way.network import TwoWay
from cde_rag.model.two_way.tensor_files import read_tensors
from cde_rag.model.weights import (
    CONFIG,
    INDEX,
    TOKENIZER,
    WEIGHTS,
    check_size,
    read_json,
    weight_files,
)

CONVERTED = "cde_rag"  # field of a config.json that `convert` adds
FORMAT = 1  # version of that field
PREFIX_END = ": "  # last characters of every prefix


@dataclass(frozen=True)
class _Files:
    """Files of a model, all checked except for the values of the weights.

    Attributes:
        value: Content of config.json.
        config: Config of the model that results from it.
        weights: Files of tensors.
        tokenizer: tokenizer.json of the model, or of its backbone.
        digests: sha256 of each file of weights.
    """

    value: dict[str, Any]
    config: TwoWayConfig
    weights: list[Path]
    tokenizer: Path
    digests: list[str]


def read(folder: Path, name: ModelName) -> tuple[TwoWay, TextTokenizer, str]:
    """Read a model folder of the published layout.

    Args:
        folder: Folder with config.json, model.safetensors (or its shards and their index) and, mostly, tokenizer.json.
        name: Name of the model, with the options of its reading.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, and the digest of config and weights.

    Raises:
        MissingExtraError: `transformers` is not installed, or too old.
        ModelError: A file is missing, damaged, too large or pickled, or the tensors are not those of the config or not
            finite.
    """
    files = _look(folder, name)
    tokenizer = _tokenizer(files)
    with torch.device("meta"):
        network = TwoWay(files.config, prefix_end=tokenizer.first_id(PREFIX_END))
    mapped = published.own_state(read_tensors(folder, files.weights), files.config)
    state = {name: tensor.clone() for name, tensor in mapped.items()}  # mapped memory changes with its file
    if wrong := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
        raise ModelError(
            f"{folder}: expected weights that are finite numbers, found NaN or infinity in {', '.join(wrong[:3])}. Get "
            "the files again, or from their author."
        )
    network.load_state_dict(state, strict=True, assign=True)
    network.restore_tables()
    digest = hashlib.sha256(json.dumps([files.config.sizes(), files.digests], sort_keys=True).encode()).hexdigest()
    return network.eval().requires_grad_(requires_grad=False), tokenizer, digest


def write(folder: Path, network: TwoWay, tokenizer_json: str) -> None:
    """Write a model in the published layout, float32.

    Raises:
        ModelError: Its backbone is not one of the published ones, or its semantics are not those of training.
    """
    value = published.published_config(network.config)
    folder.mkdir(parents=True, exist_ok=True)
    state = published.published_state(network.state_dict(), network.config)
    save_file(state, folder / WEIGHTS)
    (folder / TOKENIZER).write_text(tokenizer_json, encoding="utf-8")
    digests = {each: file_sha256(folder / each) for each in (WEIGHTS, TOKENIZER)}
    value[CONVERTED] = {"format": FORMAT, "source": network.config.name, "sha256": digests}
    (folder / CONFIG).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def convert(folder: Path, name: ModelName, target: Path) -> None:
    """Write a folder that is read without network: the same weights, the tokenizer, and a config with their digests.

    Args:
        folder: A model of the published layout, such as the hub's cache.
        name: Name of the model.
        target: A folder that does not exist; it appears once it is complete.

    Raises:
        ModelError: The model cannot be read, or the target exists or cannot be written.
    """
    files = _look(folder, name)
    _tokenizer(files)
    published.own_state(read_tensors(folder, files.weights), files.config)
    sources = {path.name: path for path in files.weights} | {TOKENIZER: files.tokenizer}
    if (folder / INDEX).is_file() and len(files.weights) > 1:
        sources[INDEX] = folder / INDEX
    digests = {each: file_sha256(path) for each, path in sources.items()}
    value = files.value | {CONVERTED: {"format": FORMAT, "source": str(name), "sha256": digests}}
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another folder, or remove it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as place:
            complete = Path(place) / target.name
            complete.mkdir()
            for each, path in sources.items():
                shutil.copyfile(path, complete / each)
            (complete / CONFIG).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
            complete.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: not written ({error.strerror}). Choose a writable folder with space.") from error


def _look(folder: Path, name: ModelName) -> _Files:
    value = read_json(folder / CONFIG)
    converted = _converted(folder, value)
    config = published.read_config(value, name)
    weights = weight_files(folder)
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        tokenizer = hub.fetch_tokenizer(published.TOKENIZERS[config.family], wanted_by=name.base)
    check_size(str(tokenizer), TOKENIZER, tokenizer.stat().st_size)
    digests = {path.name: file_sha256(path) for path in weights}
    found = digests | {TOKENIZER: file_sha256(tokenizer)}
    if converted and found.keys() - converted.keys():
        raise ModelError(
            f"{folder}: {CONFIG} expects {', '.join(converted)}, found {', '.join(found)}. Convert the model again."
        )
    for each in found.keys() & converted.keys():
        if found[each] != (expected := converted[each]):
            raise ModelError(
                f"{folder / each}: {CONFIG} expects sha256 {expected[:16]}…, found {found[each][:16]}…. The file "
                "is damaged or of another model; convert the model again."
            )
    return _Files(value, config, weights, tokenizer, list(digests.values()))


def _converted(folder: Path, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the digests that `convert` wrote; none for a folder as it was published."""
    if CONVERTED not in value:
        return {}
    added: Any = value[CONVERTED]
    try:
        digests, found = dict[str, str](added["sha256"]), added["format"]
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{folder / CONFIG}: expected digests in {CONVERTED!r}. Convert the model again.") from error
    if found != FORMAT:
        raise ModelError(
            f"{folder / CONFIG}: expected {CONVERTED!r} of format {FORMAT}, found {found!r}. Update cde-rag, or "
            "convert the model again."
        )
    return digests


def _tokenizer(files: _Files) -> TextTokenizer:
    """Load the tokenizer, from tokenizer.json alone, and check that it fits the weights."""
    try:
        tokenizer = TextTokenizer(files.tokenizer.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"Expected a tokenizer at {files.tokenizer}, found: {error}.") from error
    if tokenizer.size > files.config.vocab_size or tokenizer.special_tokens != 2:
        raise ModelError(
            f"{files.tokenizer}: expected a tokenizer of at most {files.config.vocab_size} word pieces that adds 2 "
            f"special tokens, found {tokenizer.size} and {tokenizer.special_tokens}. It is of another model."
        )
    return tokenizer
