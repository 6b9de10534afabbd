"""Vectors of siblings, as input of the second stage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float32

if TYPE_CHECKING:
    from cde_rag.models.cde_model import CDEModel


class SiblingVectors:
    """First-stage vectors of the siblings of texts; each sibling is embedded once."""

    def __init__(self, model: "CDEModel", siblings: Sequence[Sequence[str]]) -> None:
        rows = {text: row for row, text in enumerate(dict.fromkeys(text for group in siblings for text in group))}
        self._rows = [[rows[text] for text in group] for group in siblings]
        self._vectors = model.first_stage(list(rows))

    def padded(
        self, bucket: Sequence[int]
    ) -> tuple[Float32[np.ndarray, "batch siblings dim"] | None, Bool[np.ndarray, "batch siblings"] | None]:
        """Return the siblings of a batch of texts, padded, and their mask; None for both if no text has any."""
        width = max(len(self._rows[position]) for position in bucket)
        if width == 0:
            return None, None
        given = np.zeros((len(bucket), width, self._vectors.shape[1]), dtype=np.float32)
        mask = np.zeros((len(bucket), width), dtype=np.bool_)
        for number, position in enumerate(bucket):
            count = len(self._rows[position])
            given[number, :count] = self._vectors[self._rows[position]]
            mask[number, :count] = True
        return given, mask
