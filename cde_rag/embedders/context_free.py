"""Base of embedders that read each text by itself, for models of any kind."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag._validation import check_list, check_texts
from cde_rag.context.context import Context
from cde_rag.context.identity import ModelIdentity
from cde_rag.embedders.protocol import Embedded, warn_truncated
from cde_rag.errors import ModelError


class ContextFreeEmbedder(ABC):
    """Base of embedders without context; a subclass embeds texts in a role.

    Attributes:
        identity: Identity of the model.
        context: The null context, or one that holds only a probe of the model.
    """

    identity: ModelIdentity
    context: Context

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        return self.context.fingerprint

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.identity.dim

    @property
    def max_siblings(self) -> int:
        """None: every text is read by itself."""
        return 0

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None, progress: bool = False
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed texts that are to be found.

        Args:
            texts: Documents.
            parents: None; there for embedders that read siblings.
            progress: Show a bar on stderr.

        Returns:
            Unit norm; row i belongs to `texts[i]`.

        Raises:
            CorpusError: A text is blank, holds a lone surrogate, or has no word that the model knows.
            ModelError: There are parents, or a user's function returns other than one finite vector for each text.
            TypeError: `texts` is a single str.

        Warns:
            TruncationWarning: Texts exceed the model's token limit, with their number.
        """
        check_list(texts, call="embed_documents")
        if parents is not None:
            raise self._no_siblings()
        embedded = self.embed_passages(texts, None, progress=progress)
        warn_truncated(embedded.truncated, self.identity)
        return embedded.vectors

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search. Returns, raises and warns like `embed_documents`."""
        check_list(texts, call="embed_queries")
        check_texts(texts)
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "queries": len(texts)}):
            embedded = self._embed(texts, "query")
        warn_truncated(embedded.truncated, self.identity)
        return embedded.vectors

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents; how much a user's function truncates is unknown, so none of its texts counts as truncated.

        Args:
            texts: Documents.
            siblings: None, or none for each text; there for embedders that read siblings.
            progress: Show a bar on stderr.

        Raises:
            CorpusError: As `embed_documents`.
            ModelError: A text has siblings, or as `embed_documents`.
        """
        if siblings is not None and any(siblings):
            raise self._no_siblings()
        check_texts(texts)
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "documents": len(texts)}):
            return self._embed(texts, "document", progress=progress)

    @abstractmethod
    def _embed(self, texts: Sequence[str], role: str, *, progress: bool = False) -> Embedded: ...

    @abstractmethod
    def _no_siblings(self) -> ModelError: ...
