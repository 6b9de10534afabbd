"""Retriever of Haystack over a collection."""

from haystack_integrations.components.retrievers.cde.retriever import CDERetriever

__all__ = ["CDERetriever"]
