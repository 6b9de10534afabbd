"""LangChain's own suite, as it is."""

from typing import Any

import pytest
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_cde import CDEEmbeddings


class TestCDEEmbeddings(EmbeddingsUnitTests):
    @pytest.fixture(autouse=True)
    def _params(self, embeddings: CDEEmbeddings) -> None:
        self._embedder = embeddings.embedder

    @property
    def embeddings_class(self) -> type[CDEEmbeddings]:
        return CDEEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": self._embedder}
