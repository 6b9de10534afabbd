"""Numbers of names that rows have in common, for stores whose rows need have no ids."""

from collections.abc import Iterable
from typing import Final

from cde_rag.adoption.temporary_database import temporary_database, temporary_space

_TABLE: Final = "CREATE TABLE names (name BLOB PRIMARY KEY, count INT NOT NULL) WITHOUT ROWID"


class NameCounts:
    """Names that were given, with their counts, in a temporary file."""

    def __init__(self) -> None:
        self._names = temporary_database(_TABLE)

    def unique(self, names: Iterable[str]) -> list[str]:
        """Return names that no row before has: the second row of a name is `name (2)`.

        Raises:
            StoreError: The temporary file cannot be written.
        """
        found: list[str] = []
        with temporary_space():
            for name in names:
                key = (name.encode("utf-8", "surrogatepass"),)
                row = self._names.execute("SELECT count FROM names WHERE name = ?", key).fetchone()
                count = 1 if row is None else int(row[0]) + 1
                self._names.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (*key, count))
                found.append(name if count == 1 else f"{name} ({count})")
        return found
