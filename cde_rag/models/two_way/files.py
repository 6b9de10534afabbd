"""Files of a two-way model: found, checked against the digests that `convert` wrote, and read without torch."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from cde_rag._files import file_sha256, read_file
from cde_rag.errors import ModelError, require
from cde_rag.models.files import hub
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import (
    CONFIG,
    INDEX,
    TOKENIZER,
    WEIGHTS,
    check_size,
    read_index,
    read_json,
    weight_files,
)
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import published
from cde_rag.models.two_way.config import TwoWayConfig


def read_tensors(
    folder: Path, files: Iterable[Path], framework: str = "pt", wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """Read tensors of a model's files.

    Args:
        folder: Folder of the model.
        files: Its files of weights.
        framework: "pt" for tensors of torch, "np" for arrays.
        wanted: Chooses tensors by their names.

    Raises:
        MissingExtraError: Arrays of bfloat16, and `onnx` is not installed.
        ModelError: A file is truncated or no safetensors, or its tensors are not those of the index.
    """
    tensors: dict[str, Any] = {}
    index = None if (folder / WEIGHTS).is_file() else read_index(folder / INDEX)
    for path in files:
        try:
            opened: Any = safe_open(path, framework=framework)
            with opened as file:
                names: set[str] = set(file.keys())
                for name in filter(wanted, names):
                    if framework == "np" and file.get_slice(name).get_dtype() == "BF16":
                        require("ml_dtypes", "onnx")  # which NumPy knows the dtype from
                    tensors[name] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: expected safetensors, found: {error}. Download it again.") from error
        if index is not None and names != {name for name, shard in index.items() if shard == path.name}:
            raise ModelError(f"{path} does not hold the tensors that {INDEX} says. Download the model again.")
    return tensors


CONVERTED = "cde_rag"  # field of a config.json that `convert` adds
FORMAT = 1  # version of that field
PREFIX_END = ": "  # last characters of every prefix


@dataclass(frozen=True)
class PublishedFiles:
    """Files of a model, all checked except for the values of the weights.

    Attributes:
        folder: Folder of the model.
        value: Content of config.json.
        config: Config of the model that results from it.
        weights: Files of tensors.
        tokenizer_path: tokenizer.json of the model, or of its backbone.
        tokenizer: Tokenizer of both stages, from that file alone.
        digests: sha256 of each file of weights.
    """

    folder: Path
    value: dict[str, Any]
    config: TwoWayConfig
    weights: list[Path]
    tokenizer_path: Path
    tokenizer: TextTokenizer
    digests: list[str]

    @classmethod
    def find(cls, folder: Path, name: ModelName) -> "PublishedFiles":
        """Find the files of a model.

        Args:
            folder: Folder with config.json, model.safetensors (or its shards and their index) and, mostly,
                tokenizer.json.
            name: Name of the model, with the options of its reading.

        Raises:
            ModelError: A file is missing, too large, pickled, or another one than `convert` wrote, or the tokenizer
                does not fit the weights.
        """
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
        return cls(folder, value, config, weights, tokenizer, _tokenizer(tokenizer, config), list(digests.values()))

    @property
    def digest(self) -> str:
        """Digest of config and weights."""
        return hashlib.sha256(json.dumps([self.config.sizes(), self.digests], sort_keys=True).encode()).hexdigest()

    def arrays(self, wanted: Callable[[str], bool]) -> dict[str, Float32[np.ndarray, "..."]]:
        """Read tensors as arrays, by their published names.

        Args:
            wanted: Chooses tensors by their names.

        Raises:
            MissingExtraError: They are bfloat16, and `onnx` is not installed.
            ModelError: The tensors are not those of the config, or not finite.
        """
        found = read_tensors(
            self.folder, self.weights, "np", lambda name: wanted(name) and name not in published.UNUSED
        )
        expected = {name: shape for name, shape in published.layout(self.config).items() if wanted(name)}
        published.check_tensors({name: array.shape for name, array in found.items()}, expected)
        arrays = {name: np.asarray(found[name], dtype=np.float32) for name in expected}
        check_finite(self.folder, (name for name, array in arrays.items() if not np.isfinite(array).all()))
        return arrays


def check_finite(folder: Path, others: Iterable[str]) -> None:
    """Refuse weights that are no finite numbers.

    Args:
        folder: Folder of the model.
        others: Names of weights with NaN or infinity.

    Raises:
        ModelError: There are such weights.
    """
    if names := list(others):
        raise ModelError(
            f"{folder}: expected weights that are finite numbers, found NaN or infinity in {', '.join(names[:3])}. Get "
            "the files again, or from their author."
        )


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


def _tokenizer(path: Path, config: TwoWayConfig) -> TextTokenizer:
    try:
        tokenizer = TextTokenizer(read_file(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"Expected a tokenizer at {path}, found: {error}.") from error
    if tokenizer.size > config.vocab_size or tokenizer.special_tokens != 2:
        raise ModelError(
            f"{path}: expected a tokenizer of at most {config.vocab_size} word pieces that adds 2 special tokens, "
            f"found {tokenizer.size} and {tokenizer.special_tokens}. It is of another model."
        )
    return tokenizer
