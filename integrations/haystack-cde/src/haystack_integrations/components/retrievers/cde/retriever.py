"""CDERetriever: search in a CDEDocumentStore."""

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy
from haystack.document_stores.types.filter_policy import apply_filter_policy
from haystack_integrations.document_stores.cde import CDEDocumentStore

from cde_rag.search.fusion import Ranking


@component
class CDERetriever:
    """Searches a CDEDocumentStore with the text of a query, which the store embeds.

    Args:
        document_store: The store.
        filters: Filters for every query.
        top_k: Maximum number of documents.
        by: "hybrid" (vectors and BM25, fused: at most 200 documents), "vectors" or "bm25" ("words" is another name for
            it).
        rerank: Name of a reranker of the best hits; see `cde_rag.Collection.search`.
        filter_policy: Whether a query's own filters replace these or are merged with them.

    Raises:
        TypeError: The store is no CDEDocumentStore.

    Examples:
        retriever = CDERetriever(CDEDocumentStore("papers.faiss"), top_k=3)
        documents = retriever.run("how do I parse a date?")["documents"]
    """

    def __init__(
        self,
        document_store: CDEDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        by: Ranking = "hybrid",
        rerank: str | None = None,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, CDEDocumentStore):
            raise TypeError(
                f"CDERetriever expects a CDEDocumentStore, found {type(document_store).__name__}. Another store takes "
                "its own retriever, with the CDETextEmbedder in front."
            )
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.by: Ranking = by
        self.rerank = rerank
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None) -> dict[str, Any]:
        """Return the nearest documents, with scores.

        Args:
            query: A text that is not blank.
            filters: Filters of this query.
            top_k: Maximum number of documents; that of the retriever by default.

        Raises:
            CorpusError: The query is blank.
            FilterError: The filter is malformed.
            ValueError: `top_k` is below 1.
        """
        chosen = apply_filter_policy(self.filter_policy, self.filters, filters)
        most = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search(query, most, self.by, chosen, self.rerank)}

    def to_dict(self) -> dict[str, Any]:
        """Serialise the component with its store."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            by=self.by,
            rerank=self.rerank,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CDERetriever":
        """Restore the component with its store."""
        parameters = dict(data["init_parameters"])
        store = parameters["document_store"]
        if isinstance(store, dict):
            parameters["document_store"] = CDEDocumentStore.from_dict(store)
        return default_from_dict(cls, {**data, "init_parameters": parameters})
