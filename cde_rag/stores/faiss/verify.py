"""Reading everything in a store and comparing it with its checksums."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cde_rag._files import file_sha256, read_file
from cde_rag.errors import StoreFormatError
from cde_rag.stores.base import Damage
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.faiss.database import Database
from cde_rag.stores.faiss.folder import MARKER
from cde_rag.stores.faiss.manifest import FaissGeneration
from cde_rag.stores.faiss.tables import Records
from cde_rag.stores.faiss.vectors import BLOCK_ROWS, VectorBlocks, VectorFile
from cde_rag.stores.filter_sql import flatten
from cde_rag.stores.manifests import PENDING

# Each counts what must not be there.
_STRAYS: Final = {
    "vectors of no record": "SELECT count(*) FROM vectors WHERE position NOT IN (SELECT position FROM records)",
    "filter fields of no record": "SELECT count(*) FROM fields WHERE position NOT IN (SELECT position FROM records)",
    "vectors both dead and alive": "SELECT count(*) FROM vectors JOIN dead USING (generation, row)",
}


def find_damage(database: Database, folder: Path) -> list[Damage]:
    """Read the complete store and return everything that does not match its checksum.

    Raises:
        StoreError: There is no store, or it cannot be opened.
    """
    return list(_damage(database, folder))


def _damage(database: Database, folder: Path) -> Iterator[Damage]:
    where = database.path.name
    try:
        with database.reading() as connection:
            records = Records(connection, database.path)
            for (found,) in connection.execute("PRAGMA integrity_check"):
                if found != b"ok":
                    yield Damage(where, f"Expected sound tables, found: {found.decode(errors='replace')}.")
            manifest = records.manifest()
            yield from _marker(folder / MARKER, manifest.marker)
            for stray, statement in _STRAYS.items():
                (count,) = connection.execute(statement).fetchone()
                if count:
                    yield Damage(where, f"Expected no {stray}, found {count}.")
            yield from _records(connection, where)
            yield from records.fts_index.damage(where)
            for state in manifest.generations:
                yield from _file(folder / state.context, state.context_sha256)
                if state.index is not None:
                    yield from _file(folder / state.index.name, state.index.sha256)
                yield from _vectors(connection, records, state, folder, manifest.dim)
            serving = manifest.serving
            waiting = records.count(None) - (serving.rows - serving.dead)
            if waiting < 0 or (waiting and PENDING not in manifest.settings):
                count = serving.rows - serving.dead
                yield Damage(where, f"Expected a vector for each of {records.count(None)} records, found {count}.")
    except StoreFormatError as error:
        yield Damage(where, str(error))


def _records(connection: sqlite3.Connection, where: str) -> Iterator[Damage]:
    for line in connection.execute("SELECT position, checksum, id, title, metadata, text FROM records"):
        position, checksum, id_, title, metadata, text = line
        if (
            not all(isinstance(part, bytes) for part in line[1:])
            or checksum_of(position, id_, title, metadata, text) != checksum
        ):
            yield Damage(f"{where}, record {id_!r:.80}", "Expected a record with its checksum, found another.")
            continue
        statement = "SELECT path, kind, value, instant FROM fields WHERE position = ?"
        found = set(connection.execute(statement, (position,)))
        if found != {tuple(map(_stored, element)) for element in flatten(json.loads(metadata))}:
            yield Damage(f"{where}, record {id_!r:.80}", "Expected filter fields as its metadata says, found others.")


def _stored(value: object) -> object:
    """Convert a value to the type that our connections return."""
    return value.encode() if isinstance(value, str) else value


def _marker(path: Path, expected: str | None) -> Iterator[Damage]:
    if expected is None:  # only older versions have written the store
        return
    found = read_file(path).decode("ascii", errors="replace") if path.exists() else None
    if found != expected:
        yield Damage(path.name, f"Expected {expected}, the id in the manifest, found {found}: files of two stores?")


def _unreadable(name: str, error: Exception) -> Damage:
    if isinstance(error, FileNotFoundError):
        return Damage(name, "Expected this file, found none. Restore a copy.")
    return Damage(name, f"Expected to read it, found: {error}.")


def _file(path: Path, sha256: str) -> Iterator[Damage]:
    try:
        found = file_sha256(path)
    except OSError as error:
        yield _unreadable(path.name, error)
        return
    if found != sha256:
        yield Damage(path.name, f"Expected sha256 {sha256[:16]}…, found {found[:16]}….")


def _vectors(
    connection: sqlite3.Connection, records: Records, state: FaissGeneration, folder: Path, dim: int
) -> Iterator[Damage]:
    count, dead = (
        connection.execute(statement, (state.number, state.rows)).fetchone()[0]
        for statement in (
            "SELECT count(*) FROM vectors WHERE generation = ? AND row >= 0 AND row < ?",
            "SELECT count(*) FROM dead WHERE generation = ? AND row >= 0 AND row < ?",
        )
    )
    if (count, dead) != (state.rows - state.dead, state.dead):
        wanted = f"{state.rows - state.dead} vectors and {state.dead} dead ones"
        yield Damage(f"generation {state.number}", f"Expected {wanted}, found {count} and {dead}.")
    try:
        vectors = VectorFile(folder / state.vectors, dim).read(state.rows, records.checksums(state.number))
    except (OSError, StoreFormatError) as error:
        yield _unreadable(state.vectors, error)
        return
    for block in range(vectors.blocks):
        yield from _block(connection, state, vectors, block)


def _block(
    connection: sqlite3.Connection, state: FaissGeneration, vectors: VectorBlocks, number: int
) -> Iterator[Damage]:
    try:
        block = vectors.block(number)
    except StoreFormatError as error:
        yield Damage(state.vectors, str(error))
        return
    first = number * BLOCK_ROWS
    lines = connection.execute(
        "SELECT position, row, digest, checksum FROM vectors WHERE generation = ? AND row >= ? AND row < ?",
        (state.number, first, first + len(block)),
    )
    for position, row, digest, checksum in lines:
        if not isinstance(digest, bytes) or checksum_of(position, digest, block[row - first].tobytes()) != checksum:
            found = f"Expected the vector and digest of the record at position {position}, found others."
            yield Damage(f"{state.vectors}, row {row}", found)
