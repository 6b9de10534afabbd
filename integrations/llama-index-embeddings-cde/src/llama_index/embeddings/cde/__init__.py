"""Contextual document embeddings (cde-rag) for LlamaIndex."""
