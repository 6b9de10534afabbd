"""Costs of a system: time of embedding, and bytes of the vectors and of the model's files."""

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from cde_rag.embedders.contextual import contextual
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import TruncationWarning
from cde_rag.indexing.audit import uncached
from cde_rag.models.loading import ModelSource
from cde_rag.models.model import Model
from cde_rag.models.plain.checkpoint import DOWNLOADED

_BATCHES, _BATCH = 4, 16  # timed batches, of which the median counts, and texts in each
_FLOAT32: Final = 4  # bytes


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a system for one corpus.

    Attributes:
        seconds: Time of embedding all passages on this machine; 0 where nothing is left to embed.
        vector_bytes: Bytes of their vectors, as float32; 0 for BM25.
        model_bytes: Bytes of the model's files; 0 for BM25, and for models without files here, such as those of an API.
    """

    seconds: float = 0.0
    vector_bytes: int = 0
    model_bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of two corpora, which share the model."""
        return Cost(
            self.seconds + other.seconds,
            self.vector_bytes + other.vector_bytes,
            max(self.model_bytes, other.model_bytes),
        )


class CostMeter:
    """Meter of embedding times; each model is timed once, so that its systems have the same time for a passage."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # of a passage, by the digest of the weights

    def cost(self, embedder: Embedder, texts: Sequence[str]) -> Cost:
        """Time a sample of texts, without siblings and kept vectors, and return the cost of all.

        Args:
            embedder: The embedder.
            texts: All passages, at least one.
        """
        key = embedder.context.identity.weights_sha256
        if key not in self._seconds:
            self._seconds[key] = _seconds(uncached(embedder), texts)
        own = contextual(unwrapped(embedder))
        return Cost(
            seconds=self._seconds[key] * len(texts),
            vector_bytes=len(texts) * embedder.context.identity.dim * _FLOAT32,
            model_bytes=0 if own is None else model_bytes(own.model),
        )


def model_bytes(model: Model) -> int:
    """Return the bytes of a model's files, with those of the models that belong to it; 0 if it has none here."""
    if model.folder is None:
        return 0
    parts = () if model.identity.is_plain else ModelSource.of(model.folder).family.parts(model.folder)
    return sum(_size(folder) for folder in (model.folder, *parts))


def _size(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if any(fnmatch(path.name, kind) for kind in DOWNLOADED))


def _seconds(embedder: Embedder, texts: Sequence[str]) -> float:
    """Return the seconds of one text, as the median of some batches of texts from all over the corpus."""
    some = texts[:: max(1, len(texts) // (_BATCHES * _BATCH))][: _BATCHES * _BATCH]
    batches = [some[start : start + _BATCH] for start in range(0, len(some), _BATCH)]
    found: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        embedder.embed_passages(batches[0], None)  # loads what a first call loads
        for batch in batches:
            started = time.perf_counter()
            embedder.embed_passages(batch, None)
            found.append((time.perf_counter() - started) / len(batch))
    return statistics.median(found)
