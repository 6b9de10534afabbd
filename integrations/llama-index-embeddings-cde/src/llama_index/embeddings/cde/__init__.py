"""Contextual document embeddings (cde-rag) for LlamaIndex."""

from llama_index.embeddings.cde.base import CDEEmbedding
from llama_index.embeddings.cde.inspection import EmbeddingInspection

__all__ = ["CDEEmbedding", "EmbeddingInspection"]
