"""Tensors of a two-way model's weight files."""

from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.model.weights import INDEX, WEIGHTS, read_index


def read_tensors(folder: Path, files: Iterable[Path]) -> dict[str, Tensor]:
    """Read all tensors of a model's files.

    Raises:
        ModelError: A file is truncated or no safetensors, or its tensors are not those of the index.
    """
    tensors: dict[str, Tensor] = {}
    index = None if (folder / WEIGHTS).is_file() else read_index(folder / INDEX)
    for path in files:
        try:
            part = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: expected safetensors, found: {error}. Download it again.") from error
        if index is not None and part.keys() != {name for name, shard in index.items() if shard == path.name}:
            raise ModelError(f"{path} does not hold the tensors that {INDEX} says. Download the model again.")
        tensors.update(part)
    return tensors
