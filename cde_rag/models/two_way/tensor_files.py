"""Tensors of a two-way model's weight files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from cde_rag.errors import ModelError, require
from cde_rag.models.files.weights import INDEX, WEIGHTS, read_index


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
