"""Conditions for making a context from incoming texts, and for refusals and warnings."""

from collections.abc import Collection, Sequence
from typing import Any, cast
from weakref import WeakSet

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.base import BaseIndex
from llama_index.embeddings.cde.binding import BoundEmbedding, write
from llama_index.embeddings.cde.callers import Caller, begins, is_empty, refusal
from llama_index.embeddings.cde.spaces import REMEDY, check_brought
from typing_extensions import Self

from cde_rag import Context, ContextualEmbedder, EmbedderOptions
from cde_rag._validation import digest
from cde_rag.embedders.corpus_contexts import first_context
from cde_rag.errors import (
    ContextMissingError,
    ContextReusedWarning,
    PartialContextWarning,
    SmallContextWarning,
    warn_user,
)
from cde_rag.models.model import Model
from cde_rag.models.plain.fixed_texts import FIXED_DIGESTS


class FittedEmbedding(BoundEmbedding):
    """Embedding model that makes its context from the first complete corpus it gets, and from nothing else."""

    _builds: WeakSet[BaseIndex[Any]] = PrivateAttr(default_factory=WeakSet)  # indexes that were built in the context

    @classmethod
    def from_embedder(cls, embedder: ContextualEmbedder) -> Self:
        """Take over an embedder of cde-rag, however its context was sampled."""
        embedding = cls(model_name=embedder.context.identity.name)
        embedding.bind(embedder)
        return embedding

    def bind(self, embedder: ContextualEmbedder) -> None:
        """Take over an embedder of cde-rag with its context.

        Args:
            embedder: An embedder of `function_of(model)` goes with `CDEEmbedding(model=model)`.

        Raises:
            ContextMismatchError: There is another context already, or an own `model` beside a ContextualEmbedder.
            ModelError: An embedder of an own model without the `model`, or of an API without its `model_name`.
        """
        with self._lock:
            self._bind(embedder.context, embedder)

    def fit(self, texts: Sequence[str]) -> Self:
        """Make the context of these texts, in the form in which they will be embedded; returns this embedding.

        Raises:
            ContextMismatchError: There is a context already, of other texts.
            CorpusError: No text.
        """
        with self._lock:
            self._fit(texts, "explicit")
        return self

    def _fit(self, texts: Sequence[str], source: str) -> None:
        embedder = ContextualEmbedder.from_corpus(
            texts,
            model=self._model(),
            context_size=self.context_size,
            seed=self.seed,
            source=source,
            windows=self.windows,
            options=EmbedderOptions(mini_batch_size=self._batch_size),
        )
        if self.context_path is not None:
            write(embedder.context, self.context_path)  # first: what cannot be kept is not used
        self._bind(embedder.context, embedder)

    def _admit(self, texts: Sequence[str], caller: Caller, documents: Collection[str] = ()) -> None:
        """Check texts before embedding: refuse mixed spaces, make a context if due, warn if a context is reused.

        Args:
            texts: Texts to embed.
            caller: The caller.
            documents: Known ids of the source documents.
        """
        with self._lock:
            self._check(caller)
            if texts and self.fingerprint is None:
                self._fit_for(texts, caller, documents)
            elif texts and caller.index not in self._builds and begins(caller, documents):
                _warn_reused(self._bound().context, texts)
            check_brought(caller, self.fingerprint)
            if caller.builds and caller.index is not None:
                self._builds.add(caller.index)
            if self.fingerprint is not None:
                self._mark(caller)

    def _fit_for(self, texts: Sequence[str], caller: Caller, documents: Collection[str]) -> None:
        reason = refusal(caller, documents) if self.auto_fit else self._makes_none
        if reason is not None and self.auto_fit and caller.adds and is_empty(caller) and self.model is None:
            self._start(caller)
            return
        if reason is not None:
            raise ContextMissingError(f"There is no context. {reason}. {REMEDY}")
        partial = len(texts) == getattr(caller.index, "_insert_batch_size", None)
        self._fit(texts, "first_slice" if partial else "all")
        if partial:
            warn_user(
                f"The context was made of the first {len(texts)} nodes, all that the index shows at once; if there are "
                "more, their texts had no part in it. To make it of all, use embed_model=CDEEmbedding.from_documents("
                "documents), or the embedding also as a transformation: VectorStoreIndex.from_documents(documents, "
                "transformations=[splitter, embedding], embed_model=embedding).",
                PartialContextWarning,
            )

    def _start(self, caller: Caller) -> None:
        """Take the context of no corpus, for the first documents of an index that was made without any.

        Warns:
            SmallContextWarning: Always, with the call that makes a context of the index's own.
        """
        model = cast(Model, self._named_model())
        context = first_context(model).with_windows(windows=self.windows)
        if self.context_path is not None:
            write(context, self.context_path)
        self._bind(context)
        keeps_text = getattr(cast(BaseIndex[Any], caller.index).storage_context.vector_store, "stores_text", False)
        nodes = "index.vector_store.get_nodes()" if keeps_text else "list(index.docstore.docs.values())"
        place = ", with a storage_context of an empty store" if keeps_text else ""
        warn_user(
            "The index was empty, so its documents are embedded in the context of no corpus. When it has 64 nodes or "
            f"more, build it in a context of its own: VectorStoreIndex({nodes}, embed_model=CDEEmbedding()){place}.",
            SmallContextWarning,
        )


def _warn_reused(context: Context, texts: Sequence[str]) -> None:
    """Warn unless at least half as many of the texts are in the context as if it had been sampled from their corpus."""
    unique = {digest(text) for text in texts}
    sampled = {row.tobytes() for row in context.digests} - set(FIXED_DIGESTS)
    seen = context.manifest.documents_seen
    if 2 * len(unique & sampled) * seen >= len(sampled) * min(len(unique), seen):
        return
    warn_user(
        f"A corpus is embedded in the context {context.fingerprint[:16]}…, which was made before, of "
        f"{context.manifest.documents_seen} texts. That is right for the same documents, and for indexes that are "
        "searched as one. For others take an embedding of their own: CDEEmbedding.from_documents(documents).",
        ContextReusedWarning,
    )
