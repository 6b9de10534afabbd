"""A third party's store: a collection in one LanceDB table, whose tag `head` names the committed version."""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

from cde_rag.errors import StoreError
from cde_rag.stores.exact import Access, ExactEngine, ExactSession, RecordRow, VectorRow

NAME, HEAD, AT_ONCE, COMPACT = "collection", "head", 500, 64
KEY = [("kind", pa.string()), ("generation", pa.int64()), ("id", pa.string())]
SCHEMA = pa.schema([*KEY, ("place", pa.int64()), ("digest", pa.string()), ("data", pa.large_binary())])
BLOB, RECORD, VECTOR, LAST = "blob", "record", "vector", "last"


class LanceSession(ExactSession):
    def __init__(self, table: Any, name: str) -> None:
        self.table, self.name, self.blobs = table, name, dict[str, bytes | None]()

    def blob(self, name: str) -> bytes | None:
        if name not in self.blobs:
            self.blobs[name] = next((one["data"] for one in self._stored(BLOB, 0, [name])), None)
        return self.blobs[name]

    def put_blob(self, name: str, data: bytes | None) -> None:
        self._swap(BLOB, 0, {name: (0, "", data)} if data is not None else {}, [name])
        self.blobs[name] = data

    def records(self, ids: Sequence[str]) -> dict[str, RecordRow]:
        return {one["id"]: RecordRow(one["place"], one["id"], one["data"]) for one in self._stored(RECORD, 0, ids)}

    def records_after(self, place: int, limit: int) -> list[RecordRow]:
        after = f"kind = '{RECORD}' AND place > {place}"
        places = np.sort(self._read(after, ["place"])["place"].to_numpy())[:limit]
        found = self._read(f"{after} AND place <= {places[-1]}").sort_by("place").to_pylist() if len(places) else []
        return [RecordRow(one["place"], one["id"], one["data"]) for one in found]

    def put_records(self, records: Mapping[str, bytes]) -> None:
        old = self.records(list(records))
        places = {id_: one.place for id_, one in old.items()}
        if new := [id_ for id_ in records if id_ not in places]:
            last = next((one["place"] for one in self._stored(LAST, 0, [""])), 0)
            places |= {id_: last + number for number, id_ in enumerate(new, start=1)}
            self._swap(LAST, 0, {"": (last + len(new), "", b"")}, [""])
        self._swap(RECORD, 0, {id_: (places[id_], "", data) for id_, data in records.items()}, list(old))

    def delete_records(self, ids: Sequence[str]) -> None:
        with _reported(self.name):
            for some in _conditions(ids):
                self.table.delete(f"kind IN ('{RECORD}', '{VECTOR}') AND {some}")

    def vector_rows(self, generation: int, ids: Sequence[str] | None = None) -> dict[str, VectorRow]:
        return {one["id"]: VectorRow(one["digest"], one["data"]) for one in self._stored(VECTOR, generation, ids)}

    def put_vector_rows(self, generation: int, vectors: Mapping[str, VectorRow]) -> None:
        self._swap(VECTOR, generation, {id_: (0, *vector) for id_, vector in vectors.items()}, list(vectors))

    def delete_vector_rows(self, generation: int, ids: Sequence[str] | None = None) -> None:
        self._swap(VECTOR, generation, {}, ids)

    def _stored(self, kind: str, generation: int, ids: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        for some in _conditions(ids):
            yield from self._read(f"kind = '{kind}' AND generation = {generation} AND {some}").to_pylist()

    def _swap(self, kind: str, generation: int, rows: Mapping[str, tuple[Any, ...]], old: Sequence[str] | None) -> None:
        columns = zip(*[(kind, generation, id_, *row) for id_, row in rows.items()], strict=True)
        with _reported(self.name):
            for some in _conditions(old):
                self.table.delete(f"kind = '{kind}' AND generation = {generation} AND {some}")
            if rows:
                self.table.add(pa.table(list(map(list, columns)), schema=SCHEMA))

    def _read(self, condition: str, columns: list[str] = SCHEMA.names) -> Any:
        with _reported(self.name):
            return self.table.search().where(condition).select(columns).to_arrow()


class LanceEngine(ExactEngine):
    def exists(self) -> bool:
        with _reported(self):
            return Path(str(self), f"{NAME}.lance").is_dir() and HEAD in self._table().tags.list()

    @contextmanager
    def session(self, access: Access) -> Iterator[LanceSession]:
        if access == "read":
            with _reported(self):
                (table := self._table()).checkout(HEAD)
            return (yield LanceSession(table, str(self)))
        with self._locked("writer", fcntl.LOCK_EX, access == "create"):
            with _reported(self):
                if access == "create" and not self.exists():
                    lancedb.connect(str(self)).create_table(NAME, schema=SCHEMA, mode="overwrite")
                table, tags = self._table(), self._table().tags.list()
                if tags and table.version != tags[HEAD]["version"]:
                    table.restore(HEAD)  # drops what was begun and not committed
            yield LanceSession(table, str(self))
            with _reported(self):
                with suppress(RuntimeError):  # where the head is more than a day old, it is kept
                    if tags and table.version // COMPACT > tags[HEAD]["version"] // COMPACT:
                        table.optimize(cleanup_older_than=timedelta(days=1))
                _flush(Path(str(self)))
                (table.tags.update if tags else table.tags.create)(HEAD, table.version)
                _flush(Path(str(self), f"{NAME}.lance", "_refs"))

    def lease(self) -> AbstractContextManager[None]:
        return self._locked("lease", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _table(self) -> Any:
        return lancedb.connect(str(self)).open_table(NAME)

    @contextmanager
    def _locked(self, name: str, how: int, create: bool = False) -> Iterator[None]:
        with _reported(self):
            if create:
                Path(str(self)).mkdir(parents=True, exist_ok=True)
            file = Path(str(self), name).open("a")  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, how)
            except BlockingIOError as error:
                raise StoreError(f"{self}: another run holds the {name} lock. Wait for it to finish.") from error
            yield


def _conditions(ids: Sequence[str] | None) -> Iterator[str]:
    quoted = ["'" + id_.replace("'", "''") + "'" for id_ in ids or ()]
    some = (quoted[first : first + AT_ONCE] for first in range(0, len(quoted), AT_ONCE))
    return iter(["TRUE"]) if ids is None else (f"id IN ({', '.join(each)})" for each in some)


def _flush(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):  # for those that are on the disk already it does nothing
        os.fsync(file := os.open(path, os.O_RDONLY))
        os.close(file)


@contextmanager
def _reported(name: object) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(f"{name}: LanceDB says {error}") from error
