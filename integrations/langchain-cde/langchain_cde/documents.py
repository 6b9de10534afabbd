"""What a collection holds, as LangChain's documents."""

from langchain_core.documents import Document

from cde_rag import Hit, Record


def document(found: Hit | Record) -> Document:
    """A record or hit as a document; its title, where it has one, stands in the metadata."""
    metadata = dict(found.metadata)
    if found.title:
        metadata.setdefault("title", found.title)
    return Document(id=found.id, page_content=found.text, metadata=metadata)
