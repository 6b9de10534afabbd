"""Contextual document embeddings (cde-rag) for LangChain."""

from langchain_cde.embeddings import CDEEmbeddings
from langchain_cde.retriever import CDERetriever
from langchain_cde.vector_store import CDEVectorStore

__all__ = ["CDEEmbeddings", "CDERetriever", "CDEVectorStore"]
