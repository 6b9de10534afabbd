"""cde-rag collections as a vector store of LlamaIndex."""
