"""Stores of other applications, by their targets: those that an audit reads, and those that can be moved."""

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from urllib.parse import urlsplit

from cde_rag._files import user_path
from cde_rag.adoption.movable import Movable
from cde_rag.adoption.move_journal import JOURNALS
from cde_rag.adoption.positions import stored
from cde_rag.adoption.table_columns import USUAL, one_of, text_column
from cde_rag.errors import CDEError, StoreError, require
from cde_rag.indexing.audit import Source, StoredVector
from cde_rag.indexing.stamp_reader import KEY
from cde_rag.indexing.stamping import fingerprint_in
from cde_rag.stores.checks import MOST_ROWS

_FORMS: Final = (
    "qdrant:URL#NAME, qdrant:FOLDER#NAME, chroma:URL#NAME, chroma:FOLDER#NAME, lancedb:FOLDER#NAME, "
    "pgvector:URL#TABLE, langchain-faiss:FOLDER or llamaindex:FOLDER"
)
KINDS: Final = ("qdrant", "chroma", "lancedb", "pgvector", "langchain-faiss", "llamaindex")
_USUAL_NAMES: Final = {"langchain-faiss": "index", "llamaindex": "default"}
_OVERSAMPLED: Final = 8  # points that are drawn for each that is wanted, since some may have no text
_COMPARE_COMMENTS: Final = {"alembic_version": "Alembic", "ar_internal_metadata": "Rails"}  # by their own tables


@contextmanager
def source_of(
    target: str, *, text: str | None = None, vector: str | None = None, seed: int = 0
) -> Generator[Source, None, None]:
    """Open the store named by a target, for the duration of a `with`.

    Args:
        target: `qdrant:http://localhost:6333#papers`, `qdrant:folder#papers` (the client's local mode),
            `chroma:folder#papers`, `chroma:http://localhost:8000#papers`, `lancedb:folder#papers`,
            `pgvector:postgresql://user@host/database#table`, `langchain-faiss:folder` (`#index` by default) or
            `llamaindex:folder` (`#default`).
        text: Location of the text: for Qdrant the payload key, or `langchain` or `llamaindex`; for LanceDB and pgvector
            the column. By default the first of the usual names.
        vector: Name of the vector, or column, if there are several.
        seed: Random seed of the sample; Qdrant and PostgreSQL use their own.

    Raises:
        MissingExtraError: The client of that store is not installed.
        StoreError: There is no such store, it cannot be read, or the target is of another form.
    """
    openers = {
        "qdrant": _qdrant,
        "chroma": _chroma,
        "lancedb": _lancedb,
        "pgvector": _pgvector,
        "langchain-faiss": _langchain_faiss,
        "llamaindex": _llamaindex,
    }
    kind, shown, place, name = _parts(target)
    with openers[kind](shown, place, name, text, vector, Random(seed)) as source:
        yield source


@contextmanager
def movable(
    target: str, *, text: str | None = None, vector: str | None = None, seed: int = 0
) -> Generator[Movable, None, None]:
    """Open a store whose vectors can be replaced, for the duration of a `with`; see `cde_rag.adoption.reembedding`.

    Raises:
        MissingExtraError: The client of that store is not installed.
        StoreError: As for `source_of`; or stores of that kind are not moved.
    """
    with source_of(target, text=text, vector=vector, seed=seed) as source:
        if not isinstance(source, Movable):
            raise StoreError(
                f"{source.target}: expected Chroma, LanceDB, LangChain's FAISS or a folder of LlamaIndex, found "
                "another kind. Its vectors stay: cde_rag.adoption.adopt makes new ones next to them "
                "(docs/migration.md)."
            )
        yield source


def _parts(target: str) -> tuple[str, str, str, str]:
    """Return kind, form for messages, place and name of a target.

    Raises:
        StoreError: It has another form.
    """
    kind, _, rest = target.partition(":")
    place, _, name = rest.rpartition("#")
    if kind in _USUAL_NAMES and "#" not in rest:
        place, name = rest, _USUAL_NAMES[kind]
    if kind not in KINDS or not place or not name:
        raise StoreError(f"Expected a target such as {_FORMS}, found another{f' of {kind}' if kind in KINDS else ''}.")
    secret = kind == "pgvector" or "@" in target
    return kind, f"{kind}:{'…' if secret else place}#{'…' if '@' in name else name}", place, name


class _Target:
    """Common base of the sources.

    Args:
        target: Name given by the user, without a possible password.
        random: Draws the sample.
    """

    def __init__(self, target: str, random: Random) -> None:
        self.target = target
        self._random = random

    def _several(self, vectors: list[str]) -> StoreError:
        return StoreError(
            f"{self.target}: expected one kind of vectors, found {len(vectors)}, and a stamp would not name the one "
            "it belongs to. Such a store gets none."
        )


class _Qdrant(_Target):
    """A collection of Qdrant."""

    def __init__(
        self, target: str, random: Random, client: Any, name: str, text: str | None, vector: str | None
    ) -> None:
        super().__init__(target, random)
        self._client, self._name, self._text = client, name, text
        from cde_rag.stores.qdrant.calls import call

        self._call = call
        if not call(lambda: client.collection_exists(name)):
            raise StoreError(f"{target}: expected a collection, found none of the name {name!r}.")
        params = call(lambda: client.get_collection(name)).config.params.vectors
        names = [""] if not isinstance(params, dict) else sorted(cast(dict[str, Any], params))
        self._names, self._vector = names, one_of(names, vector, f"{target}: vectors")

    def count(self) -> int:
        """Return the number of points."""
        return self._call(lambda: self._client.count(self._name)).count

    def stamp(self) -> str | None:
        """Return the fingerprint in the stamp, or None."""
        return fingerprint_in(self.stamp_text())

    def stamp_text(self) -> str | None:
        """Return the stamp in the collection's metadata; None if there is none, or there are several vectors."""
        from cde_rag.stores.qdrant.contexts import metadata_of

        found = (metadata_of(self._client, self._name) or {}).get(KEY)
        return None if found is None or len(self._names) > 1 else str(found)

    def put_stamp(self, text: str) -> None:
        """Store a stamp in the collection's metadata, next to the application's keys."""
        from cde_rag.stores.qdrant.contexts import concrete

        if len(self._names) > 1:
            raise self._several(self._names)
        name = concrete(self._client, self._name)
        self._call(lambda: self._client.update_collection(name, metadata={KEY: text}))
        if self.stamp_text() != text:
            raise StoreError(f"{self.target}: expected a server that keeps metadata, found an older one.")

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random points that have a text, by Qdrant's own sampling."""
        from qdrant_client import models

        points: list[Any] = self._call(
            lambda: self._client.query_points(
                self._name,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                limit=_OVERSAMPLED * min(count, MOST_ROWS // _OVERSAMPLED),  # some may have no text
                with_payload=True,
                with_vectors=[self._vector] if self._vector else True,
                query_filter=models.Filter(must=[models.HasVectorCondition(has_vector=self._vector)]),
            )
        ).points
        payloads: list[dict[str, Any]] = [point.payload or {} for point in points]
        texts = [_payload_text(payload, self._text) for payload in payloads]
        if points and not any(texts):
            keys = ", ".join(sorted({key for payload in payloads for key in payload}))
            raise StoreError(f"{self.target}: expected texts, found payloads with {keys}. Give --text KEY.")
        vectors: list[Any] = [point.vector if self._vector == "" else point.vector[self._vector] for point in points]
        rows = zip(points, texts, vectors, strict=True)
        return [stored(str(point.id), text, vector) for point, text, vector in rows if text][:count]


class _Pgvector(_Target):
    """A table of PostgreSQL with a column of pgvector."""

    def __init__(
        self, target: str, random: Random, connection: Any, table: str, text: str | None, vector: str | None
    ) -> None:
        super().__init__(target, random)
        from psycopg import sql

        self._sql, self._connection, self._table = sql, connection, sql.Identifier(*table.split("."))
        query = (
            "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
        )
        columns: dict[str, str] = dict(connection.execute(query, (self._table.as_string(connection),)).fetchall())
        if not columns:
            raise StoreError(f"{target}: expected a table, found none of the name {table!r}.")
        self._text = text_column(list(columns), text, target)
        kinds = [name for name, kind in columns.items() if kind in ("vector", "halfvec")]
        self._names, self._vector = kinds, one_of(kinds, vector, f"{target}: columns of vectors")
        self._id = sql.Identifier("id") if "id" in columns else sql.SQL("row_number() OVER ()")

    def count(self) -> int:
        """Return the number of rows with a vector."""
        query = self._sql.SQL("SELECT count({}) FROM {}").format(self._sql.Identifier(self._vector), self._table)
        return int(self._connection.execute(query).fetchone()[0])

    def stamp(self) -> str | None:
        """Return the fingerprint in the stamp, or None."""
        return fingerprint_in(self.stamp_text())

    def stamp_text(self) -> str | None:
        """Return the stamp that is the table's comment; None if there is none, or there are several columns."""
        _, comment = self._commented()
        return comment if len(self._names) == 1 and _is_stamp(comment) else None

    def put_stamp(self, text: str) -> None:
        """Store a stamp as the table's comment, unless the application has one, or its migrations compare comments."""
        if len(self._names) > 1:
            raise self._several(self._names)
        table, comment = self._commented()
        if comment is not None and not _is_stamp(comment):
            raise StoreError(
                f"{self.target}: expected no comment of the table, found {comment!r:.60}, which its application may "
                "read. It stays, and no stamp is written."
            )
        query = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname = ANY(%s)"
        if (tool := self._connection.execute(query, (list(_COMPARE_COMMENTS),)).fetchone()) is not None:
            raise StoreError(
                f"{self.target}: expected no migrations that compare comments, found the table {tool[0]!r} of "
                f"{_COMPARE_COMMENTS[tool[0]]}, whose next one would remove the stamp. None is written."
            )
        self._connection.rollback()
        self._connection.read_only = False
        try:
            with self._connection.transaction():
                self._connection.execute("SET LOCAL lock_timeout = '10s'")
                self._connection.execute(
                    self._sql.SQL("COMMENT ON TABLE {} IS {}").format(table, self._sql.Literal(text))
                )
        finally:
            self._connection.rollback()
            self._connection.read_only = True
            self._connection.execute("SET LOCAL search_path TO DEFAULT")

    def _commented(self) -> tuple[Any, str | None]:
        """Return the table's name with its schema, and its comment."""
        query = (
            "SELECT nspname::text, relname::text, obj_description(c.oid, 'pg_class') FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)"
        )
        found = self._connection.execute(query, (self._table.as_string(self._connection),)).fetchone()
        if found is None:
            raise StoreError(f"{self.target}: expected the table as before, found it gone.")
        return self._sql.Identifier(found[0], found[1]), found[2]

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random rows that have a text and a vector; PostgreSQL reads the complete table for it."""
        text, vector = self._sql.Identifier(self._text), self._sql.Identifier(self._vector)
        query = self._sql.SQL(
            "SELECT ({id})::text, {text}::text, {vector}::text FROM {table} WHERE {text}::text ~ '[^[:space:]]' "
            "AND {vector} IS NOT NULL ORDER BY random() LIMIT %s"
        ).format(id=self._id, table=self._table, text=text, vector=vector)
        return [
            stored(id_, text, json.loads(vector))
            for id_, text, vector in self._connection.execute(query, (min(count, MOST_ROWS),))
        ]


def _is_stamp(comment: str | None) -> bool:
    return comment is not None and comment.startswith("{") and f'"{KEY}"' in comment


@contextmanager
def _qdrant(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Source, None, None]:
    client_of = require("qdrant_client", "qdrant").QdrantClient
    with _as_store_errors(target, OSError, RuntimeError, ValueError):
        where = {"url": place} if "://" in place else {"path": str(_folder(target, place, "meta.json"))}
        client = client_of(**where, check_compatibility=False)
        try:
            yield _Qdrant(target, random, client, name, text, vector)
        finally:
            client.close()


@contextmanager
def _chroma(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Source, None, None]:
    if "chromadb" not in sys.modules:  # what its older versions send, is set when a client is made
        os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
    chromadb = require("chromadb", "chroma")
    from cde_rag.adoption.chroma_collection import ChromaCollection

    _no_choice(target, "Chroma", text=text, vector=vector)
    errors = (chromadb.errors.ChromaError, OSError, RuntimeError, ValueError)
    with _as_store_errors(target, *errors):
        if "://" in place:
            client, home = _chroma_server(chromadb, target, place), Path(f"{name}{JOURNALS}")
        else:
            folder = _folder(target, place, "chroma.sqlite3")
            client, home = chromadb.PersistentClient(path=str(folder)), _journal(folder, name)
        client.get_collection(name, embedding_function=None)
        yield ChromaCollection(target, client, name, home, random)


def _chroma_server(chromadb: Any, target: str, place: str) -> Any:
    address = urlsplit(place)
    rest = address.username or address.path.strip("/") or address.query
    if address.scheme not in ("http", "https") or not address.hostname or rest:  # which the client would leave out
        raise StoreError(f"{target}: expected an address such as http://localhost:8000, found another.")
    ssl = address.scheme == "https"
    return chromadb.HttpClient(host=address.hostname, port=address.port or (443 if ssl else 8000), ssl=ssl)


@contextmanager
def _langchain_faiss(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Source, None, None]:
    from cde_rag.adoption.langchain_faiss import LangChainFaiss

    _no_choice(target, "LangChain's FAISS", text=text, vector=vector)
    folder = _folder(target, place, f"{name}.faiss")
    yield LangChainFaiss(target, folder, name, _journal(folder, name), random)


@contextmanager
def _llamaindex(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Source, None, None]:
    from cde_rag.adoption.llamaindex_folder import LlamaIndexFolder

    _no_choice(target, "LlamaIndex", text=text, vector=vector)
    folder = _folder(target, place, f"{name}__vector_store.json")
    yield LlamaIndexFolder(target, folder, name, _journal(folder, name), random)


def _journal(folder: Path, name: str) -> Path:
    """Return the folder of a move's journal next to a store."""
    folder = folder.resolve()
    return folder.with_name(f"{folder.name}{JOURNALS}") / name


@contextmanager
def _lancedb(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Source, None, None]:
    from cde_rag.adoption.lance_table import LanceTable

    folder = _folder(target, place, f"{name}.lance")
    with _as_store_errors(target, OSError, RuntimeError, ValueError):
        source = LanceTable(target, folder, name, text, vector, _journal(folder, name), random)
        source.count()
        yield source


@contextmanager
def _pgvector(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Source, None, None]:
    psycopg = require("psycopg", "postgres")
    try:
        asked = psycopg.conninfo.conninfo_to_dict(place)
    except psycopg.ProgrammingError as error:  # whose text repeats parts of the address, be they a password
        raise StoreError(
            f"{target}: expected an address such as postgresql://user@host/database, found another."
        ) from error
    with _as_store_errors(target, psycopg.Error), psycopg.connect(**asked) as connection:
        connection.read_only = True
        connection.execute("SET LOCAL search_path TO DEFAULT")  # not another client's, behind a transaction pooler
        yield _Pgvector(target, random, connection, name, text, vector)


@contextmanager
def _as_store_errors(target: str, *errors: type[Exception]) -> Generator[None, None, None]:
    """Convert a client's errors to StoreError."""
    try:
        yield
    except CDEError:
        raise
    except errors as error:
        raise StoreError(f"{target}: not readable. {type(error).__name__}: {error!s:.200}") from error


def _folder(target: str, place: str, expected: str) -> Path:
    """Return the folder of a database.

    It must contain the expected entry, since a client would create a database in any folder.
    """
    if "\0" not in place and ((folder := user_path(place)) / expected).exists():
        return folder
    raise StoreError(f"{target}: expected a folder with {expected}, found none at {place!r}.")


def _no_choice(target: str, whose: str, **given: str | None) -> None:
    for option, value in given.items():
        if value is not None:
            raise StoreError(f"{target}: {whose} has one text and one vector for each id; leave --{option} out.")


def _payload_text(payload: Mapping[str, Any], text: str | None) -> str | None:
    """Return the text in a Qdrant payload.

    By default in the schema of LlamaIndex, LangChain, this library or under a usual key.
    """
    from cde_rag.adoption.payload_schemas import reading

    for dialect in ("llamaindex", "langchain", *USUAL) if text is None else (text,):
        if (record := reading(dialect)(payload)) is not None:
            return record.text
    return None
