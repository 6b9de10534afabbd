"""Word embeddings of a model, read from its file row by row."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import ModelError
from cde_rag.models.batching import padded
from cde_rag.models.files.mapped_tensors import MappedTensors

Text: TypeAlias = tuple[Float32[np.ndarray, "batch tokens dim"], Float32[np.ndarray, "batch tokens"]]
"""Texts as a graph reads them: word embeddings, and a mask that is 1 where there is a token."""


class WordEmbeddings:
    """Table of word embeddings in a safetensors file, in codes or floats. Thread-safe.

    The file is mapped into memory, and only rows that are asked for are converted to float32: processes share its
    pages, and those of rare word pieces are never read.

    Args:
        paths: Files of the model's weights.
        name: Name of the table in one of them.

    Raises:
        ModelError: No file has it, or it has another dtype.
    """

    def __init__(self, paths: Iterable[Path], name: str) -> None:
        self._name, self._tensors = name, MappedTensors(paths, name.__eq__)
        if not self._tensors:
            raise ModelError(f"Expected the weight {name} in the files of the model, found none. Make it again.")

    def __call__(self, ids: Int64[np.ndarray, "batch tokens"]) -> Float32[np.ndarray, "batch tokens dim"]:
        """Return the embedding of each token.

        Raises:
            ModelError: A file was written to.
        """
        pieces, places = np.unique(ids, return_inverse=True)
        return self._tensors.rows(self._name, pieces)[places.reshape(ids.shape)]


def embedded(words: WordEmbeddings, rows: Sequence[Sequence[int]], room: int = 0) -> Text:
    """Return texts, padded on the right, as a graph reads them.

    Args:
        words: Word embeddings of the model.
        rows: Token ids of each text.
        room: Tokens that the graph reads at most; see `padded`.
    """
    ids, mask = padded(rows, room=room)
    return words(ids), mask.astype(np.float32)
