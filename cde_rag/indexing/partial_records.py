"""Completion of partial records by the stored records of their ids."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

from cde_rag.indexing.headers import without_headers
from cde_rag.records import CHUNK, PartialRecord
from cde_rag.stores.base import Record
from cde_rag.stores.store import Store


def completed(records: Iterable[Record], store: Store, settings: Mapping[str, Any]) -> Iterator[Record]:
    """Give partial records the titles and metadata that are stored; yield other records unchanged.

    Args:
        records: Records to add, which need not be valid.
        store: Holds a collection.
        settings: Settings of the store; a stored title is taken without its headers, which new metadata may change.
    """
    remaining = iter(records)
    for first in remaining:
        if not isinstance(first, PartialRecord):  # is not held back, so that it is written if its source breaks
            yield first
            continue
        some = [first, *islice(remaining, CHUNK - 1)]
        ids = [record.id for record in some if isinstance(record, PartialRecord)]
        valid = [id_ for id_ in ids if isinstance(cast(object, id_), str)]
        stored = {row.record.id: row.record for row in store.get(valid)} if valid else {}
        for record in some:
            if isinstance(record, PartialRecord):
                yield _completed(record, stored, settings)
            else:
                yield record


def _completed(record: PartialRecord, stored: Mapping[str, Record], settings: Mapping[str, Any]) -> Record:
    there = stored.get(record.id) if isinstance(cast(object, record.id), str) else None
    title, metadata = record.title, record.metadata
    if there is not None and "title" in record.kept:
        title = without_headers(there, settings)
    if there is not None and "metadata" in record.kept:
        metadata = there.metadata
    return Record(record.id, record.text, title, metadata)
