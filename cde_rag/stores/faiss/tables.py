"""The tables of a store, read and written inside one transaction, with the files that their rows refer to."""

import dataclasses
import hashlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.checks import checksum_of, encodable_ids
from cde_rag.stores.engine import Version
from cde_rag.stores.faiss.manifest import FaissGeneration, FaissManifest
from cde_rag.stores.faiss.vectors import VectorFile, extended
from cde_rag.stores.faiss.words import FtsIndex, decoded
from cde_rag.stores.files import write_new
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import Condition, Dialect, flatten
from cde_rag.stores.text_analysis import analyzer_of

_EVERY: Final = Condition("1", ())
_IDS_AT_ONCE: Final = 500  # in one statement; SQLite allows 999 parameters at least
_COPIED_AT_ONCE: Final = 2**16  # vectors
_SQLITE: Final = Dialect(
    mark="?",
    position="position",
    columns={"text": "value", "number": "value", "boolean": "value", "null": "value", "date": "instant"},
    key=lambda _, key: key,
    contains="instr(value, ?) > 0",
)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Row with the location of its vector.

    Attributes:
        position: Position of the record in the order of insertion.
        row: The record and the digest of its embedded text.
        vector_row: Row in the vector file; None of a record without a vector.
        checksum: Checksum over position, digest and the vector's bytes.
    """

    position: int
    row: Row
    vector_row: int | None
    checksum: bytes


class Records:
    """Tables of a connection in a transaction; `path` is for messages.

    Data that does not match its checksum raises `StoreFormatError`.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @cached_property
    def fts_index(self) -> FtsIndex:
        """The full-text index, with the analyzer of the manifest."""
        return FtsIndex(self._connection, analyzer_of(self.manifest().settings))

    def manifest(self) -> FaissManifest:
        """Read the manifest."""
        found = self._connection.execute("SELECT json, checksum FROM manifest").fetchall()
        if len(found) != 1 or checksum_of(found[0][0]) != found[0][1]:
            raise StoreFormatError(
                f"{self._path}: expected a manifest with its checksum, found another. Restore a copy."
            )
        return FaissManifest.from_json(found[0][0])

    def put_manifest(self, manifest: FaissManifest) -> None:
        """Replace the manifest."""
        data = manifest.to_json()
        self._connection.execute("DELETE FROM manifest")
        self._connection.execute(
            "INSERT INTO manifest (json, checksum) VALUES (?, ?)", (data.decode(), checksum_of(data))
        )

    def index_words(self) -> None:
        """Make the full-text index anew, with the analyzer that the manifest has by now."""
        vars(self).pop("fts_index", None)
        self.fts_index.rebuild()

    def known_positions(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the positions of those ids that records have, by id."""
        known, remaining = dict[str, int](), iter(encodable_ids(ids))
        while part := list(islice(remaining, _IDS_AT_ONCE)):
            marks = ", ".join("?" * len(part))
            statement = f"SELECT id, position FROM records WHERE id IN ({marks})"  # noqa: S608
            known.update((id_.decode(), position) for id_, position in self._connection.execute(statement, part))
        return known

    def positions_of(self, ids: Sequence[str]) -> list[int]:
        """Return the positions of records by their ids.

        Raises:
            KeyError: An id is unknown.
        """
        known = self.known_positions(ids)
        if missing := [id_ for id_ in ids if id_ not in known]:
            raise KeyError(f"Expected ids of stored records, found {len(missing)} others, such as {missing[0]!r:.80}.")
        return [known[id_] for id_ in ids]

    def count(self, where: Filter | None) -> int:
        """Count the matching records."""
        sql, keys = _EVERY if where is None else _SQLITE.condition(where)
        (count,) = self._connection.execute(f"SELECT count(*) FROM records WHERE {sql}", keys).fetchone()  # noqa: S608
        return count

    def positions(self, where: Filter | None, *, after: int, limit: int) -> list[int]:
        """Return the first positions after `after` of matching records."""
        sql, keys = _EVERY if where is None else _SQLITE.condition(where)
        statement = f"SELECT position FROM records WHERE position > ? AND {sql} ORDER BY position LIMIT ?"  # noqa: S608
        return self._integers(statement, (after, *keys, limit)).tolist()

    def matching(self, query: str, k: int, where: Filter | None) -> list[tuple[int, float]]:
        """Return positions and BM25 scores of the k records that match some of a query's terms best."""
        return self.fts_index.best(query, k, _EVERY if where is None else _SQLITE.condition(where))

    def last_position(self) -> int:
        """Return the highest position of a record; 0 if there is none."""
        ((position,),) = self._connection.execute("SELECT coalesce(max(position), 0) FROM records")
        return position

    def lacking(self, generation: int, *, limit: int, after: int = 0) -> list[int]:
        """Return the first positions after `after` of records without a vector in the generation."""
        statement = """SELECT position FROM records WHERE position > ? AND NOT EXISTS
            (SELECT 1 FROM vectors WHERE generation = ? AND vectors.position = records.position)
            ORDER BY position LIMIT ?"""
        return self._integers(statement, (after, generation, limit)).tolist()

    def versions(self, generation: int, ids: Sequence[str]) -> dict[str, Version]:
        """Return the positions of those ids that exist, and their digests in the generation, by id."""
        positions = self.known_positions(ids)
        found = self._connection.execute(
            """SELECT position, digest FROM vectors
            WHERE generation = ? AND position IN (SELECT value FROM json_each(?))""",
            (generation, json.dumps(list(positions.values()))),
        )
        digests = {position: digest.decode() for position, digest in found}
        return {id_: Version(position, digests.get(position, "")) for id_, position in positions.items()}

    def vector_rows(self, generation: int, where: Filter) -> Int64[np.ndarray, "rows"]:
        """Return the rows of the vector file whose records match, ascending."""
        sql, keys = _SQLITE.condition(where)
        statement = f"SELECT row FROM vectors WHERE generation = ? AND {sql}"  # noqa: S608
        return np.sort(self._integers(statement, (generation, *keys)))

    def dead_rows(self, generation: int) -> Int64[np.ndarray, "rows"]:
        """Return the rows of the vector file that no longer belong to a record, ascending."""
        return self._integers("SELECT row FROM dead WHERE generation = ? ORDER BY row", (generation,))

    def checksums(self, generation: int) -> Int64[np.ndarray, "blocks"]:
        """Return the CRC-32 of the vector file's blocks."""
        return self._integers("SELECT checksum FROM blocks WHERE generation = ? ORDER BY block", (generation,))

    def positions_of_rows(self, generation: int, rows: Int64[np.ndarray, "rows"]) -> Int64[np.ndarray, "rows"]:
        """Return the positions of the records of rows in the vector file; `rows` ascending."""
        positions = self._integers(
            """SELECT position FROM vectors
            WHERE generation = ? AND row IN (SELECT value FROM json_each(?)) ORDER BY row""",
            (generation, json.dumps(rows.tolist())),
        )
        if len(positions) != len(rows):
            raise self._damaged(f"the records of {len(rows)} vectors, found {len(positions)}")
        return positions

    def stored(self, generation: int, positions: Sequence[int], *, may_wait: bool) -> list[StoredRecord]:
        """Return the records at these positions, in this order; `may_wait` allows some without a vector there."""
        found = self._connection.execute(
            """SELECT records.position, id, title, metadata, text, records.checksum, row, digest, vectors.checksum
            FROM records LEFT JOIN vectors ON vectors.position = records.position AND generation = ?
            WHERE records.position IN (SELECT value FROM json_each(?))""",
            (generation, json.dumps(list(positions))),
        )
        stored = {line[0]: self._checked(line) for line in found}
        missing = set(positions) - {place for place, one in stored.items() if may_wait or one.vector_row is not None}
        if missing:
            raise self._damaged(f"a record and its vector at position {min(missing)}, found none")
        return [stored[position] for position in positions]

    def put(self, records: Sequence[tuple[Record, str]]) -> list[int]:
        """Upsert records, one for each id, with their metadata in JSON; return their positions."""
        known, following = self.known_positions(record.id for record, _ in records), count(self.last_position() + 1)
        positions = [known[record.id] if record.id in known else next(following) for record, _ in records]
        placed = [(position, *both) for position, both in zip(positions, records, strict=True)]
        self._put_words(list(known.values()), {position: record for position, record, _ in placed})
        self._delete_fields(known.values())
        self._connection.executemany(
            """INSERT OR REPLACE INTO records (position, id, checksum, title, metadata, text)
            VALUES (?, ?, ?, ?, ?, ?)""",
            (
                (
                    position,
                    one.id,
                    checksum_of(position, one.id, one.title, metadata, one.text),
                    one.title,
                    metadata,
                    one.text,
                )
                for position, one, metadata in placed
            ),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO fields (path, kind, value, position, instant) VALUES (?, ?, ?, ?, ?)",
            (
                (*element[:3], position, element.instant)
                for position, _, metadata in placed
                for element in flatten(json.loads(metadata))
            ),
        )
        return positions

    def remove(self, positions: Sequence[int]) -> None:
        """Delete records whose vectors are deleted."""
        self._put_words(positions, {})
        self._delete_fields(positions)
        self._connection.executemany("DELETE FROM records WHERE position = ?", ((place,) for place in positions))

    def _put_words(self, known: Sequence[int], new: Mapping[int, Record]) -> None:
        """Replace the terms of the stored records at the known positions by those of the new records."""
        if self.fts_index.exists():
            found = self._connection.execute(
                "SELECT position, title, text FROM records WHERE position IN (SELECT value FROM json_each(?))",
                (json.dumps(known),),
            )
            old = {place: Record("", decoded(text), decoded(title)) for place, title, text in found}
            self.fts_index.replace(old, new)

    def _delete_fields(self, positions: Iterable[int]) -> None:
        self._connection.executemany("DELETE FROM fields WHERE position = ?", ((place,) for place in positions))

    def mark_deleted(self, generation: int, vectors: Sequence[tuple[int, str | None]]) -> int:
        """Mark vectors of a generation as deleted (tombstones); return the number marked.

        Args:
            generation: Number of the generation.
            vectors: Positions of records, each with the digest of the vector that stays, or None if none does.
        """
        which = [(generation, *vector) for vector in vectors]
        self._connection.executemany(
            """INSERT INTO dead (generation, row) SELECT generation, row FROM vectors
            WHERE generation = ? AND position = ? AND digest IS NOT ?""",
            which,
        )
        gone = "DELETE FROM vectors WHERE generation = ? AND position = ? AND digest IS NOT ?"
        return self._connection.executemany(gone, which).rowcount

    def put_vectors(self, generation: int, vectors: Iterable[tuple[int, int, str, bytes]]) -> None:
        """Note vectors as (position, row, digest, checksum); the positions have none in the generation."""
        lines = ((generation, *vector) for vector in vectors)
        statement = "INSERT INTO vectors (generation, position, row, digest, checksum) VALUES (?, ?, ?, ?, ?)"
        self._connection.executemany(statement, lines)

    def put_checksums(self, generation: int, checksums: Iterable[tuple[int, int]]) -> None:
        """Note blocks as (block, checksum), new ones and those that grew."""
        lines = ((generation, *block) for block in checksums)
        self._connection.executemany(
            "INSERT OR REPLACE INTO blocks (generation, block, checksum) VALUES (?, ?, ?)", lines
        )

    def renumber(self, generation: int, kept: Int64[np.ndarray, "kept"]) -> None:
        """Note that the vector file has only these rows now, in this order, and no checksums yet."""
        lines = ((row, generation, was) for row, was in enumerate(kept.tolist()))
        self._connection.executemany("UPDATE vectors SET row = ? WHERE generation = ? AND row = ?", lines)
        self._connection.execute("DELETE FROM dead WHERE generation = ?", (generation,))
        self._connection.execute("DELETE FROM blocks WHERE generation = ?", (generation,))

    def forget(self, generation: int) -> None:
        """Remove all that is noted of a generation's vectors."""
        for table in ("vectors", "dead", "blocks"):
            self._connection.execute(f"DELETE FROM {table} WHERE generation = ?", (generation,))  # noqa: S608

    def _integers(self, statement: str, keys: Sequence[object]) -> Int64[np.ndarray, "found"]:
        found = self._connection.execute(statement, cast(Any, keys))
        try:
            return np.fromiter((value for (value,) in found), np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._damaged(f"integers, found {error}") from error

    def _checked(self, line: tuple[Any, ...]) -> StoredRecord:
        position, id_, title, metadata, text, checksum, vector_row, digest, vector_checksum = line
        if (vector_row, digest, vector_checksum) == (None, None, None):
            digest = vector_checksum = b""
        parts = (id_, title, metadata, text, digest, vector_checksum)
        sound = isinstance(vector_row, int | None) and all(isinstance(part, bytes) for part in parts)
        if not sound or checksum_of(position, id_, title, metadata, text) != checksum:
            raise self._damaged(f"record {id_!r:.80} with its checksum, found another")
        record = Record(id_.decode(), text.decode(), title.decode(), json.loads(metadata))
        return StoredRecord(position, Row(record, digest.decode(errors="replace")), vector_row, vector_checksum)

    def _damaged(self, what: str) -> StoreFormatError:
        return StoreFormatError(f"{self._path}: expected {what}. Restore a copy.")


class Transaction:
    """Write transaction. `manifest` is the store's manifest after the commit.

    Vectors are on the disk before the commit that refers to them; data that a rollback leaves in a file is ignored.

    Args:
        records: The tables.
        folder: Folder of the store.
        check: Raises if another store replaced this one.
    """

    def __init__(self, records: Records, folder: Path, check: Callable[[], None]) -> None:
        self.records = records
        self.folder = folder
        self._check = check
        self.manifest = records.manifest()

    def put_vectors(
        self,
        number: int,
        positions: Sequence[int],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> None:
        """Give records their vectors in a generation, in place of those that they have there."""
        self.mark_deleted(number, [(position, None) for position in positions])
        state = self.manifest.generation(number)
        checksums = (
            checksum_of(position, digest, vector.tobytes())
            for position, digest, vector in zip(positions, digests, vectors, strict=True)
        )
        lines = zip(positions, range(state.rows, state.rows + len(vectors)), digests, checksums, strict=True)
        self.records.put_vectors(number, lines)
        self.manifest = self.manifest.put(self._appended(state, vectors))

    def mark_deleted(self, number: int, vectors: Sequence[tuple[int, str | None]]) -> None:
        """Mark vectors of a generation as deleted; `vectors` as in `Records.mark_deleted`."""
        deleted = self.records.mark_deleted(number, vectors)
        if deleted:
            state = self.manifest.generation(number)
            state = dataclasses.replace(state, dead=state.dead + deleted, deleted=secrets.token_hex(8))
            self.manifest = self.manifest.put(state)

    def rewrite(self, state: FaissGeneration) -> None:
        """Copy the vectors that belong to records into a new file; readers in progress still see the old one."""
        old = VectorFile(self.folder / state.vectors, self.manifest.dim)
        vectors = old.read(state.rows, self.records.checksums(state.number))
        kept = np.delete(np.arange(state.rows), self.records.dead_rows(state.number))
        self.records.renumber(state.number, kept)
        name = f"vectors-{state.number}-{secrets.token_hex(4)}"
        state = dataclasses.replace(state, vectors=name, rows=0, dead=0, index=None)
        for start in range(0, len(kept), _COPIED_AT_ONCE):
            state = self._appended(state, vectors.take(kept[start : start + _COPIED_AT_ONCE]))
        self.manifest = self.manifest.put(state)

    def _appended(self, state: FaissGeneration, vectors: Float32[np.ndarray, "rows dim"]) -> FaissGeneration:
        checksums = self.records.checksums(state.number)
        file = VectorFile(self.folder / state.vectors, self.manifest.dim)
        file.append(vectors, rows=state.rows, check=self._check)
        grown = extended(vectors, rows=state.rows, last=int(checksums[-1]) if len(checksums) else 0)
        self.records.put_checksums(state.number, grown)
        return dataclasses.replace(state, rows=state.rows + len(vectors), appended=secrets.token_hex(8))


def new_generation(folder: Path, number: int, fingerprint: str, context: bytes) -> FaissGeneration:
    """Return a new generation without vectors, whose Context is on the disk."""
    name = f"{number}-{secrets.token_hex(4)}"  # no other store's files have these names
    sha256 = hashlib.sha256(context).hexdigest()
    state = FaissGeneration(number, fingerprint, sha256, f"vectors-{name}", context_name=f"context-{name}")
    write_new(folder / state.context, context)
    return state
