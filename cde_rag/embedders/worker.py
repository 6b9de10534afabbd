"""Work of a pool's worker process: an embedder is loaded, and embeds slices."""

from functools import lru_cache
from pathlib import Path
from typing import Final

from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.pool import EmbedderSpec, Slice
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import ModelError

KEPT: Final = 2  # embedders: of the active generation, and of the one that is filled


def load_embedder(spec: EmbedderSpec, device: str | None) -> ContextualEmbedder:
    """Load the embedder of a spec.

    Args:
        spec: The vector space.
        device: Such as "cpu" or "cuda"; None: CUDA where there is one.

    Raises:
        ContextMismatchError: The model of this name has other weights here.
        ModelError: The worker does not have the model.
    """
    model = spec.folder if spec.folder and Path(spec.folder).is_dir() else spec.model
    try:
        return ContextualEmbedder(
            model,
            Context.from_bytes(spec.context, where="The context of the pool"),
            device=device,
            dtype=spec.dtype,
            runtime=spec.runtime,
            mini_batch_size=spec.mini_batch_size,
        )
    except ModelError as error:
        raise ModelError(
            f"A worker needs the model {spec.model!r} and does not have it. {error} Install its package on every "
            "machine, or put its folder at the same path on each."
        ) from error


def embed_slice(spec: EmbedderSpec, part: Slice, device: str | None) -> Embedded:
    """Embed a slice; the embedder is kept for the next slice.

    Raises:
        CDEError: As `load_embedder` and `ContextualEmbedder.embed_passages`.
    """
    return _kept(spec, device).embed_passages(part.texts, part.siblings)


_kept = lru_cache(KEPT)(load_embedder)
