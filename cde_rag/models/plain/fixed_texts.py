"""Fixed texts, by whose vectors a user's function is recognised; they stand in each of its Contexts."""

from typing import Final

import numpy as np
from jaxtyping import Bool

from cde_rag._validation import digest
from cde_rag.context.context import Context

PROBES: Final = (  # fixed for ever: contexts hold their vectors
    "The capital of France is Paris.",
    "def add(a, b): return a + b",
    "Revenue rose by 12 % in the third quarter of 2019.",
    "El perro duerme debajo de la mesa.",
    "Take two tablets a day, with water, after a meal.",
    "How do I restart a failed job?",
    "量子力学",
    "x",
)
FIXED: Final = (*PROBES, *(f"cde-rag probe query: {text}" for text in PROBES))  # as documents, then as queries
FIXED_DIGESTS: Final = tuple(digest(text) for text in FIXED)


def corpus_size(context: Context) -> int:
    """Return the number of documents of a Context that are of its corpus."""
    return int(of_corpus(context).sum())


def of_corpus(context: Context) -> Bool[np.ndarray, " documents"]:
    """Return True for each document of a Context that is of its corpus, and no fixed text."""
    fixed = set(FIXED_DIGESTS)
    return np.array([row.tobytes() not in fixed for row in context.digests], np.bool_)
