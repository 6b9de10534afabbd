"""Embedders of Haystack with the context of a corpus."""

from haystack_integrations.components.embedders.cde.document_embedder import CDEDocumentEmbedder
from haystack_integrations.components.embedders.cde.text_embedder import CDETextEmbedder

__all__ = ["CDEDocumentEmbedder", "CDETextEmbedder"]
