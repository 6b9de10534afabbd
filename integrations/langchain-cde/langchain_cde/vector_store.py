"""CDEVectorStore: LangChain's view of a Collection."""

# ruff: noqa: A002 LangChain says `filter`
# pyright: reportIncompatibleMethodOverride=false
# LangChain's signatures end in **kwargs; here an argument that is not known is an error and not passed over.

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Collection as Names
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final
from uuid import uuid4

import numpy as np
from jaxtyping import Float32
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from cde_rag import Collection
from cde_rag._validation import check_list, check_positive, named_keywords, named_keywords_with
from cde_rag.collection.collection import When
from cde_rag.collection.first_context import create_without_documents
from cde_rag.collection.foreign_documents import restored
from cde_rag.errors import StoreError, TruncationWarning, adapter_warns
from cde_rag.indexing.upsert_plan import first_records
from cde_rag.records import from_columns
from cde_rag.search.fusion import marginal_relevance
from cde_rag.stores.filters import check_narrows
from cde_rag.stores.kinds import store_at, temporary_store
from cde_rag.stores.store import Store
from langchain_cde.documents import check_fits, document, warn_of_cut_texts
from langchain_cde.embeddings import CDEEmbeddings
from langchain_cde.keepers import require_named_space
from langchain_cde.space import require_same_space

Where = Mapping[str, Any]
HYBRID: Final = "hybrid"  # the search type
_NO_FILTER: Final[Where] = MappingProxyType({})  # of a call that names none


class CDEVectorStore(VectorStore):
    """Documents in a collection: vectors, texts, metadata and their context together. Thread-safe.

    Filters are those of `cde_rag.stores.filters`. Scores are cosines: in [-1, 1], higher is better; those of hybrid
    searches are from 0 to 1, and compare queries once the collection is calibrated, from 64 documents on.

    Args:
        collection: From `Collection.create` or `Collection.open`; `from_documents` makes one.

    Raises:
        TypeError: A path, a store or embeddings in place of the collection, or another argument.
    """

    @named_keywords_with("Make one of documents with CDEVectorStore.from_documents(documents, embeddings, store=…).")
    def __init__(self, collection: Collection) -> None:
        if isinstance(collection, str | PathLike | Store | Embeddings):
            raise TypeError(
                f"CDEVectorStore expects a cde_rag.Collection, found {type(collection).__name__}. Open one with "
                'CDEVectorStore(Collection.open("papers.faiss")), or make one with '
                "CDEVectorStore.from_documents(documents, embeddings, store=…)."
            )
        self.collection = collection

    @classmethod
    @named_keywords
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        store: Store | str | Path | None = None,
        parent_key: str | None = "source",
        embed: When = "first",
    ) -> "CDEVectorStore":
        """Make a collection in an empty store and add texts to it; `from_documents` takes the same arguments.

        Args:
            texts: As in `add_texts`.
            embedding: CDEEmbeddings; without a context it makes one of the texts. If there are none, the collection
                begins in the context of no corpus, and moves to one of its own at 64 and at 512 texts.
            metadatas: As in `add_texts`.
            ids: As in `add_texts`.
            store: The path of a new folder, such as "papers.faiss", an address of PostgreSQL, or a store of
                `cde_rag.stores`. None for a temporary folder, which is deleted with the store or when the process ends.
            parent_key: The metadata key that names the longer document a text was cut from; each text is embedded
                given the others of its parent. Texts without the key have no parent. None: no parents at all, as with
                embeddings that read no siblings.
            embed: As in `add_texts`.

        Raises:
            CorpusError: A text or its metadata cannot be used, or the lists are not equally long; nothing is made.
            StoreError: There is a collection in the store already: `CDEVectorStore(Collection.open(store))`.
            TruncationError: More than 5 % of the texts' tokens exceed the model's limit.
            TypeError: Another kind of embedding, or no store.
        """
        if not isinstance(embedding, CDEEmbeddings):
            raise TypeError(
                f"CDEVectorStore embeds with the CDEEmbeddings of its context, found {type(embedding).__name__}. Give "
                "CDEEmbeddings.from_documents(documents); it needs no cache, as stored texts are not embedded again."
            )
        if not isinstance(store, Store | str | Path | None):
            raise TypeError(
                f"CDEVectorStore keeps its documents in a store of cde_rag, found {type(store).__name__}. Give "
                'store="papers.faiss", or a store of cde_rag.stores.'
            )
        place = temporary_store() if store is None else store
        check_list(texts, call="from_texts")
        listed = list(texts)
        given = _with_ids(ids, len(listed))
        first_records(
            from_columns(listed, ids=given, titles=None, metadata=metadatas, parent_key=parent_key), parent_key
        )
        with _own_remedy():
            if not listed and not embedding.has_context:
                opened = store_at(place) if isinstance(place, str | Path) else place
                return cls(Collection(opened, create_without_documents(opened, "cde-mini", parent_key)))
            if not embedding.has_context:
                embedding.fit(listed)
            check_fits(listed, embedding.embedder)
            key = parent_key if embedding.embedder.max_siblings else None
            created = cls(Collection.create(place, embedding.embedder, parent_key=key))
        created.add_texts(listed, metadatas, ids=given, embed=embed)
        return created

    @property
    def embeddings(self) -> CDEEmbeddings:
        """The embeddings of the collection's context."""
        return CDEEmbeddings(self.collection.embedder)

    @named_keywords
    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,  # noqa: ARG002 `index` gives it; a collection has batches of its own
        embed: When = "first",
    ) -> list[str]:
        """Add texts, or replace those of the same id.

        Args:
            texts: Any number.
            metadatas: One per text, for filters; JSON values.
            ids: One per text; a text without one gets a new, random id.
            batch_size: Not used.
            embed: "first", or "later": texts are stored at once and found by words, with `hybrid_search`, which embeds
                what it looks at; `collection.embed_pending()` makes the other vectors.

        Returns:
            The ids, in the order of the texts.

        Raises:
            ContextMismatchError: The collection was given another context since it was opened.
            CorpusError: A text or its metadata cannot be used, or the lists are not equally long.
            TruncationError: More than 5 % of the texts' tokens exceed the model's limit.
        """
        check_list(texts, call="add_texts")
        listed = list(texts)
        given = _with_ids(ids, len(listed))
        made = from_columns(listed, ids=given, titles=None, metadata=metadatas, parent_key=self.collection.parent_key)
        records = restored(self.collection, list(made))
        titles = [record.title for record in records]
        metadata = None if metadatas is None else [record.metadata for record in records]
        check_fits(listed, self.collection.embedder)
        with adapter_warns(TruncationWarning):
            report = self.collection.add(listed, ids=given, titles=titles, metadata=metadata, embed=embed)
        warn_of_cut_texts(report.truncated, len(listed), self.collection.embedder)
        return given

    @property
    def add_documents(self) -> Callable[..., list[str]]:
        """LangChain's `add_documents`, which calls `add_texts`.

        `index` looks this attribute up before it queries its record manager, and may then call no method of the store,
        if the record manager has seen all documents. Therefore the record manager is checked here.

        Raises:
            ContextError: Looked up by `index` with a record manager whose namespace lacks the context's fingerprint.
        """
        require_named_space(self.collection.embedder.fingerprint, "document")
        return super().add_documents

    @property
    def aadd_documents(self) -> Callable[..., Coroutine[Any, Any, list[str]]]:
        """Asynchronous `add_documents`, which runs in a thread."""
        require_named_space(self.collection.embedder.fingerprint, "document")
        return super().aadd_documents

    @named_keywords
    def delete(self, ids: list[str] | None = None, *, filter: Where | None = _NO_FILTER) -> bool:
        """Delete by id or by filter; without either, as LangChain has it, everything.

        Args:
            ids: Unknown ids are skipped; of an empty list, nothing is deleted.
            filter: Over the metadata; None next to ids.

        Raises:
            FilterError: The filter keeps every document, as `{}` does.
            ValueError: Both, or None for a filter without ids.
        """
        if filter is None and ids is None:
            raise ValueError("The filter is None. Is a variable unset? To delete all documents, call delete().")
        if filter is not None and filter is not _NO_FILTER:
            check_narrows(filter, "To delete all documents, call delete().")
        self.collection.delete(ids, where=None if ids is not None and filter is _NO_FILTER else filter)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents of those ids that exist, in the order of the ids."""
        return [document(record) for record in self.collection.get(ids)]

    @named_keywords
    def similarity_search(self, query: str, k: int = 4, *, filter: Where | None = None) -> list[Document]:
        """Return the `k` documents nearest to the query."""
        return [document(hit) for hit in self.collection.search(query, k, by="vectors", where=filter)]

    @named_keywords
    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Where | None = None
    ) -> list[tuple[Document, float]]:
        """Return the `k` documents nearest to the query, with their cosines."""
        return [(document(hit), hit.score) for hit in self.collection.search(query, k, by="vectors", where=filter)]

    @named_keywords
    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Where | None = None
    ) -> list[Document]:
        """Return the `k` documents nearest to a vector of `embeddings`.

        Raises:
            ContextMismatchError: The vector is of another context.
            ValueError: It has another length, or not norm 1, or `k` is below 1.
        """
        fingerprint, query = self._embedded(embedding)
        (hits,) = self.collection.store.search(query, k, fingerprint=fingerprint, where=filter)
        return [document(hit) for hit in hits]

    @named_keywords
    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Where | None = None
    ) -> list[Document]:
        """Return `k` documents by maximal marginal relevance: near the query and unlike each other.

        Args:
            query: The query.
            k: Maximum number of documents.
            fetch_k: Number of candidates.
            lambda_mult: From 0 (maximum diversity) to 1 (relevance only).
            filter: Filter over the metadata.
        """
        hits = self.collection.search_diverse(query, k, candidates=fetch_k, diversity=1 - lambda_mult, where=filter)
        return [document(hit) for hit in hits]

    @named_keywords
    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where | None = None,
    ) -> list[Document]:
        """Return `k` documents by maximal marginal relevance to a vector; raises like the search by vector."""
        check_positive(k, "k")
        check_positive(fetch_k, "fetch_k")
        fingerprint, query = self._embedded(embedding)
        (hits,) = self.collection.store.search(query, max(k, fetch_k), fingerprint=fingerprint, where=filter)
        vectors = self.collection.store.vectors([hit.id for hit in hits], fingerprint=fingerprint)
        chosen = marginal_relevance(query[0], vectors, k, diversity=1 - lambda_mult)
        return [document(hits[place]) for place in chosen]

    @named_keywords
    def hybrid_search(
        self, query: str, k: int = 4, *, filter: Where | None = None, weight: float | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the `k` best documents by vectors and by terms (BM25) together.

        Also by name: `search(query, "hybrid")` and `as_retriever(search_type="hybrid")`.

        Args:
            query: The query.
            k: Maximum number of documents.
            filter: Filter over the metadata.
            weight: Weight of the vectors, from 0 (terms alone) to 1 (vectors alone); 0.65 by default.
            offset: Documents that are passed over: the next page begins at `offset + k`.

        Raises:
            StoreError: The collection was made without terms; `collection.store.index_texts` adds them.
            ValueError: A weight outside [0, 1], or `k` below 1.
        """
        found = self.hybrid_search_with_score(query, k, filter=filter, weight=weight, offset=offset)
        return [each for each, _ in found]

    @named_keywords
    def hybrid_search_with_score(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Where | None = None,
        weight: float | None = None,
        offset: int = 0,
        score_threshold: float | None = None,
    ) -> list[tuple[Document, float]]:
        """Return the documents of `hybrid_search` with their fused scores, which reach `score_threshold`."""
        searcher = self.collection.searcher("hybrid", weight=weight)
        hits = searcher.search(query, k, where=filter, score_threshold=score_threshold, offset=offset)
        return [(document(hit), hit.score) for hit in hits]

    @named_keywords
    async def ahybrid_search(
        self, query: str, k: int = 4, *, filter: Where | None = None, weight: float | None = None, offset: int = 0
    ) -> list[Document]:
        """Run `hybrid_search` in a thread."""
        return await run_in_executor(None, self.hybrid_search, query, k, filter=filter, weight=weight, offset=offset)

    def search(self, query: str, search_type: str, **kwargs: Any) -> list[Document]:
        """Search by a name: "similarity", "similarity_score_threshold", "mmr" or "hybrid"."""
        return (
            self.hybrid_search(query, **kwargs)
            if search_type == HYBRID
            else super().search(query, search_type, **kwargs)
        )

    async def asearch(self, query: str, search_type: str, **kwargs: Any) -> list[Document]:
        """Asynchronous `search`."""
        if search_type == HYBRID:
            return await self.ahybrid_search(query, **kwargs)
        return await super().asearch(query, search_type, **kwargs)

    def as_retriever(self, **kwargs: Any) -> VectorStoreRetriever:
        """Return a retriever, by vectors and terms (BM25) together.

        Args:
            kwargs: `search_type`, "hybrid" by default, "similarity" by vectors alone, or another of LangChain's; and
                `search_kwargs`, such as {"k": 5, "filter": {…}, "weight": 0.5}.
        """
        tags = [*(kwargs.pop("tags", None) or []), *self._get_retriever_tags()]
        return CDEVectorStoreRetriever(vectorstore=self, tags=tags, **kwargs)

    def _embedded(self, embedding: list[float]) -> tuple[str, Float32[np.ndarray, "1 dim"]]:
        """Check that a vector is of the active space; return the space's fingerprint and the vector as an array."""
        fingerprint = self.collection.embedder.fingerprint
        require_same_space(embedding, fingerprint)
        return fingerprint, np.asarray([embedding], dtype=np.float32)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return _relevance


class CDEVectorStoreRetriever(VectorStoreRetriever):
    """LangChain's retriever of a vector store, with the search type "hybrid", which is the default."""

    search_type: str = HYBRID
    allowed_search_types: ClassVar[Names[str]] = (*VectorStoreRetriever.allowed_search_types, HYBRID)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        if self.search_type == HYBRID:
            return self.vectorstore.search(query, HYBRID, **(self.search_kwargs | kwargs))
        return super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        if self.search_type == HYBRID:
            return await self.vectorstore.asearch(query, HYBRID, **(self.search_kwargs | kwargs))
        return await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)


@contextmanager
def _own_remedy() -> Iterator[None]:
    """Name CDEVectorStore in the remedy of a store that has a collection already."""
    try:
        yield
    except StoreError as error:
        error.args = (str(error).replace("Collection.open(…)", "CDEVectorStore(Collection.open(store))"),)
        raise


def _with_ids(ids: Sequence[str | None] | None, texts: int) -> list[str]:
    """Return the ids of some texts, with a new, random one for each that has none."""
    return [str(uuid4()) if one is None else one for one in ([None] * texts if ids is None else ids)]


def _relevance(cosine: float) -> float:
    """Map a cosine, which rounding may leave a little outside [-1, 1], to the range from 0 to 1."""
    return min(max((1 + cosine) / 2, 0.0), 1.0)
