"""Arithmetic on the vectors of a plain embedder: a map of the corpus, and siblings mixed in. Needs no model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

WHITENING_EXPONENT = 0.25  # a: 0 changes nothing, ½ whitens wholly
WHITENING_SHIFT = 5.0  # s: keeps the rare directions from being blown up
SMALLEST = 1e-12  # norm that vectors are divided by


@dataclass(frozen=True, eq=False)
class CorpusMap:
    """A linear map of vectors: the `whitening` of their corpus.

    Directions in which all documents of a corpus agree count less in a score.

    Attributes:
        matrix: Multiplies a vector from the right.

    Source: ours; lab/pages/contexts.md has what it gains.
    """

    matrix: Float32[np.ndarray, "dim dim"]

    @classmethod
    def fit(cls, documents: Float32[np.ndarray, "documents dim"]) -> "CorpusMap":
        """Fit the map to the vectors of a corpus' documents, or of a sample of them."""
        return cls(whitening(documents))

    def apply(self, vectors: Float32[np.ndarray, "rows dim"]) -> Float32[np.ndarray, "rows dim"]:
        """Map vectors of documents or queries; returns unit vectors."""
        return unit(vectors @ self.matrix)


def mixed(
    vectors: Float32[np.ndarray, "rows dim"],
    siblings: Sequence[Sequence[int]],
    pool: Float32[np.ndarray, "texts dim"],
    weight: float,
) -> Float32[np.ndarray, "rows dim"]:
    """Add a share of the mean of its siblings' vectors to each vector; returns unit vectors.

    Args:
        vectors: Unit norm, of documents.
        siblings: For each document the rows of `pool` that are its siblings; a document without any stays as it is.
        pool: Unit norm.
        weight: Weight of the siblings' mean; the document's own vector has weight 1.

    Examples:
        >>> mixed(np.eye(2, dtype=np.float32), [[1], []], np.eye(2, dtype=np.float32), 0.75).tolist()
        [[0.800000011920929, 0.6000000238418579], [0.0, 1.0]]
    """
    found = vectors.copy()
    for row, places in enumerate(siblings):
        if places:
            found[row] += np.float32(weight) * pool[list(places)].mean(axis=0)
    return unit(found)


def unit(vectors: Float32[np.ndarray, "rows dim"]) -> Float32[np.ndarray, "rows dim"]:
    """Normalise rows to norm 1; rows of zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST)


def whitening(documents: Float32[np.ndarray, "documents dim"]) -> Float32[np.ndarray, "dim dim"]:
    """Compute a mild whitening by the documents' second moments: U (λ/λ̄ + s)^(−a) Uᵀ; symmetric."""
    values, vectors = np.linalg.eigh(documents.T.astype(np.float64) @ documents / len(documents))
    scale = (values.clip(min=0) / values.mean() + WHITENING_SHIFT) ** -WHITENING_EXPONENT
    return ((vectors * scale) @ vectors.T).astype(np.float32)
