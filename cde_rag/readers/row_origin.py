"""Origins of rows: the metadata that say from which file of records a row was read, and where it stands there.

They are one object under one key, since tables often have columns named source, row or line, and since `source` is the
parent of passages: rows of a table are no siblings. A table with a column of this key, or of one below it as
`table.row`, keeps its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cde_rag.records import Record

TABLE_KEY: Final = "table"  # metadata key of origins
TABLE_NAME: Final = f"{TABLE_KEY}.file"  # in filters
TABLE_FOLDER: Final = f"{TABLE_KEY}.folder"
_BITS: Final = 48  # of a row's number, and of a line's
PLACE_BITS: Final = 2 * _BITS  # of both together


class RowPlace(str):
    """A row's file and line in words, such as "papers.csv, line 7", with its numbers.

    Attributes:
        row: Its number, from 1, as people count: with a CSV's header, as a spreadsheet does.
        line: Its first line, from 1; None in files without lines.
    """

    __slots__ = ("line", "row")

    row: int
    line: int | None

    @classmethod
    def at(cls, words: str, row: int, line: int | None = None) -> "RowPlace":
        """Return a place."""
        place = cls(words)
        place.row, place.line = row, line
        return place

    @property
    def packed(self) -> int:
        """Both numbers as one."""
        return (self.row << _BITS) | (self.line or 0)


@dataclass(frozen=True, slots=True)
class TableFile:
    """File of records.

    Attributes:
        name: As `source` of the passages of a text file: the folder's name and the path in it, or the absolute path.
        folder: Absolute path of that folder; None for a file that was named by itself.
    """

    name: str
    folder: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "TableFile | None":
        """Return the file that a row was read from; None for other records."""
        found = metadata.get(TABLE_KEY)
        if not isinstance(found, Mapping):
            return None
        origin = cast(Mapping[str, object], found)
        name, folder, row = origin.get("file"), origin.get("folder"), origin.get("row")
        if not isinstance(name, str) or type(row) is not int or not isinstance(folder, str | None):  # true is no number
            return None
        return cls(name, folder)

    @property
    def path(self) -> Path | None:
        """Path of the file; None if the name does not say it, as that of an upload."""
        path = Path(self.name) if self.folder is None else Path(self.folder).parent / self.name
        return path if path.is_absolute() else None

    @property
    def is_named_by_utf8(self) -> bool:
        """Return False for a path that metadata cannot hold."""
        try:
            f"{self.name}{self.folder}".encode()
        except UnicodeEncodeError:
            return False
        return True

    def origin(self, packed: int) -> dict[str, Any]:
        """Return the object of a row: the file, its folder, `row`, and `line` if that is another number.

        Args:
            packed: As of `RowPlace`.
        """
        row, line = packed >> _BITS, packed & ((1 << _BITS) - 1)
        folder = {} if self.folder is None else {"folder": self.folder}
        return {"file": self.name, **folder, "row": row, **({"line": line} if line not in (0, row) else {})}


def row_of(metadata: Mapping[str, Any]) -> int | None:
    """Return the number of a row in its file; None for other records.

    Examples:
        >>> row_of({"table": {"file": "docs/papers.csv", "row": 12}})
        12
    """
    return None if TableFile.of(metadata) is None else metadata[TABLE_KEY]["row"]


def public_origin(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata in which a row's origin lacks its folder, a path of this machine."""
    if TableFile.of(metadata) is None:
        return dict(metadata)
    return {**metadata, TABLE_KEY: {key: value for key, value in metadata[TABLE_KEY].items() if key != "folder"}}


def has_own(names: Iterable[str]) -> bool:
    """Return True if fields have the key of origins, or a name in filters that an origin's would be as well."""
    return any(name == TABLE_KEY or name.startswith(f"{TABLE_KEY}.") for name in names)


def with_origin(record: Record, file: TableFile, packed: int) -> Record:
    """Return a record with its origin; one that has a field of this key as it is."""
    if has_own(record.metadata):
        return record
    metadata = {**record.metadata, TABLE_KEY: file.origin(packed)}
    return Record(record.id, record.text, record.title, metadata)
