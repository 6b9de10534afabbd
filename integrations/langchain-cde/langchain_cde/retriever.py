"""CDERetriever: a retriever over a Collection."""

from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from typing_extensions import Self

from cde_rag import Collection
from cde_rag._validation import wrong_argument
from langchain_cde.documents import document


class CDERetriever(BaseRetriever):
    """Retriever over a collection, which may have been made without LangChain.

    `invoke(query, k=…, filter=…)` overrides these two settings for one call.

    Attributes:
        collection: The collection to search.
        k: Maximum number of documents.
        filter: Filter over the metadata; see `cde_rag.stores.filters`.
        search_type: "hybrid", by vectors and terms (BM25) together; or "similarity", by vectors.
        weight: Weight of the vectors in a hybrid search, from 0 to 1; 0.65 by default.
        rerank: Name of a reranker of the best hits; see `cde_rag.Collection.search`.

    Raises:
        TypeError: An argument of another name, type or range.
    """

    model_config = ConfigDict(extra="forbid")

    collection: Collection
    k: int = 4
    filter: dict[str, Any] | None = None
    search_type: Literal["hybrid", "similarity"] = "hybrid"
    weight: float | None = Field(default=None, ge=0, le=1)
    rerank: str | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _with_own_errors(cls, given: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validated(given)
        except ValidationError as error:
            if not isinstance(given, dict):  # another object, where one of many kinds is expected
                raise
            raise wrong_argument(cls.__name__, error.errors()[0], cls.model_fields) from error

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 LangChain gives it
        k: int | None = None,
        filter: dict[str, Any] | None = None,  # noqa: A002 LangChain's word
    ) -> list[Document]:
        return self._found(query, k, filter)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 LangChain gives it
        k: int | None = None,
        filter: dict[str, Any] | None = None,  # noqa: A002 LangChain's word
    ) -> list[Document]:
        return await run_in_executor(None, self._found, query, k, filter)

    def _found(self, query: str, k: int | None, where: dict[str, Any] | None) -> list[Document]:
        searcher = self.collection.searcher("vectors")
        if self.search_type == "hybrid":
            searcher = self.collection.searcher("hybrid", weight=self.weight)
        if self.rerank is not None:
            searcher = searcher.reranked(self.rerank)
        hits = searcher.search(query, self.k if k is None else k, where=self.filter if where is None else where)
        return [document(hit) for hit in hits]
