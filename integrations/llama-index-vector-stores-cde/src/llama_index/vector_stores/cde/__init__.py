"""cde-rag collections as a vector store of LlamaIndex."""

from llama_index.vector_stores.cde.base import CDEVectorStore
from llama_index.vector_stores.cde.deferring import CollectionEmbedding

__all__ = ["CDEVectorStore", "CollectionEmbedding"]
