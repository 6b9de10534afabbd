"""Tensors of safetensors files, mapped into memory and converted to float32 whenever they are read."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from cde_rag.errors import ModelError
from cde_rag.model.stored_tensors import SCALE, floats, numpy_dtype

_LENGTH_BYTES: Final = 8  # of a safetensors file: the length of its header


class MappedTensors(Mapping[str, Float32[np.ndarray, "..."]]):
    """Tensors by name, in codes or floats in their files. Thread-safe.

    Processes share the pages of the files, and what is not read takes no memory.

    Args:
        paths: Files.
        wanted: Chooses tensors by their names.

    Raises:
        ModelError: A file is no safetensors file, or a tensor has another dtype.
    """

    def __init__(self, paths: Iterable[Path], wanted: Callable[[str], bool]) -> None:
        self._stored: dict[str, Shaped[np.ndarray, ...]] = {}
        for path in paths:
            self._stored |= _mapped(path, wanted)

    def __getitem__(self, name: str) -> Float32[np.ndarray, "..."]:
        """Read a tensor."""
        return floats(name, self._stored[name], self._stored.get(name + SCALE))

    def rows(self, name: str, numbers: Int64[np.ndarray, " rows"]) -> Float32[np.ndarray, "rows dim"]:
        """Read rows of a matrix."""
        scales = self._stored.get(name + SCALE)
        return floats(name, self._stored[name][numbers], None if scales is None else scales[numbers])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name for name in self._stored if not name.endswith(SCALE))

    def __len__(self) -> int:
        """Return the number of tensors."""
        return sum(1 for _ in self)


def _mapped(path: Path, wanted: Callable[[str], bool]) -> dict[str, Shaped[np.ndarray, "..."]]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(file.read(length))
        start = _LENGTH_BYTES + length
        return {
            name: np.asarray(
                np.memmap(path, numpy_dtype(name, one["dtype"]), "r", start + one["data_offsets"][0], one["shape"])
            )
            for name, one in header.items()
            if wanted(name.removesuffix(SCALE))
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(
            f"Expected safetensors at {path}, found: {error!r:.200}. Make or download it again."
        ) from error
