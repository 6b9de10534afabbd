"""Work of a pool's worker process: an embedder is loaded, and embeds slices."""

from functools import lru_cache
from typing import Final

from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.pool import EmbedderSpec, Slice
from cde_rag.embedders.protocol import Embedded

KEPT: Final = 2  # embedders: of the active generation, and of the one that is filled


def embed_slice(spec: EmbedderSpec, part: Slice, device: str | None) -> Embedded:
    """Embed a slice; the embedder is kept for the next slice.

    Raises:
        CDEError: As `ContextualEmbedder.from_spec` and `embed_passages`.
    """
    return _kept(spec, device).embed_passages(part.texts, part.siblings)


_kept = lru_cache(KEPT)(ContextualEmbedder.from_spec)
