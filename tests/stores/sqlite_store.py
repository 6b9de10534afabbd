"""A new kind of store in one file, as a third party would write it: the three tables in SQLite."""

import contextlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cde_rag.errors import StoreError
from cde_rag.stores.exact import Access, ExactEngine, ExactSession, RecordRow, VectorRow
from cde_rag.stores.files import locked
from cde_rag.stores.store import Store

SCHEMA = """
    CREATE TABLE IF NOT EXISTS blobs (name TEXT PRIMARY KEY, data BLOB);
    CREATE TABLE IF NOT EXISTS records (place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, data BLOB);
    CREATE TABLE IF NOT EXISTS vectors
        (generation INTEGER, id TEXT, digest TEXT, data BLOB, PRIMARY KEY (generation, id));
"""


class SqliteSession(ExactSession):
    """The tables inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def blob(self, name: str) -> bytes | None:
        found = self.connection.execute("SELECT data FROM blobs WHERE name = ?", [name]).fetchone()
        return found and found[0]

    def put_blob(self, name: str, data: bytes | None) -> None:
        self.connection.execute("DELETE FROM blobs WHERE name = ?", [name])
        if data is not None:
            self.connection.execute("INSERT INTO blobs VALUES (?, ?)", [name, data])

    def records(self, ids: Sequence[str]) -> dict[str, RecordRow]:
        found: dict[str, RecordRow] = {}
        for id_ in ids:
            for row in self.connection.execute("SELECT place, id, data FROM records WHERE id = ?", [id_]):
                found[id_] = RecordRow(*row)
        return found

    def records_after(self, place: int, limit: int) -> list[RecordRow]:
        query = "SELECT place, id, data FROM records WHERE place > ? ORDER BY place LIMIT ?"
        return [RecordRow(*row) for row in self.connection.execute(query, [place, limit])]

    def put_records(self, records: Mapping[str, bytes]) -> None:
        self.connection.executemany(
            "INSERT INTO records (id, data) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data",
            records.items(),
        )

    def delete_records(self, ids: Sequence[str]) -> None:
        for table in ("records", "vectors"):
            self.connection.executemany(f"DELETE FROM {table} WHERE id = ?", [[id_] for id_ in ids])

    def vector_rows(self, generation: int, ids: Sequence[str] | None = None) -> dict[str, VectorRow]:
        query = "SELECT id, digest, data FROM vectors WHERE generation = ?"
        if ids is None:
            rows = self.connection.execute(query, [generation]).fetchall()
        else:
            one = f"{query} AND id = ?"
            rows = [row for id_ in ids for row in self.connection.execute(one, [generation, id_])]
        return {id_: VectorRow(digest, data) for id_, digest, data in rows}

    def put_vector_rows(self, generation: int, vectors: Mapping[str, VectorRow]) -> None:
        rows = [(generation, id_, *vector) for id_, vector in vectors.items()]
        self.connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)

    def delete_vector_rows(self, generation: int, ids: Sequence[str] | None = None) -> None:
        query, chosen = "DELETE FROM vectors WHERE generation = ? AND id = ?", self.vector_rows(generation, ids)
        self.connection.executemany(query, [[generation, id_] for id_ in chosen])


class SqliteEngine(ExactEngine):
    """A collection in one file of SQLite in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._file = self.folder / "store.db"

    def exists(self) -> bool:
        return self._file.exists()

    @contextmanager
    def session(self, access: Access) -> Generator[SqliteSession, None, None]:
        if access == "create":
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(self._file, timeout=60, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN" if access == "read" else "BEGIN IMMEDIATE")
                try:
                    if access == "create":
                        for statement in SCHEMA.split(";")[:-1]:
                            connection.execute(statement)
                    yield SqliteSession(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise StoreError(f"{self._file}: expected a store that can be read and written, found: {error}.") from error

    def lease(self) -> AbstractContextManager[None]:
        return locked(self.folder / "lease", f"{self.folder}: expected the only run on generations, found another")


class SqliteStore(Store):
    """A store in the folder `folder`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        super().__init__(SqliteEngine(self.folder))

    def at(self, folder: Path) -> "SqliteStore":
        """A store of this kind in another folder, for backups and tenants."""
        return SqliteStore(folder)
