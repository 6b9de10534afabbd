"""Stale rows: stored ones that the file of records which they were read from no longer has.

Rows are upserted by id, and stay: a file of records may be one batch of many that had its name. A row without an id
that was edited is a new record, and the old one is stale.
"""

from collections import Counter
from typing import Final

from cde_rag.readers import RecordReader
from cde_rag.readers.row_origin import TABLE_FOLDER, TABLE_NAME, TableFile
from cde_rag.stores.store import Store

_MOST_TABLES: Final = 1_000  # that are gone, and are looked for one by one


def stale_rows(store: Store, reader: RecordReader) -> dict[str, int]:
    """Return the number of stale rows of each file of records that a reader has read, by name; without noughts.

    Files with bad records are passed over, since a stale row may be one that is bad now.
    """
    stale = Counter[str]()
    for name in {table.name for table in reader.tables}:
        for row in store.scroll(where={TABLE_NAME: name}):
            if TableFile.of(row.record.metadata) in reader.tables and not reader.has_read(row.record.id):
                stale[name] += 1
    return dict(sorted(stale.items()))


def missing_tables(store: Store, reader: RecordReader) -> list[str]:
    """Return the names of stored files of records that were read from a reader's folders and are gone."""
    folders = [str(folder.resolve()) for folder in reader.folders]
    known, missing = [table.name for table in reader.tables], list[str]()
    while folders and len(missing) < _MOST_TABLES:
        where = {TABLE_FOLDER: {"in": folders}, TABLE_NAME: {"nin": known}}
        row = next(iter(store.scroll(where=where, page=1)), None)
        table = None if row is None else TableFile.of(row.record.metadata)
        if table is None:
            break
        known.append(table.name)
        if (path := table.path) is not None and not path.is_file():
            missing.append(table.name)
    return missing
