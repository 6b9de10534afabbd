"""Word embeddings of a model, read from its file row by row."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from cde_rag.errors import ModelError
from cde_rag.model.batching import padded
from cde_rag.model.stored_tensors import SCALE, floats, numpy_dtype

Text: TypeAlias = tuple[Float32[np.ndarray, "batch tokens dim"], Float32[np.ndarray, "batch tokens"]]
"""Texts as a graph reads them: word embeddings, and a mask that is 1 where there is a token."""

_LENGTH_BYTES: Final = 8  # of a safetensors file: the length of its header


class WordEmbeddings:
    """Table of word embeddings in a safetensors file, in codes or floats. Thread-safe.

    The file is mapped into memory, and only rows that are asked for are converted to float32: processes share its
    pages, and those of rare word pieces are never read. A file may be replaced or removed meanwhile, but not be written
    to: the process would read what is written, or end with a bus error where the file became shorter.

    Args:
        paths: Files of the model's weights.
        name: Name of the table in one of them.

    Raises:
        ModelError: No file has it, or it has another dtype.
    """

    def __init__(self, paths: Iterable[Path], name: str) -> None:
        found = next((tensors for path in paths if name in (tensors := _mapped(path, (name, name + SCALE)))), None)
        if found is None:
            raise ModelError(f"Expected the weight {name} in the files of the model, found none. Make it again.")
        self._name, self._values, self._scales = name, found[name], found.get(name + SCALE)

    def __call__(self, ids: Int64[np.ndarray, "batch tokens"]) -> Float32[np.ndarray, "batch tokens dim"]:
        """Return the embedding of each token."""
        pieces, places = np.unique(ids, return_inverse=True)
        rows = floats(self._name, self._values[pieces], None if self._scales is None else self._scales[pieces])
        return rows[places.reshape(ids.shape)]


def embedded(words: WordEmbeddings, rows: Sequence[Sequence[int]]) -> Text:
    """Return texts, padded on the right, as a graph reads them.

    Args:
        words: Word embeddings of the model.
        rows: Token ids of each text.
    """
    ids, mask = padded(rows)
    return words(ids), mask.astype(np.float32)


def _mapped(path: Path, names: tuple[str, ...]) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return those of the named tensors that a safetensors file has, mapped into memory."""
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
            if name in names
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(
            f"Expected safetensors at {path}, found: {error!r:.200}. Make or download it again."
        ) from error
