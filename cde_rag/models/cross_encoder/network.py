"""Cross-encoders run by sentence-transformers itself, in torch."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import ModelError, require
from cde_rag.models.cross_encoder.checkpoint import CLASSIFIER
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.network import POOLER, check_weights, loaded_in_torch
from cde_rag.models.runtimes.threads import batch_threads, limited_threads


class TorchCrossEncoder:
    """A CrossEncoder of any architecture; a function from pairs to scores. Thread-safe.

    Args:
        files: Files of the model.
        device: Such as "cpu"; by default CUDA if available.
        dtype: "float32", "bfloat16" or "float16"; as sentence-transformers loads it by default.

    Attributes:
        name: Exact name of the model.

    Raises:
        MissingExtraError: The extra `interop` is not installed.
        ModelError: sentence-transformers cannot load it, its files lack weights, a file was written meanwhile, or it
            has several scores.
    """

    def __init__(self, files: ModelFiles, *, device: str | None, dtype: str | None) -> None:
        def load(package: Any) -> Any:
            return package.CrossEncoder(str(files.folder), device=device, local_files_only=True)

        model = loaded_in_torch(files, load)
        if model.num_labels != 1:
            raise ModelError(
                f"Expected a cross-encoder with one score for a pair, found {files.name} with {model.num_labels}."
            )
        pooled = type(model.model).__name__.endswith(CLASSIFIER)
        check_weights(model.model, files, unused="" if pooled else POOLER)
        self._model = model if dtype is None else model.to(getattr(require("torch", "torch"), dtype))
        self.name, self.runtime, self.device = files.name, "torch", str(model.device)
        self.dtype = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
        self._scoring = threading.Lock()  # tokenizers of transformers are changed by every call

    def __repr__(self) -> str:
        return f"TorchCrossEncoder({self.name})"

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Float32[np.ndarray, " pairs"]:
        """Score pairs of a query and a text; higher is better."""
        if not pairs:
            return np.empty(0, dtype=np.float32)
        with self._scoring, limited_threads(batch_threads()):
            return np.asarray(self._model.predict(list(pairs), show_progress_bar=False), dtype=np.float32)
