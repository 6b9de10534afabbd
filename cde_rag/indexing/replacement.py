"""Replacement of documents: stored passages that a document lacks when it is read again.

A passage of a document has the id `source#number`, numbered without gaps from 0, so that the number of passages that
are read tells which stored ones the document no longer has. One file may be stored under several names: its absolute
path, if it was indexed by itself, its path in each folder that was indexed, and `uploads/NAME`, if it was sent to a
server. Those that are not read are doubles; an upload is one if the file has more than half of its passages.
So are the passages of a folder that was renamed or moved: one that is gone, of whose documents most are in another now,
with some of their text.

Rows of files of records are upserted by id, and stay: a file of records may be one batch of many that had its name. A
row without an id that was edited is a new record, and the old one is stale.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import Any, Final

from cde_rag.errors import StoreError
from cde_rag.field_names import value_at
from cde_rag.readers import FOLDER_KEY, PARENT_KEY, RecordReader, documents
from cde_rag.readers.columns import UnusableError
from cde_rag.readers.pages import page_of
from cde_rag.readers.passages import UPLOADS, document_of, file_of, kind_of, source_of
from cde_rag.readers.reading_rules import NEWEST_RULES
from cde_rag.readers.row_origin import TABLE_FOLDER, TABLE_NAME, TableFile
from cde_rag.records import Record, Row, default_id
from cde_rag.stores.store import Store

_OPERANDS: Final = 5_000  # of one filter, which may have 10,000
_MOST_READ: Final = 64  # documents of a folder that are compared with those of another
_MOST_TABLES: Final = 1_000  # files of records that are looked at one by one; for more all rows are read
_SHOWN: Final = 40  # characters of a row without an id, for messages
_READ: Final = 4 * _SHOWN  # of its text, in which blanks may be many
_MOST_FOLDERS: Final = 64  # that are looked at; rows of tables may have a field of this name, with a value for each


@dataclass(frozen=True)
class DocumentRecords:
    """Records of documents that were read completely.

    Attributes:
        records: The records; others may be among them.
        documents: Number of passages of each document, by `source`.
    """

    records: Sequence[Record]
    documents: Mapping[str, int] = field(default_factory=dict[str, int])

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class Replacement:
    """Stored passages that the documents of one call replace, found chunk by chunk.

    Args:
        store: Holds a collection.
        documents: Number of passages of each document of the call, by `source`. It may grow during the call, and has a
            document before the first passage of that comes.
    """

    def __init__(self, store: Store, documents: Mapping[str, int]) -> None:
        self._store = store
        self._documents = documents
        self._empty = not store.count()
        self._folders: set[str] = set()  # that are stored, among those asked for
        self._asked: set[str] = set()
        self._gone: dict[str, list[Path]] = {}  # former paths of renamed folders, by the present one
        self._waiting: dict[str, int] = {}  # number of passages to come, of documents that have begun
        self._leaving: dict[str, list[str]] = {}  # ids of their stored passages that they lack

    def begin(self, records: Mapping[str, Record], stored: Mapping[str, Row]) -> set[str]:
        """Return the ids of stored passages that the documents of a chunk no longer have.

        Args:
            records: Records of the chunk by id.
            stored: Rows that are stored under ids of the chunk.
        """
        read = {name: record for record in records.values() if (name := self._document(record)) is not None}
        new = {name: record for name, record in read.items() if name not in self._waiting}
        self._waiting.update((name, self._documents[name]) for name in new)
        self._leaving.update((name, []) for name in new)
        if new and not self._empty:
            self._find(new, stored)
        return {id_ for name in read for id_ in self._leaving[name]}

    def end(self, records: Mapping[str, Record]) -> list[str]:
        """Return the ids to delete after a chunk is written: those that `begin` found for documents complete with it.

        Args:
            records: Records of the chunk by id.
        """
        gone: list[str] = []
        for record in records.values():
            if (name := self._document(record)) is not None:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    del self._waiting[name]
                    gone += self._leaving.pop(name)
        return gone

    def _document(self, record: Record) -> str | None:
        """Return the document that a record is a passage of; None for a row that only has the name of one."""
        name = document_of(record)
        return name if name is not None and _number(record) < self._documents.get(name, 0) else None

    def _find(self, new: Mapping[str, Record], stored: Mapping[str, Row]) -> None:
        """Add the stored passages that some documents lack to `_leaving`."""
        paths = {name: file_of(record.metadata) for name, record in new.items()}
        above = {str(folder) for path in paths.values() if path is not None for folder in path.parents}
        self._folders |= stored_folders(self._store, above - self._asked)
        self._asked |= above
        names = {name: name for name in new}
        for name, path in paths.items():
            for other in [] if path is None else self._names_of(path, new[name]):
                if other not in self._documents:  # else it is read, too
                    names.setdefault(other, name)
        uploads: dict[str, list[Record]] = {}
        for source, record in self._passages_of(names, stored):
            name = names[source]
            if name != source and _is_upload(record):
                uploads.setdefault(source, []).append(record)
                continue
            double = name != source and _present(record, self._gone) == paths[name]
            if double or (name == source and _number(record) >= self._documents[name]):
                self._leaving[name].append(record.id)
        for name, path in paths.items():
            sent = [] if path is None else uploads.get(f"{UPLOADS}/{path.name}", [])
            if sent and path is not None and 2 * _contained(path, [record.text for record in sent]) > len(sent):
                self._leaving[name] += [record.id for record in sent]

    def _passages_of(self, names: Mapping[str, str], stored: Mapping[str, Row]) -> Iterator[tuple[str, Record]]:
        """Yield the stored passages of documents of some names, unless all of them are a chunk's own, in `stored`."""
        known = [document_of(row.record) for row in stored.values()]
        asked = iter(names)
        while part := set(islice(asked, _OPERANDS)):
            where = {PARENT_KEY: {"in": list(part)}}
            if self._store.count(where) == sum(name in part for name in known):
                continue  # nothing but what the chunk itself writes; found without reading a row
            for row in self._store.scroll(where=where):
                source = document_of(row.record)
                if source is not None and source in part:
                    yield source, row.record

    def _names_of(self, path: Path, record: Record) -> list[str]:
        """Return the names under which a file may be stored, one of whose passages is given."""
        names = [str(path), f"{UPLOADS}/{path.name}"]
        names += [source_of(path, [Path(each)])[PARENT_KEY] for each in self._folders]
        folder: str | None = record.metadata.get(FOLDER_KEY)
        if folder is None:
            return names
        if folder not in self._gone:
            self._gone[folder] = _former(self._store, folder)
        return [*names, *(f"{gone.name}/{path.relative_to(folder).as_posix()}" for gone in self._gone[folder])]


def _is_upload(record: Record) -> bool:
    """Return True for a passage of a file that was sent to a server."""
    return FOLDER_KEY not in record.metadata and str(record.metadata.get(PARENT_KEY)).startswith(f"{UPLOADS}/")


def _number(record: Record) -> int:
    """Return the number of a passage in its document."""
    return int(record.id.rpartition("#")[2])


def locate(reader: RecordReader, store: Store) -> None:
    """Let a reader name files as a collection does, which has an outer folder of theirs.

    Args:
        reader: Its `roots` are set.
        store: Store of the collection that the records go to.

    Raises:
        StoreError: The collection has passages of another folder with the same name as one of the reader's, so that
            they would have the same ids; or one of the reader's is a link, which led to another folder before.
    """
    folders = frozenset(folder.resolve() for folder in reader.folders)
    paths = {path.parent.resolve() / path.name for path in (*reader.files, *reader.row_files)} | folders
    above = {str(folder) for path in paths for folder in (path, *path.parents)}
    stored = {Path(folder) for folder in stored_folders(store, above)}
    reader.roots = folders | stored
    for given in reader.folders:
        folder = given.resolve()
        if folder not in stored and not any(folder != root and folder.is_relative_to(root) for root in reader.roots):
            _check_folder(store, given, folder)


def stored_folders(store: Store, asked: Iterable[str]) -> set[str]:
    """Return those of some folders that passages or rows in a store were read from."""
    asked = set(asked)
    found = _stored(store, FOLDER_KEY, asked)
    return found | _stored(store, TABLE_FOLDER, asked - found)


def _stored(store: Store, field: str, asked: Iterable[str]) -> set[str]:
    """Return those of some values that a field has in a store."""
    left, found = sorted(asked), set[str]()
    while part := left[:_OPERANDS]:
        row = next(iter(store.scroll(where={field: {"in": part}}, page=1)), None)
        value = None if row is None else value_at(row.record.metadata, field)
        if isinstance(value, str) and value in part:
            found.add(value)
            left.remove(value)
        else:
            del left[:_OPERANDS]
    return found


def missing_documents(store: Store, reader: RecordReader) -> list[str]:
    """Return the `source` of each stored document that was read from the reader's folders and whose file is gone."""
    folders = [folder.resolve() for folder in reader.folders]
    where = {FOLDER_KEY: {"in": sorted(map(str, reader.roots))}}
    if not folders or store.count(where) == sum(reader.documents.values()):
        return []
    found: dict[str, bool] = {}
    for row in store.scroll(where=where):
        source = document_of(row.record)
        if source is None or source in reader.documents or source in found:
            continue
        path = file_of(row.record.metadata)
        found[source] = path is not None and any(map(path.is_relative_to, folders)) and not path.is_file()
    return [source for source, missing in found.items() if missing]


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
    others = ((table.name, table.path) for table in _other_tables(store, reader)) if folders else ()
    return [
        name
        for name, path in others
        if path is not None and any(map(path.is_relative_to, folders)) and not path.is_file()
    ]


def _other_tables(store: Store, reader: RecordReader) -> Iterator[TableFile]:
    """Yield once each the stored files of records that a reader has not read, of its folders."""
    known = [table.name for table in reader.good_tables]
    where: dict[str, Any] = {TABLE_FOLDER: {"in": sorted(map(str, reader.roots))}}
    while len(known) < _MOST_TABLES:
        row = next(iter(store.scroll(where=where | ({TABLE_NAME: {"nin": known}} if known else {}), page=1)), None)
        table = None if row is None else TableFile.of(row.record.metadata)
        if table is None:
            return
        known.append(table.name)
        yield table
    named = set(known)
    for row in store.scroll(where=where):
        table = TableFile.of(row.record.metadata)
        if table is not None and table.name not in named:
            named.add(table.name)
            yield table


def gone_passages(store: Store, reader: RecordReader, paths: Iterable[Path]) -> dict[str, str]:
    """Return the stored passages of files at or below some paths that are gone, by id, each with its document.

    Args:
        store: Store of a collection.
        reader: Its `roots` name the files, as after `locate`.
        paths: Absolute paths of files and folders.
    """
    found, there = dict[str, str](), dict[Path, bool]()
    for path in paths:
        for name in {PurePosixPath(source_of(path, reader.roots)[PARENT_KEY]).as_posix(), path.as_posix()}:
            where = {"or": [{PARENT_KEY: name}, {PARENT_KEY: {"gte": f"{name}/", "lt": f"{name}0"}}]}  # 0 follows /
            for row in store.scroll(where=where):
                source, file = document_of(row.record), file_of(row.record.metadata)
                if source is None or file is None or not file.is_relative_to(path):
                    continue
                if file not in there:
                    there[file] = file.is_file()
                if not there[file]:
                    found[row.record.id] = source
    return found


def unread_passages(store: Store, reader: RecordReader) -> dict[str, str]:
    """Return the stored passages that a reader's sources do not have, by id, each with its document, else its own name.

    Those of documents that the reader has are left out, also under the name of a folder that was renamed: `Replacement`
    finds them. So are those of files that are there and were not read: bad ones, those that need the extra `documents`,
    where it is missing, and files of records without the field of texts, whose rows another run may have read by
    another field.
    """
    unreadable = frozenset[str]() if documents.readable() else documents.DOCUMENTS
    kept, files, folders = set[str](), set[Path](), set[str]()
    for record in reader:
        kept.add(record.id)
        if document_of(record) is not None and (path := file_of(record.metadata)) is not None:
            files.add(path)
            folders.add(record.metadata.get(FOLDER_KEY, ""))
    files.update(reader.bad_files, (path.resolve() for path in reader.bad_files))  # a named link's are its target's
    gone = {folder: _former(store, folder) for folder in folders - {""}}
    tables = {table.path for table in reader.read_tables}
    lacking, key = bool(reader.unread().tables), store.manifest().settings["parent_key"]
    found: dict[str, str] = {}
    for row in store.scroll():
        source = document_of(row.record)
        path = None if source is None else _present(row.record, gone)
        read = source in reader.documents or path in files
        if row.record.id in kept or (source is not None and read):
            continue
        table = TableFile.of(row.record.metadata)
        if table is not None and table.path not in tables and table.path is not None and table.path.is_file():
            continue
        if source is None and table is None and lacking:  # a row that was stored before rows said their file
            continue
        if path is None or path.suffix.lower() not in unreadable or not path.is_file():
            found[row.record.id] = source or _shown(row.record, table, key)
    return found


def _shown(record: Record, table: TableFile | None, key: str | None) -> str:
    """Return the id of a row, or its first words and its file if nobody gave it one: its number may have changed."""
    if table is None or record.id != default_id(record, key):
        return record.id
    return f"{shorten((record.title or record.text)[:_READ], _SHOWN, placeholder='…')!r} of {table.name}"


def _check_folder(store: Store, given: Path, folder: Path) -> None:
    """Refuse a folder whose passages would replace those of another, or double those of an earlier release."""
    inside = {"gte": f"{folder.name}/", "lt": f"{folder.name}0"}  # 0 is what follows /
    rows = store.scroll(where={PARENT_KEY: inside, FOLDER_KEY: {"ne": str(folder)}}, page=1)
    named = (row.record.metadata.get(FOLDER_KEY) for row in rows)
    other = next((name for name in named if isinstance(name, str)), None)  # rows of tables may have lists there
    if other is not None and not _was(store, path := Path(other), folder):
        raise StoreError(
            f"{store} holds passages of another folder {folder.name!r}, {path}, which those of {folder} would replace. "
            f"{_remedy(path)} To keep both, rename one of the folders, or give them two collections."
        )
    for path in _other_folders(store, str(folder)) if given.is_symlink() else ():
        if path.is_dir() and _has_most(store, path, folder):
            raise StoreError(
                f"{given} is a link to {folder}, and {store} holds passages of {path}, mostly the same, which "
                f"would double the new ones. {_remedy(path)} To keep both, name {folder} in place of the link."
            )


def _remedy(folder: Path) -> str:
    return f"To replace them, first call collection.delete(where={{'{FOLDER_KEY}': {str(folder)!r}}}) in Python."


def _other_folders(store: Store, folder: str) -> list[Path]:
    """Return the other folders than `folder` that passages in a store were read from."""
    known = [folder]
    while len(known) < _MOST_FOLDERS:
        row = next(iter(store.scroll(where={FOLDER_KEY: {"nin": known}}, page=1)), None)
        if row is None or not isinstance(found := row.record.metadata[FOLDER_KEY], str):
            break
        known.append(found)
    return [path for path in map(Path, known[1:]) if path.is_absolute()]


def _former(store: Store, folder: str) -> list[Path]:
    """Return the stored folders that seem to have been renamed or moved to be `folder`."""
    return [other for other in _other_folders(store, folder) if _was(store, other, Path(folder))]


def _present(record: Record, gone: Mapping[str, Sequence[Path]]) -> Path | None:
    """Return the path where the file of a stored passage is now.

    Args:
        record: The passage.
        gone: Former paths of renamed folders, by the present one.
    """
    path, folder = file_of(record.metadata), str(record.metadata.get(FOLDER_KEY))
    present = next((new for new, former in gone.items() if Path(folder) in former), None)
    if path is None or present is None or not path.is_relative_to(folder):
        return path
    return Path(present, path.relative_to(folder))


def _was(store: Store, other: Path, folder: Path) -> bool:
    """Return True if a stored folder seems to be one that was renamed or moved to be another: it is gone."""
    return not other.is_dir() and _has_most(store, other, folder)


def _has_most(store: Store, other: Path, folder: Path) -> bool:
    """Return True if a folder has more than half of the documents of a stored one, at their paths in it.

    A file counts if it has a stored passage, too. Names alone prove nothing: every project has a README.md.
    """
    files = {source: folder / source.removeprefix(f"{other.name}/") for source in _sources(store, other)}
    if 2 * sum(file.is_file() for file in files.values()) <= len(files):  # nothing is read
        return False
    sample = list(files)[:: 1 + len(files) // _MOST_READ]
    texts: dict[str, list[str]] = {source: [] for source in sample}
    for row in store.scroll(where={FOLDER_KEY: str(other), PARENT_KEY: {"in": sample}}):
        if (source := document_of(row.record)) is not None and source in texts:
            texts[source].append(row.record.text)
    return 2 * sum(_contained(files[source], found) > 0 for source, found in texts.items()) > len(sample)


def _sources(store: Store, folder: Path) -> list[str]:
    """Return the names of the documents that were read from a folder."""
    sources = (document_of(row.record) for row in store.scroll(where={FOLDER_KEY: str(folder)}))
    return list(dict.fromkeys(source for source in sources if source is not None))


def _contained(file: Path, passages: Sequence[str]) -> int:
    """Return the number of some passages that a file has, 0 if it cannot be read."""
    if not file.is_file() or (file.suffix.lower() in documents.DOCUMENTS and not documents.readable()):
        return 0
    try:
        kind = kind_of(file, frozenset())
        texts = [page_of(file, kind, rules, file.name).text for rules in range(1, NEWEST_RULES + 1)]
    except UnusableError:
        return 0
    return sum(any(passage in text for text in texts) for passage in passages)
