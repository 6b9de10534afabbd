"""Conversion of records and hits to LangChain's documents, and the warning of texts that were cut."""

from collections.abc import Iterable, Iterator
from typing import Final

from langchain_core.documents import Document

from cde_rag import Hit, Record
from cde_rag.collection.foreign_documents import shown_metadata
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import TruncationWarning, warn_user

_CHARACTERS_A_TOKEN: Final = 600 / 256  # of passages that nearly always fit; `cde-rag index` has the same


def document(found: Hit | Record) -> Document:
    """Convert a record or hit to a document; its title, if any, is put into the metadata."""
    return Document(id=found.id, page_content=found.text, metadata=shown_metadata(found))


def page_contents(documents: Iterable[object]) -> Iterator[str]:
    """Yield the texts of documents.

    Raises:
        TypeError: One is no Document.
    """
    for each in documents:
        if not isinstance(each, Document):
            raise TypeError(
                f"from_documents expects Documents of LangChain, found {type(each).__name__} in them. For bare texts: "
                "CDEEmbeddings.from_texts(texts)."
            )
        yield each.page_content


def warn_of_cut_texts(cut: int, total: int, embedder: Embedder) -> None:
    """Warn of texts longer than the model's window, with the setting of LangChain's splitter that makes them fit."""
    if cut:
        identity = embedder.context.identity
        size = int(identity.max_length * _CHARACTERS_A_TOKEN)
        warn_user(
            f"{cut} of {total} texts exceed the limit of {identity.max_length} tokens of {identity.name} and were "
            f"truncated. LangChain's splitters often make chunks of 1000 characters: take "
            f"RecursiveCharacterTextSplitter(chunk_size={size}, chunk_overlap={size // 10}).",
            TruncationWarning,
        )
