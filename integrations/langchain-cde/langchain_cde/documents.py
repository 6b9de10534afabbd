"""Conversion of records and hits to LangChain's documents, and the warning of texts that were cut."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from langchain_core.documents import Document

from cde_rag import Hit, Record
from cde_rag.collection.foreign_documents import shown_metadata
from cde_rag.embedders.contextual import contextual
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import TruncationWarning, warn_user
from cde_rag.models.model import check_read

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


def check_fits(texts: Sequence[str], embedder: Embedder) -> None:
    """Refuse texts of which the model would leave a considerable part unread.

    Raises:
        TruncationError: More than 5 % of their tokens are beyond its limit.
    """
    own = contextual(unwrapped(embedder))
    if own is not None and texts and not own.windows and own.context.identity.max_length:
        limit = own.context.identity.max_length
        windows = "Or read them in windows: CDEEmbeddings.from_documents(documents, windows=True)."
        check_read(own.model, texts, f"{_setting(limit)} {windows}")


def warn_of_cut_texts(cut: int, total: int, embedder: Embedder) -> None:
    """Warn of texts longer than the model's window, with the setting of LangChain's splitter that makes them fit."""
    if cut:
        identity = embedder.context.identity
        warn_user(
            f"{cut} of {total} texts exceed the limit of {identity.limit} of {identity.name} and were "
            f"truncated. {_setting(identity.max_length)}",
            TruncationWarning,
        )


def _setting(limit: int) -> str:
    size = int(limit * _CHARACTERS_A_TOKEN)
    return (
        "LangChain's splitters often make chunks of 1000 characters: take "
        f"RecursiveCharacterTextSplitter(chunk_size={size}, chunk_overlap={size // 10})."
    )
