"""Embedded: vectors, and which texts were cut."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32

from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import TruncationWarning, warn_user


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings, with flags for truncated texts.

    Attributes:
        vectors: Unit norm; row i belongs to text i.
        truncated: True for texts that exceeded the model's token limit.
    """

    vectors: Float32[np.ndarray, "texts dim"]
    truncated: Bool[np.ndarray, " texts"]


def warn_truncated(truncated: Bool[np.ndarray, " texts"], identity: ModelIdentity) -> None:
    """Warn of texts that exceed a model's token limit, with their number."""
    if count := int(truncated.sum()):
        warn_user(
            f"{count} of {len(truncated)} texts exceed the limit of {identity.max_length} tokens of {identity.name} "
            "and were truncated. Split long documents.",
            TruncationWarning,
        )
