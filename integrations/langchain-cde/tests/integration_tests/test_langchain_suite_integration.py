"""LangChain's own suites, as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)

from cde_rag import Collection
from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDERetriever, CDEVectorStore


class TestCDEEmbeddings(EmbeddingsIntegrationTests):
    @pytest.fixture(autouse=True)
    def _params(self, embeddings: CDEEmbeddings) -> None:
        self._embedder = embeddings.embedder

    @property
    def embeddings_class(self) -> type[CDEEmbeddings]:
        return CDEEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": self._embedder}


class TestCDEVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, embeddings: CDEEmbeddings, tmp_path: Path) -> Iterator[CDEVectorStore]:  # type: ignore[override]
        with Collection.create(FaissStore(tmp_path / "c"), embeddings.embedder, parent_key="source") as collection:
            yield CDEVectorStore(collection)


class TestCDERetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _params(self, embeddings: CDEEmbeddings, texts: list[str], tmp_path: Path) -> Iterator[None]:
        with Collection.create(FaissStore(tmp_path / "c"), embeddings.embedder) as collection:
            collection.add(texts[:20])
            self._collection = collection
            yield

    @property
    def retriever_constructor(self) -> type[CDERetriever]:
        return CDERetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"collection": self._collection}

    @property
    def retriever_query_example(self) -> str:
        return "the river"
