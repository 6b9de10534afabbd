"""Document store of Haystack over a collection."""

from haystack_integrations.document_stores.cde.document_store import CDEDocumentStore

__all__ = ["CDEDocumentStore"]
