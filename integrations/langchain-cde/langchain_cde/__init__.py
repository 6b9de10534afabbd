"""Contextual document embeddings (cde-rag) for LangChain."""
