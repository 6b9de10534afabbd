"""Records as documents of other libraries (LangChain, LlamaIndex, Haystack), which have no title, and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from cde_rag.collection.collection import Collection
from cde_rag.records import Hit, Record


def shown_metadata(found: Record | Hit) -> dict[str, Any]:
    """Return the metadata of a document: with the title of its record, unless the metadata has a `title` itself."""
    return {**({"title": found.title} if found.title else {}), **found.metadata}


def restored(collection: Collection, records: Sequence[Record]) -> list[Record]:
    """Return records made of documents, with the titles of the records that they replace.

    A title that `shown_metadata` put into the metadata is taken from there, changed or not; a document without it
    leaves the title as it is.

    Args:
        collection: Collection to which the records are added; asked for records of the same ids.
        records: Made of documents, without titles.
    """
    ids = [record.id for record in records if isinstance(cast(object, record.id), str)]  # others are refused later
    stored = {record.id: record for record in collection.get(ids) if record.title}
    return [_with_title(record, stored[record.id]) if record.id in stored else record for record in records]


def _with_title(record: Record, stored: Record) -> Record:
    if "title" in stored.metadata or not isinstance(record.metadata.get("title"), str):
        return replace(record, title=stored.title)
    metadata = dict(record.metadata)
    return replace(record, title=metadata.pop("title"), metadata=metadata)
