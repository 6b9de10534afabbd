"""Contents of a collection: its documents, the metadata fields with their values, and headings to search for."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from cde_rag.collection.collection import Collection
from cde_rag.field_names import elements, field_name
from cde_rag.readers import FOLDER_KEY, PARENT_KEY, SECTION_KEY
from cde_rag.readers.passages import UNITS, UPLOADED_KEY, document_name, document_of, file_of
from cde_rag.readers.row_origin import TABLE_NAME, TableFile, row_of
from cde_rag.records import Record, default_id, parent_of
from cde_rag.stores.store import Store

MOST_RECORDS: Final = 100_000  # that are read: a second or two
FEW: Final = 12  # values of a field that are counted one by one
EXAMPLES: Final = 3
WORDS: Final = 80  # characters of a label made of a text
_READ: Final = 4 * WORDS  # of the text, in which blanks may be many
_PLACES: Final = frozenset(
    {FOLDER_KEY, SECTION_KEY, UPLOADED_KEY, "offset", *UNITS, *(f"last_{unit}" for unit in UNITS)}
)
_NODE: Final = _PLACES.union(  # of a node of LlamaIndex also what it keeps besides the metadata
    ("_node_content", "_node_type", "_node_id", "doc_id", "document_id", "ref_doc_id")
)
_QUERY: Final = re.compile(r"[^\W\d_][^<>{}\[\]|=/\\]{8,60}")  # begins with a letter, and has no code in it
_WHOLE: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_MARKUP: Final = re.compile(r"[*`#]+|\s+$")
Value: TypeAlias = tuple[bool, str | int | float]


@dataclass
class StoredDocument:
    """A document with the number of its passages.

    Attributes:
        name: Its `source`; of other records the parent, and of those without a parent the id.
        title: Title of its first passage.
        where: Filter that its passages match; None for a record without parent.
        file: Path of the file that it was read from; None for uploads and other records.
        words: First words of a record without parent; "" of others.
        row: File of records that this was read from, and its row; None for other records.
        is_digest: True if the name is an id that nobody gave, a digest.
        uploaded: Last upload (UTC, ISO 8601); "" without one.
        passages: Number of passages.
    """

    name: str
    title: str
    where: dict[str, Any] | None
    file: Path | None
    words: str = ""
    row: tuple[str, int] | None = None
    is_digest: bool = False
    uploaded: str = ""
    passages: int = 0

    @property
    def label(self) -> str:
        """Title, else the first words, else the name."""
        return self.title or self.words or self.name

    @property
    def place(self) -> str | None:
        """File and row in words, such as "docs/papers.csv, row 12"; None for other records."""
        return None if self.row is None else f"{self.row[0]}, row {self.row[1]}"

    @property
    def order(self) -> tuple[str, int]:
        """Key of a list by name, in which rows stand where they do in their file."""
        return self.row or (self.name, 0)


@dataclass
class StoredField:
    """A metadata field with its values.

    Attributes:
        name: As in filters.
        records: Number of records that have it.
        values: Number of records of each value, a pair with True before it if it is a boolean: 1 is another value than
            True in filters. None where there are more than a few.
        least: Least number; None if other values occur.
        most: Greatest number.
    """

    name: str
    records: int = 0
    values: Counter[Value] | None = field(default_factory=Counter[Value])
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Contents:
    """Documents, fields and example queries of a collection.

    Attributes:
        documents: Documents by name, in the order of insertion.
        fields: Fields of strings, numbers and booleans, by name; places in files are left out.
        examples: Headings or titles that read like queries, at most three.
        complete: False if the collection has more records than were read.
    """

    documents: dict[str, StoredDocument]
    fields: dict[str, StoredField]
    examples: tuple[str, ...]
    complete: bool

    @classmethod
    def of(cls, collection: Collection, *, most: int = MOST_RECORDS) -> "Contents":
        """Read the records of a collection, at most `most`."""
        key, read = collection.parent_key, 0
        documents: dict[str, StoredDocument] = {}
        fields: dict[str, StoredField] = {}
        headings = dict[str, None]()
        per_document = Counter[str]()
        for record in islice(collection.scroll(), most):
            read += 1
            name = count_passage(documents, record, key)
            if per_document[name] < EXAMPLES and (heading := _heading(record)) and heading not in headings:
                headings[heading] = None
                per_document[name] += 1
            left_out = _NODE if "_node_content" in record.metadata else _PLACES
            for at, value in record.metadata.items():
                if at not in left_out:
                    _count(fields, field_name(at), value)
            if (table := TableFile.of(record.metadata)) is not None:  # rows have no `source` to filter by
                _count(fields, TABLE_NAME, table.name)
        examples = list(headings)[:: max(1, len(headings) // EXAMPLES)][:EXAMPLES]
        narrowing = {
            name: each
            for name, each in sorted(fields.items())
            if each.values is None or len(each.values) > 1 or each.records < read
        }
        return cls(documents, narrowing, tuple(examples), read < most or collection.count() <= read)


def document_records(store: Store, name: str) -> list[Record]:
    """Return the passages of a document by its name, as `StoredDocument` has it; none if there is no such document."""
    key: str | None = store.manifest().settings["parent_key"]
    whole = [int(name)] if _WHOLE.fullmatch(name) else []  # a parent may be a number
    where = {"or": [{field: {"in": [name, *whole]}} for field in dict.fromkeys((PARENT_KEY, key or PARENT_KEY))]}
    rows = [*store.get([name]), *store.scroll(where=where)]
    found = {row.record.id: row.record for row in rows if document_name(row.record, key) == name}
    return list(found.values())


def file_rows(store: Store, name: str) -> list[Record]:
    """Return the rows of a file of records by its name, as `StoredDocument.row` has it; none if there is none."""
    rows = (row.record for row in store.scroll(where={TABLE_NAME: name}))
    return [record for record in rows if TableFile.of(record.metadata) is not None]


def count_passage(documents: dict[str, StoredDocument], record: Record, key: str | None) -> str:
    """Count a record as a passage of its document; return the document's name.

    Args:
        documents: By name; a new one is added.
        record: The record.
        key: Parent key of the collection.
    """
    name, source, parent = document_name(record, key), document_of(record), parent_of(record, key)
    if name not in documents:
        where = None if parent is None or key is None else {key: parent}
        where = where if source is None else {PARENT_KEY: source}
        file = None if source is None else file_of(record.metadata)
        documents[name] = made = StoredDocument(name, record.title, where, file)
        if where is None:
            made.words = textwrap.shorten(record.text[:_READ], WORDS, placeholder="…")
            made.is_digest = name == default_id(record, key)
            table, number = TableFile.of(record.metadata), row_of(record.metadata)
            made.row = None if table is None or number is None else (table.name, number)
    found = documents[name]
    found.passages += 1
    uploaded = record.metadata.get(UPLOADED_KEY)
    if isinstance(uploaded, str):
        found.uploaded = max(found.uploaded, uploaded)
    return name


def _count(fields: dict[str, StoredField], name: str, value: object) -> None:
    found = [each for each in elements(value) if isinstance(each, str | int | float) and each != ""]
    if not found:
        return
    each = fields.setdefault(name, StoredField(name))
    first = not each.records
    each.records += 1
    if each.values is not None:
        each.values.update({(isinstance(one, bool), one) for one in found})
        if len(each.values) > FEW:
            each.values = None
    numbers = [one for one in found if not isinstance(one, str | bool)]
    if len(numbers) < len(found) or (not first and each.least is None):
        each.least = each.most = None
        return
    each.least = min(numbers if each.least is None else [each.least, *numbers])
    each.most = max(numbers if each.most is None else [each.most, *numbers])


def _heading(record: Record) -> str:
    """Return the heading of a passage if it reads like a query, else its title if that does, else ""."""
    section = record.metadata.get(SECTION_KEY)
    headings: Iterable[str] = [section.split(" > ")[-1]] if isinstance(section, str) else []
    for heading in (*headings, record.title):
        plain = _MARKUP.sub("", heading)
        if _QUERY.fullmatch(plain) and 2 <= len(plain.split()) <= 8:
            return plain
    return ""
