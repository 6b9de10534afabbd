"""Cross-encoders run by sentence-transformers itself, in torch."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Float32
from safetensors import safe_open  # pyright: ignore[reportUnknownVariableType]

from cde_rag.errors import ModelError, require
from cde_rag.models.cross_encoder.checkpoint import CLASSIFIER
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.network import loaded_in_torch, no_bars
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
        if drawn := _drawn(model.model, files):
            raise ModelError(
                f"{files.name}: expected all weights in its files, found none for {', '.join(drawn):.200}, which "
                "transformers would draw at random. Download or save the model again."
            )
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


def _drawn(network: Any, files: ModelFiles) -> list[str]:
    """Return the names of the weights of a network that its files lack, which transformers draws anew each time."""
    stored = set[str]()
    for path in files.digests:
        if path.endswith(".safetensors"):
            with cast(Any, safe_open)(files.folder / path, framework="numpy") as file:
                stored.update(file.keys())
    if network is None or stored.issuperset(name for name, _ in network.named_parameters()):
        return []
    with no_bars():  # files may have other names, which transformers knows: it is asked, at the price of a second load
        _, report = cast(Any, type(network)).from_pretrained(
            network.name_or_path, config=network.config, local_files_only=True, output_loading_info=True
        )
    pooled = type(network).__name__.endswith(CLASSIFIER)  # others may have a pooler that no module reads
    return sorted(name for name in report["missing_keys"] if pooled or not name.startswith("pooler."))
