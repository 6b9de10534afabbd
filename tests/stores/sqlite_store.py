"""A new kind of store in one file, as a third party would write it: the three tables in SQLite."""

import contextlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cde_rag.errors import StoreError
from cde_rag.stores.files import locked
from cde_rag.stores.store_tables import RecordRow, VectorRow
from cde_rag.stores.table_store import Access, TableStore

SCHEMA = """
    CREATE TABLE blobs (name TEXT PRIMARY KEY, data BLOB);
    CREATE TABLE records (place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, data BLOB);
    CREATE TABLE vectors (generation INTEGER, id TEXT, digest TEXT, data BLOB, PRIMARY KEY (generation, id));
"""


class SqliteTables:
    """Implements `cde_rag.stores.store_tables.Tables`."""

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

    def scan(self, after: int, limit: int) -> list[RecordRow]:
        query = "SELECT place, id, data FROM records WHERE place > ? ORDER BY place LIMIT ?"
        return [RecordRow(*row) for row in self.connection.execute(query, [after, limit])]

    def put_records(self, records: Mapping[str, bytes]) -> None:
        self.connection.executemany(
            "INSERT INTO records (id, data) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data",
            records.items(),
        )

    def delete_records(self, ids: Sequence[str]) -> None:
        for table in ("records", "vectors"):
            self.connection.executemany(f"DELETE FROM {table} WHERE id = ?", [[id_] for id_ in ids])

    def vectors(self, generation: int, ids: Sequence[str] | None = None) -> dict[str, VectorRow]:
        query = "SELECT id, digest, data FROM vectors WHERE generation = ?"
        if ids is None:
            rows = self.connection.execute(query, [generation]).fetchall()
        else:
            one = f"{query} AND id = ?"
            rows = [row for id_ in ids for row in self.connection.execute(one, [generation, id_])]
        return {id_: VectorRow(digest, data) for id_, digest, data in rows}

    def put_vectors(self, generation: int, vectors: Mapping[str, VectorRow]) -> None:
        rows = [(generation, id_, *vector) for id_, vector in vectors.items()]
        self.connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)

    def delete_vectors(self, generation: int, ids: Sequence[str] | None = None) -> None:
        if ids is None:
            self.connection.execute("DELETE FROM vectors WHERE generation = ?", [generation])
        else:
            one = "DELETE FROM vectors WHERE generation = ? AND id = ?"
            self.connection.executemany(one, [[generation, id_] for id_ in ids])


class SqliteStore(TableStore):
    """A store in the folder `folder`, in one file of SQLite."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._file = self.folder / "store.db"

    def exists(self) -> bool:
        return self._file.exists()

    @contextmanager
    def transaction(self, access: Access) -> Generator[SqliteTables, None, None]:
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
                    yield SqliteTables(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise StoreError(f"{self._file}: expected a store that can be read and written, found: {error}.") from error

    def lease(self) -> AbstractContextManager[None]:
        return locked(self.folder / "lease", f"{self.folder}: expected the only run on generations, found another")

    def at(self, folder: Path) -> "SqliteStore":
        """A store of this kind in another folder, for backups and tenants."""
        return SqliteStore(folder)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.folder)!r})"
