"""Tensors of safetensors files, mapped into memory and converted to float32 whenever they are read."""

import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from cde_rag._files import open_file, written
from cde_rag.errors import ModelError
from cde_rag.models.files.stored_tensors import SCALE, floats, numpy_dtype
from cde_rag.models.shared import Shared

_LENGTH_BYTES: Final = 8  # of a safetensors file: the length of its header


class MappedTensors(Mapping[str, Float32[np.ndarray, "..."]]):
    """Tensors by name, in codes or floats in their files. Thread-safe.

    Processes share the pages of the files, and what is not read takes no memory. Within a process a file is mapped
    once, with one descriptor. It may be replaced or removed meanwhile; one that is written to is read no more, but if
    it became shorter while it was read, the process ends with a bus error.

    Args:
        paths: Files.
        wanted: Chooses tensors by their names.

    Raises:
        ModelError: A file is no safetensors file, or a tensor has another dtype.
    """

    def __init__(self, paths: Iterable[Path], wanted: Callable[[str], bool]) -> None:
        self._stored: dict[str, Shaped[np.ndarray, ...]] = {}
        self._files: list[_MappedFile] = []
        for path in paths:
            file = _mapped(path)
            if found := file.tensors(wanted):
                self._files.append(file)
                self._stored |= found

    def __getitem__(self, name: str) -> Float32[np.ndarray, "..."]:
        """Read a tensor.

        Raises:
            ModelError: A file was written to.
        """
        self._check()
        return floats(name, self._stored[name], self._stored.get(name + SCALE))

    def rows(self, name: str, numbers: Int64[np.ndarray, " rows"]) -> Float32[np.ndarray, "rows dim"]:
        """Read rows of a matrix.

        Raises:
            ModelError: A file was written to.
        """
        self._check()
        scales = self._stored.get(name + SCALE)
        return floats(name, self._stored[name][numbers], None if scales is None else scales[numbers])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name for name in self._stored if not name.endswith(SCALE))

    def __len__(self) -> int:
        """Return the number of tensors."""
        return sum(1 for _ in self)

    def _check(self) -> None:
        for file in self._files:
            file.check()


class _MappedFile:
    """A safetensors file, mapped into memory.

    Args:
        path: The file.

    Raises:
        OSError: There is no such file, or no descriptor is left.
        ValueError: It is empty, or its header is no JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_file(path) as file:
            self._written = written(path)
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(self._data[:_LENGTH_BYTES], "little")
        self._start = _LENGTH_BYTES + length
        if self._start > len(self._data):
            raise ValueError("a header that is longer than the file")
        self._header: dict[str, Any] = json.loads(self._data[_LENGTH_BYTES : self._start])

    def tensors(self, wanted: Callable[[str], bool]) -> dict[str, Shaped[np.ndarray, "..."]]:
        """Return tensors as they are stored.

        Raises:
            ModelError: The file is no safetensors file, or a tensor has another dtype.
        """
        try:
            return {
                name: np.ndarray(
                    one["shape"], numpy_dtype(name, one["dtype"]), self._data, self._start + one["data_offsets"][0]
                )
                for name, one in self._header.items()
                if wanted(name.removesuffix(SCALE))
            }
        except (AttributeError, ValueError, LookupError, TypeError) as error:
            raise _no_safetensors(self.path, error) from error

    def check(self) -> None:
        """Check that the file that is mapped is as it was; another one may be at its path.

        Raises:
            ModelError: It was written to.
        """
        try:
            now = written(self.path)
        except OSError:  # removed; what is mapped stays
            return
        if now != self._written and now[:2] == self._written[:2]:
            raise ModelError(
                f"{self.path} was written to while this process used it. Start the process again, and put new files "
                "of a model in the place of old ones (write and rename) instead of writing into them."
            )


def _mapped(path: Path) -> _MappedFile:
    try:
        return _FILES.get((path.absolute(), written(path)), lambda: _MappedFile(path))
    except (OSError, RecursionError, ValueError) as error:
        raise _no_safetensors(path, error) from error


def _no_safetensors(path: Path, error: Exception) -> ModelError:
    return ModelError(f"Expected safetensors at {path}, found: {error!r:.200}. Make or download it again.")


_FILES: Final = Shared[_MappedFile]()  # those that this process has mapped
