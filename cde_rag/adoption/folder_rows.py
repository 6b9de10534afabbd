"""Ids and texts of an application's folder in a temporary file, since the files that have them are read at once."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cde_rag.adoption.movable import PAGE, SourceRow
from cde_rag.adoption.positions import is_text
from cde_rag.adoption.table_columns import is_plain
from cde_rag.adoption.temporary_database import temporary_database, temporary_space

_TABLES: Final = (
    "CREATE TABLE documents (id BLOB PRIMARY KEY, text BLOB, own BLOB, metadata TEXT NOT NULL)",
    "CREATE TABLE places (place INTEGER PRIMARY KEY, id BLOB NOT NULL)",
)
_ROWS: Final = "SELECT p.id, d.text FROM places p LEFT JOIN documents d ON d.id = p.id WHERE"


class FolderDocument(NamedTuple):
    """A document as its application keeps it.

    Attributes:
        id: Its id.
        text: Text as it is embedded; None where there is none.
        metadata: Its metadata. Texts, numbers, None and lists of them are kept: other nested values may refer to each
            other without end.
        own: Text without what is embedded with it; None where that is nothing.
    """

    id: str
    text: str | None
    metadata: Mapping[Any, Any]
    own: str | None = None


class FolderRows:
    """Documents by id, and the ids of the vectors by place. Its calls raise StoreError if the disk is full."""

    def __init__(self) -> None:
        self._rows = temporary_database(*_TABLES)

    def __len__(self) -> int:
        """Return the number of places."""
        return int(self._rows.execute("SELECT count(*) FROM places").fetchone()[0])

    def keep(self, documents: Iterable[FolderDocument]) -> None:
        """Keep documents, each in place of an earlier one of its id."""
        written = (
            (_bytes(each.id), _written(each.text), _written(each.own), json.dumps(_plain(each.metadata)))
            for each in documents
        )
        with temporary_space():
            self._rows.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", written)

    def name(self, places: Iterable[tuple[int, str]]) -> None:
        """Note the ids of vectors by place, each in place of an earlier one."""
        with temporary_space():
            self._rows.executemany(
                "INSERT OR REPLACE INTO places VALUES (?, ?)", ((place, _bytes(id_)) for place, id_ in places)
            )

    def is_numbered(self) -> bool:
        """Return True if the places are numbered from 0."""
        (last,) = self._rows.execute("SELECT coalesce(max(place), -1) FROM places").fetchone()
        return int(last) + 1 == len(self)

    def repeated(self) -> str | None:
        """Return an id that several vectors have; None if there is none."""
        return self._first("SELECT id FROM places GROUP BY id HAVING count(*) > 1 LIMIT 1")

    def lost(self) -> str | None:
        """Return an id of a vector that has no document; None if there is none."""
        return self._first("SELECT id FROM places WHERE id NOT IN (SELECT id FROM documents) LIMIT 1")

    def pages(self) -> Iterator[list[SourceRow]]:
        """Yield the rows in the order of their vectors, at most `PAGE` at once."""
        for start in range(0, len(self), PAGE):
            query = f"{_ROWS} place >= ? AND place < ? ORDER BY place"
            yield [_row(*found) for found in self._rows.execute(query, (start, start + PAGE))]

    def at(self, places: Sequence[int]) -> list[SourceRow]:
        """Return the rows at places."""
        return [_row(*self._rows.execute(f"{_ROWS} place = ?", (place,)).fetchone()) for place in places]

    def metadata(self, id_: str) -> dict[str, Any] | None:
        """Return the metadata of a document that were kept; None if there is no such document."""
        found = self._rows.execute("SELECT metadata FROM documents WHERE id = ?", (_bytes(id_),)).fetchone()
        return None if found is None else json.loads(found[0])

    def own(self, id_: str) -> str | None:
        """Return the own text of a document; None if it has no other than the one that is embedded."""
        found = self._rows.execute("SELECT own FROM documents WHERE id = ?", (_bytes(id_),)).fetchone()
        return None if found is None or found[0] is None else _text(found[0])

    def _first(self, query: str) -> str | None:
        with temporary_space():
            found = self._rows.execute(query).fetchone()
        return None if found is None else _text(found[0])


def _row(id_: bytes, text: bytes | None) -> SourceRow:
    return SourceRow(_text(id_), None if text is None else _text(text))


def _plain(metadata: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in metadata.items() if isinstance(key, str) and (value is None or is_plain(value))
    }


def _written(text: str | None) -> bytes | None:
    return None if text is None or not is_text(text) else _bytes(text)


def _bytes(text: str) -> bytes:
    """Return an id or text as it is kept; ids of applications may have NULs and lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _text(found: bytes) -> str:
    return found.decode("utf-8", "surrogatepass")
