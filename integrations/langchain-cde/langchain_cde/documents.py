"""Conversion of records and hits to LangChain's documents."""

from langchain_core.documents import Document

from cde_rag import Hit, Record


def document(found: Hit | Record) -> Document:
    """Convert a record or hit to a document; its title, if any, is put into the metadata."""
    metadata = dict(found.metadata)
    if found.title:
        metadata.setdefault("title", found.title)
    return Document(id=found.id, page_content=found.text, metadata=metadata)
