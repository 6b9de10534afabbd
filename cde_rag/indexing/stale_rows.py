"""Stale rows: stored ones that the file of records which they were read from no longer has.

Rows are upserted by id, and stay: a file of records may be one batch of many that had its name. A row without an id
that was edited is a new record, and the old one is stale.
"""

from collections import Counter
from typing import Any, Final

from cde_rag.readers import RecordReader
from cde_rag.readers.row_origin import TABLE_FOLDER, TABLE_NAME, TableFile
from cde_rag.stores.store import Store

_MOST_TABLES: Final = 1_000  # that are looked at one by one


def stale_rows(store: Store, reader: RecordReader) -> dict[str, int]:
    """Return the number of stale rows of each file of records that a reader has read, by name; without noughts.

    Files with bad records are passed over, since a stale row may be one that is bad now.
    """
    stale = Counter[str]()
    for table in reader.good_tables:
        for row in store.scroll(where={TABLE_NAME: table.name}):
            if TableFile.of(row.record.metadata) == table and not reader.has_read(row.record.id):
                stale[table.name] += 1
    return dict(stale)


def missing_tables(store: Store, reader: RecordReader) -> list[str]:
    """Return the names of stored files of records that were read from a reader's folders and are gone."""
    folders = [folder.resolve() for folder in reader.folders]
    known, missing = [table.name for table in reader.good_tables], list[str]()
    while folders and len(known) < _MOST_TABLES:
        where: dict[str, Any] = {TABLE_FOLDER: {"in": sorted(map(str, reader.roots))}}
        row = next(iter(store.scroll(where=where | ({TABLE_NAME: {"nin": known}} if known else {}), page=1)), None)
        table = None if row is None else TableFile.of(row.record.metadata)
        if table is None:
            break
        known.append(table.name)
        if (path := table.path) is not None and any(map(path.is_relative_to, folders)) and not path.is_file():
            missing.append(table.name)
    return missing
