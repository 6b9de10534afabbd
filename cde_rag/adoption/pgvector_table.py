"""Records of a table with pgvector that another application keeps: that of LangChain, LlamaIndex, or any other.

The table is only read, so that its application goes on as before. A second run adds what was written since:

    papers = Collection.create("postgresql://me@localhost/app/papers", embedder)
    papers.add_records(table_records("postgresql://me@localhost/app", "data_papers", LLAMA_INDEX))
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import StoreError, require
from cde_rag.records import Record

_PAGE: Final = 1000


class TableColumns(NamedTuple):
    """Columns of a table of texts.

    Attributes:
        id: Column of ids; anything that PostgreSQL prints alike for equal values.
        text: Column of texts; rows without one are passed over.
        metadata: Column of JSON objects, or None.
    """

    id: str
    text: str
    metadata: str | None = None


LANGCHAIN: Final = TableColumns("id", "document", "cmetadata")  # langchain_pg_embedding, of class PGVector
LANGCHAIN_V2: Final = TableColumns("langchain_id", "content", "langchain_metadata")  # of class PGVectorStore
LLAMA_INDEX: Final = TableColumns("node_id", "text", "metadata_")  # data_<name>


def table_records(dsn: str, table: str, columns: TableColumns, *, collection: str | None = None) -> Iterator[Record]:
    """Yield the rows of a table as records, as of one instant.

    Args:
        dsn: Address of the database for libpq, such as `postgresql://user@host/database`.
        table: Name of the table, `schema.table` if it is not on the search path.
        columns: `LANGCHAIN`, `LANGCHAIN_V2`, `LLAMA_INDEX`, or those of another table.
        collection: Name of the collection in `langchain_pg_collection`, for a table that holds several.

    Raises:
        MissingExtraError: psycopg is not installed.
        StoreError: No connection, or no such table, columns or collection.
    """
    for id_, text, metadata, _ in _rows(dsn, table, columns, None, collection):
        yield Record(id_, text, metadata=_object(metadata))


def table_vectors(
    dsn: str, table: str, columns: TableColumns, *, vector: str = "embedding", collection: str | None = None
) -> Iterator[tuple[Record, Float32[np.ndarray, " dim"]]]:
    """Yield the rows of a table as records with their own vectors; rows without one are passed over.

    `ContextualEmbedder.keep` takes them, so that context by arithmetic needs no model for these texts.

    Args:
        dsn: As in `table_records`, like the others.
        table: Name of the table.
        columns: Its columns.
        vector: Column of vectors, of type `vector` or `halfvec`.
        collection: Name of the collection.

    Raises:
        MissingExtraError: psycopg is not installed.
        StoreError: As `table_records`.
    """
    for id_, text, metadata, numbers in _rows(dsn, table, columns, vector, collection):
        if numbers is not None:
            yield Record(id_, text, metadata=_object(metadata)), np.array(json.loads(numbers), dtype=np.float32)


def qualified_table(dsn: str, table: str) -> str:
    """Return the name of a table with its schema, which names the same table whatever the search path is later.

    Args:
        dsn: As in `table_records`.
        table: Name of the table, `schema.table` if it is not on the search path.

    Raises:
        MissingExtraError: psycopg is not installed.
        StoreError: No connection, or no such table.
    """
    psycopg: Any = require("psycopg", "postgres")
    try:
        with psycopg.connect(dsn, client_encoding="utf8", prepare_threshold=None) as connection:
            return ".".join(_resolved(connection, table))
    except psycopg.Error as error:
        raise StoreError(f"{table}: expected a table, found: {_message(error)}.") from error


def _resolved(connection: Any, table: str) -> tuple[str, str]:
    """Return the schema and the name of a table, by the role's own search path.

    That of the session may be another client's, behind a transaction pooler.
    """
    sql: Any = require("psycopg", "postgres").sql
    connection.execute("SET LOCAL search_path TO DEFAULT")
    found = connection.execute(
        "SELECT nspname::text, relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        [sql.Identifier(*table.split(".")).as_string(connection)],
    ).fetchone()
    if found is None:
        raise StoreError(
            f"{table}: this table does not exist, or is not on this role's search path. Name it with its schema."
        )
    return found


def _message(error: Any) -> str:
    return str(getattr(error.diag, "message_primary", None) or type(error).__name__)


def _rows(
    dsn: str, table: str, columns: TableColumns, vector: str | None, collection: str | None
) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield id, text, metadata and vector of each row that has a text, as PostgreSQL prints them."""
    psycopg: Any = require("psycopg", "postgres")
    sql = psycopg.sql
    wanted = [sql.Identifier(name) if name else sql.SQL("NULL") for name in (*columns, vector)]
    parameters: list[str] = []
    try:
        with psycopg.connect(dsn, client_encoding="utf8", prepare_threshold=None) as connection:
            connection.read_only = True
            schema, name = _resolved(connection, table)
            statement = sql.SQL("SELECT {}::text, {}::text, {}::text, {}::text FROM {}").format(
                *wanted, sql.Identifier(schema, name)
            )
            if collection is not None:
                collections = sql.Identifier(schema, "langchain_pg_collection")
                condition = " WHERE collection_id = (SELECT uuid FROM {} WHERE name = %s)"
                statement += sql.SQL(condition).format(collections)
                parameters.append(collection)
                names = sql.SQL("SELECT name FROM {} ORDER BY name").format(collections)
                named = connection.execute(names).fetchall()
                if collection not in [name for (name,) in named]:
                    there = ", ".join(repr(name) for (name,) in named[:9]) or "none"
                    raise StoreError(f"{table}: expected the collection {collection!r:.80}, found {there}. Name one.")
            with connection.cursor("records") as cursor:
                cursor.itersize = _PAGE
                for id_, text, metadata, numbers in cursor.execute(statement, parameters):
                    if text:
                        yield id_, text, metadata, numbers
    except psycopg.Error as error:
        raise StoreError(
            f"{table}: expected a table with the columns {', '.join(filter(None, (*columns, vector)))}, found: "
            f"{_message(error)}. Name the columns with TableColumns(id, text, metadata)."
        ) from error


def _object(text: str | None) -> Mapping[str, Any]:
    found: object = json.loads(text) if text else {}
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}
