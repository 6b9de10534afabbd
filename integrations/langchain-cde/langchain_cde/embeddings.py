"""CDEEmbeddings: LangChain's view of a ContextualEmbedder."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore

from cde_rag import ContextualEmbedder
from cde_rag._validation import check_list, named_keywords_with
from cde_rag.embedders.contextual import AnyModel
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import ContextMissingError
from langchain_cde import contexts
from langchain_cde.documents import check_fits, page_contents, warn_of_cut_texts
from langchain_cde.keepers import in_qdrant, keep_in_qdrant, require_named_space, shows_all, stamp_of_caller
from langchain_cde.space import Role, SpaceVector, cache_namespace, record_namespace
from langchain_cde.stamps import stamp

if TYPE_CHECKING:
    from qdrant_client import QdrantClient


_BINDING: Final = threading.Lock()  # of embeddings to the context of a store


class CDEEmbeddings(Embeddings):
    """Embeds texts in one context, which is fixed before the first text arrives. Thread-safe.

    The context comes from `from_documents`, `from_texts`, `load`, `from_qdrant`, or a collection's embedder.

    Args:
        embedder: Without one, the context is made of all documents by the `from_documents` and `from_texts` of
            `CDEVectorStore`, `InMemoryVectorStore` and `FAISS`, which show all of them at once. Where a FAISS or Chroma
            store is opened, its stamp names the context, which is in the cache of the user who made it. Any other call
            says how to come by a context: stores hand documents over in slices, and some send "dummy_text" first.

    Raises:
        TypeError: Another argument.
    """

    @named_keywords_with("Name a model where the context is made: CDEEmbeddings.from_documents(documents, model=…).")
    def __init__(self, embedder: Embedder | None = None) -> None:
        self._embedder = embedder

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        *,
        model: "AnyModel | Embeddings" = "cde-mini",
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
    ) -> "CDEEmbeddings":
        """Sample the context from all documents that are to be embedded, as the splitter made them, in any order.

        Args:
            documents: Such as `splitter.split_documents(loader.load())`; read once, their texts only.
            model: A bundled name, a folder, a hub id such as "BAAI/bge-small-en-v1.5", or a model that an API serves:
                "openai:text-embedding-3-small" or "http://localhost:8000/v1#bge-m3", with the key in OPENAI_API_KEY. A
                CDEModel chooses device and dtype. Plain models and your own Embeddings, such as OpenAIEmbeddings(), get
                the map of the corpus, as in `ArithmeticEmbedder`, and no siblings: a CDEVectorStore takes
                parent_key=None then.
            context_size: Documents in the context; as many as the model expects, or 512, by default.
            seed: Random seed of the sample.
            windows: Read texts longer than the model's window in windows, and average their vectors; by default they
                are cut. Part of the fingerprint: `load` and `from_qdrant` read texts as the stored vectors' were. A
                splitter with shorter chunks finds more (lab/pages/windows.md).

        Raises:
            CorpusError: No text that is not blank.
            ModelError: No such model.
            TypeError: Texts in place of documents; your own Embeddings together with another argument.

        Warns:
            SmallContextWarning: There are fewer than 64 different texts.
        """
        texts = page_contents(documents)
        return cls.from_texts(texts, model=model, context_size=context_size, seed=seed, windows=windows)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        model: "AnyModel | Embeddings" = "cde-mini",
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
    ) -> "CDEEmbeddings":
        """Make the context of texts; like `from_documents`."""
        if isinstance(model, Embeddings):
            if (context_size, seed, windows) != (None, 0, False):
                raise TypeError(
                    "Your own Embeddings read texts in their own way; a sample has arguments of its own in "
                    "ArithmeticEmbedder.from_corpus. Leave context_size, seed and windows out."
                )
            embedder = ContextualEmbedder.from_corpus(texts, model=contexts.function_of(model))
        else:
            embedder = ContextualEmbedder.from_corpus(
                texts, model=model, context_size=context_size, seed=seed, windows=windows
            )
        contexts.cache(embedder.context)
        return cls(embedder)

    @classmethod
    def load(cls, path: str | Path, *, model: "AnyModel | Embeddings | None" = None) -> "CDEEmbeddings":
        """Read the context that `save` wrote; the same texts get the same vectors in every process.

        Args:
            path: Path of a `*.context.safetensors`.
            model: A name or model in place of the one that the context names; or your own Embeddings. What an API
                serves is to be named again: contexts hold no address.

        Raises:
            ContextFormatError: The file is damaged, or of a newer format.
            ContextMismatchError: The model has other weights than the one that made the context.
            ContextMissingError: There is no such file.
            ModelError: There is no model of the name that the context has.
        """
        return cls(contexts.from_file(path, model))

    @classmethod
    def from_qdrant(
        cls,
        client: "QdrantClient",
        collection: str,
        *,
        fingerprint: str | None = None,
        model: "AnyModel | Embeddings | None" = None,
    ) -> "CDEEmbeddings":
        """Load the context stored with a Qdrant collection. Raises like `load`.

        Args:
            client: Client of a server, or in local mode.
            collection: Name of the collection or an alias of it.
            fingerprint: Fingerprint of the context, if there are several.
            model: As in `load`.
        """
        return cls(contexts.from_qdrant(client, collection, fingerprint, model))

    @property
    def has_context(self) -> bool:
        """True if there is a context already."""
        return self._embedder is not None

    def fit(self, texts: Iterable[str]) -> None:
        """Make the context of texts, as `from_texts` does, unless there is one."""
        with _BINDING:
            if not self.has_context:
                self._embedder = CDEEmbeddings.from_texts(texts).embedder

    def save(self, path: str | Path) -> None:
        """Write the context to one file, best named `*.context.safetensors`, for `load`.

        Raises:
            ContextError: The place is not writable, or full.
            ContextMissingError: There is no context.
        """
        self.embedder.context.save(path)

    def save_to_qdrant(self, client: "QdrantClient", collection: str) -> None:
        """Store the context with a Qdrant collection, which need not exist yet, for `from_qdrant`.

        Raises:
            ContextMissingError: There is no context.
            StoreError: Qdrant refused the request.
        """
        from cde_rag.stores.qdrant import write_context

        write_context(client, collection, self.embedder.context.to_bytes(), fingerprint=self.fingerprint)

    @property
    def embedder(self) -> Embedder:
        """The embedder.

        Raises:
            ContextMissingError: There is no context, and no store that calls has the stamp of one that is cached.
        """
        if self._embedder is None:
            fingerprint = stamp_of_caller()
            if fingerprint is not None:
                with _BINDING:
                    self._embedder = self._embedder or contexts.from_cache(fingerprint)
                return self._embedder
            if in_qdrant():
                raise ContextMissingError(
                    "CDEEmbeddings has no context yet, and QdrantVectorStore begins with a dummy text and slices of 64 "
                    "documents, of which none is made. Make it of all documents first: "
                    "embeddings = CDEEmbeddings.from_documents(documents); then QdrantVectorStore.from_documents("
                    "documents, embeddings, …, vector_name=embeddings.vector_name). For a collection that is there: "
                    "embeddings = CDEEmbeddings.from_qdrant(client, collection)."
                )
            raise ContextMissingError(
                "CDEEmbeddings needs the context of a corpus before it can embed, and has none. Make one of all "
                "documents with CDEEmbeddings.from_documents(documents) or .from_texts(texts), or bring back the one "
                "of the stored vectors with CDEEmbeddings.load(path) or .from_qdrant(client, collection)."
            )
        return self._embedder

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        return self.embedder.fingerprint

    @property
    def vector_name(self) -> str:
        """Name of this space's vectors in Qdrant: `QdrantVectorStore(…, vector_name=…)`."""
        from cde_rag.stores.qdrant import vector_name

        return vector_name(self.fingerprint)

    def stamp(self, store: VectorStore, *, replace: bool = False) -> None:
        """Note in a FAISS or Chroma store, whose vectors were made with these embeddings, that they were.

        Stores that are filled through these embeddings are stamped by that. This is for one that is not, such as a
        store that was filled before there were stamps, or by `FAISS.from_embeddings`. The vectors are not looked at.

        Args:
            store: Store of LangChain.
            replace: Replace the stamp of another context, such as of a store that was emptied.

        Raises:
            ContextMismatchError: It has the stamp of another context.
            TypeError: Another kind of store, which keeps no stamp.
        """
        stamp(store, self.fingerprint, replace=replace)

    def cache_namespace(self, role: Role = "document") -> str:
        """Return the required prefix of a cache's keys: `CacheBackedEmbeddings.from_bytes_store(…, namespace=…)`."""
        return cache_namespace(self.fingerprint, role)

    def record_namespace(self, name: str) -> str:
        """Return a record manager's namespace for an index, given its name or its namespace in another context."""
        return record_namespace(self.fingerprint, name)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts that are to be found; a text's vector does not depend on the others of the call.

        Raises:
            ContextError: Called by a cache, record manager or vector store that is not of this context.
            ContextMissingError: There is no context.
            CorpusError: A text is blank.
            TruncationError: More than 5 % of the texts' tokens exceed the model's limit.

        Warns:
            CDEWarning: Qdrant refused the context.
            TruncationWarning: Texts exceed the model's token limit, with the splitter's setting that makes them fit.
        """
        check_list(texts, call="embed_documents")
        if not self.has_context and shows_all():
            self.fit(texts)
        require_named_space(self.fingerprint, "document")
        check_fits(texts, self.embedder)
        keep_in_qdrant(self.embedder.context)
        embedded = self.embedder.embed_passages(texts, None)
        warn_of_cut_texts(int(embedded.truncated.sum()), len(texts), self.embedder)
        return [SpaceVector(row, self.fingerprint) for row in embedded.vectors.tolist()]

    def embed_query(self, text: str) -> list[float]:
        """Embed a text that searches. Raises like `embed_documents`."""
        require_named_space(self.fingerprint, "query")
        (vector,) = self.embedder.embed_queries([text])
        return SpaceVector(vector.tolist(), self.fingerprint)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Run `embed_documents` in a thread."""
        if not self.has_context and shows_all():  # the thread does not see who calls
            await run_in_executor(None, self.fit, texts)
        require_named_space(self.fingerprint, "document")
        return await super().aembed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Run `embed_query` in a thread."""
        require_named_space(self.fingerprint, "query")
        return await super().aembed_query(text)
