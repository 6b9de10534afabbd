"""Completion of partial records by the stored records of their ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from cde_rag.embedders.protocol import Embedder
from cde_rag.indexing.headers import with_headers, without_headers
from cde_rag.records import PartialRecord, Record, Row


def completed(
    records: Sequence[Record], stored: Mapping[str, Row], settings: Mapping[str, Any], embedder: Embedder
) -> list[Record]:
    """Give partial records the titles and metadata that are stored, and headers; other records stay as they are.

    Args:
        records: Checked records.
        stored: Stored rows of their ids.
        settings: Settings of the store; a stored title is taken without its headers, which new metadata may change.
        embedder: As of `with_headers`.
    """
    partial = [_completed(each, stored.get(each.id), settings) for each in records if isinstance(each, PartialRecord)]
    complete = iter(with_headers(partial, settings, embedder))
    return [next(complete) if isinstance(each, PartialRecord) else each for each in records]


def _completed(record: PartialRecord, row: Row | None, settings: Mapping[str, Any]) -> Record:
    title, metadata = record.title, record.metadata
    if row is not None and "title" in record.kept:
        title = without_headers(row.record, settings)
    if row is not None and "metadata" in record.kept:
        metadata = row.record.metadata
    return Record(record.id, record.text, title, metadata)
