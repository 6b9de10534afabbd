"""Tables of PostgreSQL with a column of pgvector, read and moved to another model.

The new vectors are made in a twin of the table, of the same name, in a schema next to the application's. A switch is
one transaction that moves both tables to each other's schema: names of indexes, constraints and sequences stay, queries
wait for some milliseconds, and there is no instant without a table. Long because the port `Movable` has twenty calls.

    app_cde_new.papers    new vectors, before the switch and after a rollback
    app_cde_old.papers    old vectors, after the switch
"""

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.adoption.application_lines import ANY, LLAMA_INDEX, model_line
from cde_rag.adoption.llamaindex_nodes import embedded_text
from cde_rag.adoption.movable import PAGE, SourceFacts, SourceHeldError, SourceRow
from cde_rag.adoption.positions import stored
from cde_rag.adoption.table_columns import check_choice, filterable, one_of, text_column
from cde_rag.adoption.table_twins import Column, Relation, TableTwins
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError, require
from cde_rag.indexing.audit import StoredVector
from cde_rag.indexing.stamp_reader import KEY
from cde_rag.indexing.stamping import fingerprint_in, stamp_of
from cde_rag.records import Record
from cde_rag.stores.checks import MOST_ROWS

_NEW, _OLD = "_cde_new", "_cde_old"  # ends of the names of our schemas
_NAME_BYTES: Final = 63  # of a name in PostgreSQL
_COMPARE_COMMENTS: Final = {"alembic_version": "Alembic", "ar_internal_metadata": "Rails"}  # by their own tables
_INDEXED: Final = {"vector": 2000, "halfvec": 4000}  # numbers at most in an index of pgvector
_TRIES: Final = 40  # to get a lock in half a second, in which the application's own queries wait, too
_BETWEEN_S: Final = 0.25
_FIRST_PAGE: Final = (
    "SELECT {id}, {text}::text, {node}::text, {digest}, {parts} FROM {table} t ORDER BY {order} LIMIT %s"
)
_PAGE_AFTER: Final = (
    "SELECT {id}, {text}::text, {node}::text, {digest}, {parts} FROM {table} t WHERE ({order}) > ({last}) "
    "ORDER BY {order} LIMIT %s"
)
_LOCK_TIMEOUT: Final = "500ms"  # below PostgreSQL's deadlock_timeout, so that this side gives up, not the application


class PgvectorSource:
    """A table of PostgreSQL with a column of pgvector.

    Args:
        target: Name given by the user, without a possible password.
        connection: Connection of psycopg, which commits by itself.
        table: Name of the table, after that of its schema if it is not on the search path.
        text: Column of the text; by default the first of the usual names.
        vector: Column of the vectors; by default the only one.
        home: Folder of a move's journal.
    """

    written_by_old_handles = True  # not by them; but rows of one table can be brought to the other

    def __init__(
        self, target: str, connection: Any, table: Sequence[str], text: str | None, vector: str | None, home: Path
    ) -> None:
        self._sql: Any = require("psycopg", "postgres").sql
        self.target, self._connection, self._table, self.home = target, connection, tuple(table), home
        self._twins = TableTwins(connection)
        with self._reading():
            live = self._live()
            self._columns, key = self._twins.columns(live), self._twins.key(live)
        names = [column.name for column in self._columns]
        self._text = text_column(names, text, target)
        self._names = [column.name for column in self._columns if column.kind in _INDEXED]
        self._vector = one_of(self._names, vector, f"{target}: columns of vectors")
        self._keys = [column for name in key for column in self._columns if column.name == name]
        self._node = "metadata_" if "metadata_" in names else None  # of LlamaIndex, whose texts need it

    def count(self) -> int:
        """Return the number of rows with a vector."""
        with self._reading():
            return int(self._rows_of("SELECT count({vector}) FROM {table} t", self._live())[0][0])

    def stamp(self) -> str | None:
        """Return the fingerprint in the stamp, or None."""
        return fingerprint_in(self.stamp_text())

    def stamp_text(self) -> str | None:
        """Return the stamp that is the table's comment; None if there is none, or there are several columns."""
        with self._reading():
            comment = self._twins.comment(self._live())
        return comment if len(self._names) == 1 and _is_stamp(comment) else None

    def put_stamp(self, text: str) -> None:
        """Store a stamp as the table's comment, unless the application has one, or its migrations compare comments."""
        if len(self._names) > 1:
            raise StoreError(
                f"{self.target}: expected one kind of vectors, found {len(self._names)}, and a stamp would not name "
                "the one it belongs to. Such a store gets none."
            )
        with self._writing():
            live = self._live()
            comment = self._twins.comment(live)
            if comment is not None and not _is_stamp(comment):
                raise StoreError(
                    f"{self.target}: expected no comment of the table, found {comment!r:.60}, which its application "
                    "may read. It stays, and no stamp is written."
                )
            query = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname = ANY(%s)"
            if (tool := self._connection.execute(query, (list(_COMPARE_COMMENTS),)).fetchone()) is not None:
                raise StoreError(
                    f"{self.target}: expected no migrations that compare comments, found the table {tool[0]!r} of "
                    f"{_COMPARE_COMMENTS[tool[0]]}, whose next one would remove the stamp. None is written."
                )
            self._connection.execute("SET LOCAL lock_timeout = '10s'")
            self._twins.put_comment(live, text)

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random rows that have a text and a vector; PostgreSQL reads the complete table for it."""
        query = (
            "SELECT {id}, {text}::text, {node}::text, {vector}::text FROM {table} t "
            "WHERE {text}::text ~ '[^[:space:]]' AND {vector} IS NOT NULL ORDER BY random() LIMIT %s"
        )
        with self._reading():
            found = self._rows_of(query, self._live(), min(count, MOST_ROWS))
        rows = [(id_, self._embedded(text, node), vector) for id_, text, node, vector in found]
        return [stored(id_, text, json.loads(vector)) for id_, text, vector in rows if text is not None]

    def found(self) -> SourceFacts:
        """Return the vectors' length, and the distance of their index."""
        with self._reading():
            live, length = self._live(), self._column.length
            query = "SELECT vector_dims({vector}) FROM {table} t WHERE {vector} IS NOT NULL LIMIT 1"
            dims = [[length]] if length > 0 else self._rows_of(query, live)
            kinds = self._twins.operators(live, self._vector)
        return SourceFacts(dims[0][0] if dims else 0, kinds[0].split("_")[1] if kinds else "of each query", None)

    def check(self, embedder: Embedder) -> None:
        """Refuse tables without a key, and those of which a twin would not have everything.

        Raises:
            StoreError: See above; or pgvector cannot index vectors of that length.
        """
        self._check_key()
        with self._reading():
            live = self._live()
            obstacle = self._twins.obstacle(live, self._vector)
            kinds = self._twins.operators(live, self._vector)
        if obstacle is not None:
            raise StoreError(
                f"{self.target}: expected a table that another one can take the place of, found {obstacle}. Remove "
                "that, move the table, and make it again; or copy the texts (docs/migration.md)."
            )
        most = _INDEXED[self._column.kind]
        if kinds and embedder.dim > most:
            raise StoreError(
                f"{self.target}: expected at most {most} numbers, which an index of {self._column.kind} can have, "
                f"found {embedder.dim}. Drop the index, or take a model of shorter vectors."
            )

    def version(self) -> str:
        """Return an empty text: PostgreSQL counts no writes of a table."""
        return ""

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the rows of the old or the new table by their key, each page in a transaction of its own."""
        self._check_key()
        if notes:
            with self._reading():
                self._check_shape(self._side(notes, old=True), self._side(notes, old=False))
        last: list[str] = []
        while True:
            with self._reading():
                query = _PAGE_AFTER if last else _FIRST_PAGE
                found = self._rows_of(query, self._side(notes, old=old), *last, PAGE)
            if found:
                yield [self._row(row) for row in found]
            if len(found) < PAGE:
                return
            last = list(found[-1][4])

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the rows that have a text and a vector, as of one instant, with those values that filters can read."""
        query = (
            "SELECT {id}, {text}::text, {node}::text, {vector}::text, to_jsonb(t) FROM {table} t "
            "WHERE {vector} IS NOT NULL"
        )
        with self._reading(), self._connection.cursor("passages") as cursor:
            cursor.execute(self._composed(query, self._live()))
            while found := cursor.fetchmany(PAGE):
                left_out, page = (self._text, *self._names), list[tuple[Record, Float32[np.ndarray, " dim"]]]()
                for id_, text, node, vector, values in found:
                    if (embedded := self._embedded(text, node)) is not None:
                        record = Record(id_, text if own else embedded, metadata=filterable(values, left_out))
                        page.append((record, np.array(json.loads(vector), np.float32)))
                yield page

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make the new table, without rows and indexes.

        Raises:
            StoreError: There is a table in its place which no move has begun.
        """
        del folder
        with self._writing():
            live = self._live()
            schema = _schema_name(live.schema, _NEW)
            self._twins.run("CREATE SCHEMA IF NOT EXISTS {}", self._sql.Identifier(schema))
            if (there := self._twins.at(schema, live.name)) is not None:
                if self._rows_of("SELECT FROM {table} LIMIT 1", there):
                    raise StoreError(
                        f"{self.target}: expected no table {live.name!r} in the schema {schema!r}, found one of a move "
                        "whose journal is elsewhere. Name that journal, or drop the table."
                    )
                self._twins.run("DROP TABLE {}", self._twins.named(there))  # of a call that was interrupted
            new = self._twins.create(live, schema, self._column, embedder.dim)
            if _is_stamp(self._twins.comment(new)):
                self._twins.put_comment(new, stamp_of(embedder))
        chosen = {"text": self._text, "vector": self._vector}
        return {"old": str(live.oid), "new": str(new.oid), "schema": live.schema, "table": live.name, **chosen}

    def lacking(self, notes: Mapping[str, str], rows: Sequence[SourceRow], *, old: bool) -> list[SourceRow]:
        """Return the rows that the new table (or the old one) lacks."""
        query = "SELECT {id} FROM {table} t JOIN {given} ON {same}"
        with self._reading():
            found = self._rows_of(query, self._side(notes, old=old), *self._arrays([row.id for row in rows]))
        there = {id_ for (id_,) in found}
        return [row for row in rows if row.id not in there]

    def get(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> list[SourceRow]:
        """Return rows by key."""
        query = "SELECT {id}, {text}::text, {node}::text, {digest} FROM {table} t JOIN {given} ON {same}"
        with self._reading():
            found = self._rows_of(query, self._side(notes, old=old), *self._arrays(ids))
        return [self._row(row) for row in found]

    def put(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        vectors: Float32[np.ndarray, "rows dim"],
        *,
        old: bool,
    ) -> None:
        """Copy rows from the other table, in the database, with these vectors; where there is none, there is none.

        A row that is there is updated: its deletion would set off triggers of the application, and end its own updates.
        """
        made = {row.id: json.dumps(vector.tolist()) for row, vector in zip(rows, vectors, strict=True)}
        with self._writing():
            target, source = self._side(notes, old=old), self._side(notes, old=not old)
            query = "SELECT {id} FROM {table} t JOIN {given} ON {same}"
            there = {id_ for (id_,) in self._rows_of(query, target, *self._arrays(list(made)))}
            for write, some in ((self._inserted, made.keys() - there), (self._updated, there)):
                if ids := [id_ for id_ in made if id_ in some]:
                    self._connection.execute(write(target, source), [*self._arrays(ids), [made[id_] for id_ in ids]])

    def _inserted(self, target: Relation, source: Relation) -> Any:
        """Return the statement that copies rows which a table lacks."""
        return self._sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE {}").format(
            self._twins.named(target),
            self._listed(self._sql.Identifier(column.name) for column in self._written),
            self._composed("SELECT {copied} FROM {table} t JOIN {given_with_vectors} ON {same}", source),
        )

    def _updated(self, target: Relation, source: Relation) -> Any:
        """Return the statement that copies rows which a table has."""
        sql, of_key = self._sql.SQL, {column.name for column in self._keys}
        names = {column: self._sql.Identifier(column.name) for column in self._columns}
        changed = [column for column in self._written if not column.identity and column.name not in of_key]
        return sql("UPDATE {} u SET {} FROM ({}) AS s ({}) WHERE {}").format(
            self._twins.named(target),
            self._listed(sql("{} = s.{}").format(names[column], names[column]) for column in changed),
            self._composed("SELECT {row} FROM {table} t JOIN {given_with_vectors} ON {same}", source),
            self._listed(names.values()),
            sql(" AND ").join(sql("u.{} = s.{}").format(names[column], names[column]) for column in self._keys),
        )

    def remove(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> None:
        """Delete rows."""
        with self._writing():
            self._delete(self._side(notes, old=old), self._arrays(ids))

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Make the indexes of the new table."""
        del parked
        with self._writing():
            self._twins.index(self._side(notes, old=True), self._side(notes, old=False))
        return dict(notes)

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "PgvectorSource":
        """Return the new table, or the old one."""
        with self._reading():
            side = self._side(notes, old=old)
        place = (side.schema, side.name)
        return PgvectorSource(self.target, self._connection, place, self._text, self._vector, self.home)

    def switch(self, notes: Mapping[str, str]) -> float:
        """Give the new table the place of the old one, in one transaction; there is no gap, but queries wait."""
        self._exchange(notes, old=False)
        return 0.0

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Give the old table its place back, as in `switch`."""
        self._exchange(notes, old=True)
        return 0.0

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the new table is in the place of the old one."""
        del embedder
        with self._reading():
            return self._side(notes, old=False).schema == notes["schema"]

    def release(self, notes: Mapping[str, str], *, switched: bool) -> None:
        """Drop the table that is not in use, and our schemas if nothing else is in them."""
        errors: Any = require("psycopg", "postgres").errors
        with self._writing():
            unused = self._of_move(notes, "old" if switched else "new")
            if unused is not None and unused.schema != notes["schema"]:
                self._twins.run("DROP TABLE {}", self._twins.named(unused))
        for end in (_NEW, _OLD):
            schema = self._sql.Identifier(_schema_name(notes["schema"], end))
            with suppress(errors.DependentObjectsStillExist), self._writing():
                self._twins.run("DROP SCHEMA IF EXISTS {} RESTRICT", schema)

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line of a program with pgvector, LangChain or LlamaIndex."""
        rest = f"and {self._vector} has {embedder.dim} numbers (Vector({embedder.dim}), embed_dim={embedder.dim})"
        return model_line(embedder, context, ANY if self._node is None else LLAMA_INDEX, rest)

    @property
    def _column(self) -> Column:
        return next(column for column in self._columns if column.name == self._vector)

    @property
    def _written(self) -> list[Column]:
        return [column for column in self._columns if not column.generated]

    @contextmanager
    def _reading(self) -> Generator[None, None, None]:
        with self._writing():
            self._connection.execute("SET LOCAL transaction_read_only TO on")
            yield

    @contextmanager
    def _writing(self) -> Generator[None, None, None]:
        """Hold a transaction, with the role's own search path: that of the session may be another client's."""
        with self._connection.transaction():
            self._connection.execute("SET LOCAL search_path TO DEFAULT")
            self._connection.execute("SET LOCAL TimeZone TO 'UTC'")  # digests are of values as they are printed
            yield

    def _check_key(self) -> None:
        if not self._keys:
            raise StoreError(
                f"{self.target}: expected a primary key, by which rows are found again, found none. Add one, such as "
                "ALTER TABLE … ADD COLUMN id bigserial PRIMARY KEY."
            )

    def _check_shape(self, one: Relation, other: Relation) -> None:
        if self._twins.shape(one, self._vector) != self._twins.shape(other, self._vector):
            raise StoreError(
                f"{self.target}: expected the columns of this move, found others: the table was altered meanwhile. End "
                "the move by cde-rag release, and begin it again."
            )

    def _live(self) -> Relation:
        """Return the table in use.

        Raises:
            StoreError: There is none.
        """
        found = self._twins.at(*self._table)
        if found is None:
            raise StoreError(f"{self.target}: expected a table, found none of the name {'.'.join(self._table)!r}.")
        return found

    def _of_move(self, notes: Mapping[str, str], side: str) -> Relation | None:
        """Return a table of a move, wherever it is; None if it is gone."""
        found = self._twins.of(int(notes[side]))
        schemas = [notes["schema"], *(_schema_name(notes["schema"], end) for end in (_NEW, _OLD))]
        return found if found is not None and (found.name, found.schema in schemas) == (notes["table"], True) else None

    def _side(self, notes: Mapping[str, str], *, old: bool) -> Relation:
        """Return the old or the new table; without notes the one in use."""
        if not notes:
            return self._live()
        check_choice(self.target, notes, self._text, self._vector)
        side = "old" if old else "new"
        found = self._of_move(notes, side)
        if found is None:
            raise StoreError(
                f"{self.target}: expected the table of the {side} vectors of this move, found none. Give the database "
                "in which it began, or another journal."
            )
        return found

    def _rows_of(self, query: str, relation: Relation, *values: Any) -> list[Any]:
        return self._connection.execute(self._composed(query, relation), values or None).fetchall()

    def _listed(self, parts: Any) -> Any:
        return self._sql.SQL(", ").join(parts)

    def _of_row(self, column: Column | str) -> Any:
        return self._sql.SQL("t.{}").format(self._sql.Identifier(column if isinstance(column, str) else column.name))

    def _composed(self, query: str, relation: Relation) -> Any:
        """Return a query with the parts that it names: the table, columns of its rows `t`, and rows given by keys."""
        sql, keys = self._sql.SQL, [self._of_row(column) for column in self._keys]
        printed, types = [sql("{}::text").format(key) for key in keys], [sql(column.type) for column in self._keys]
        others = [self._of_row(column) for column in self._columns if column.name != self._vector]
        vector = self._of_row(self._vector)
        names, array = [self._sql.Identifier(f"k{place}") for place in range(len(keys))], sql("%s::text[]")
        kept = sql("CASE WHEN {} IS NULL THEN NULL ELSE given.made::{} END").format(vector, sql(self._column.type))
        copies = {each: kept if each.name == self._vector else self._of_row(each) for each in self._columns}
        parts = {
            "id": self._id(printed),
            "parts": sql("ARRAY[{}]::text[]").format(self._listed(printed)),
            "order": self._listed(keys),
            "last": self._listed(sql("%s::{}").format(kind) for kind in types),
            "text": self._of_row(self._text),
            "node": sql("NULL") if self._node is None else self._of_row(self._node),
            "vector": vector,
            "digest": sql("encode(sha256(convert_to(ROW({}, {} IS NULL)::text, 'UTF8')), 'hex')").format(
                self._listed(others), vector
            ),
            "table": self._twins.named(relation),
            "given": sql("unnest({}) AS given ({})").format(self._listed([array] * len(keys)), self._listed(names)),
            "given_with_vectors": sql("unnest({}) AS given ({})").format(
                self._listed([*[array] * len(keys), array]), self._listed([*names, self._sql.Identifier("made")])
            ),
            "same": sql(" AND ").join(
                sql("{} = given.{}::{}").format(*each) for each in zip(keys, names, types, strict=True)
            ),
            "copied": self._listed(copies[column] for column in self._written),
            "row": self._listed(copies.values()),
        }
        return sql(query).format(**{name: part for name, part in parts.items() if f"{{{name}}}" in query})

    def _id(self, printed: Sequence[Any]) -> Any:
        """Return the id of a row in SQL: its key, as JSON if that has several columns."""
        if len(printed) == 1:
            return printed[0]
        if printed:
            return self._sql.SQL("jsonb_build_array({})::text").format(self._listed(printed))
        is_there = any(column.name == "id" for column in self._columns)
        return self._sql.SQL("t.id::text" if is_there else "(row_number() OVER ())::text")

    def _arrays(self, ids: Sequence[str]) -> list[list[str]]:
        """Return the values of keys by columns."""
        if len(self._keys) == 1 or not ids:
            return [list(ids) for _ in self._keys]
        return [list(values) for values in zip(*map(json.loads, ids), strict=True)]

    def _delete(self, relation: Relation, arrays: list[list[str]]) -> None:
        self._connection.execute(self._composed("DELETE FROM {table} t USING {given} WHERE {same}", relation), arrays)

    def _row(self, row: Sequence[Any]) -> SourceRow:
        id_, text, node, digest = row[:4]
        return SourceRow(id_, self._embedded(text, node), digest)

    def _embedded(self, text: str | None, node: str | None) -> str | None:
        """Return the text of a row as it was embedded."""
        try:
            return embedded_text(text, None if node is None else json.loads(node))
        except (ValueError, RecursionError):
            return embedded_text(text, None)

    def _exchange(self, notes: Mapping[str, str], *, old: bool) -> None:
        """Put the old or the new table into the application's schema, and the other one out of it.

        Raises:
            SourceHeldError: Transactions of the application hold the table all the time.
            StoreError: It was altered.
        """
        errors: Any = require("psycopg", "postgres").errors
        for _ in range(_TRIES):
            try:
                with self._writing():
                    self._connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                    live = self._exchanged(notes, old=old)
            except (errors.LockNotAvailable, errors.DeadlockDetected):  # noqa: PERF203
                time.sleep(_BETWEEN_S)
            else:
                with self._reading():
                    unchecked = self._twins.unchecked(live)
                for name in unchecked:
                    with self._writing():
                        self._twins.check_rows(live, name)
                return
        raise SourceHeldError(
            f"{self.target}: expected to have the table for an instant, found transactions that hold it all the time "
            "(pg_stat_activity lists them). Run the command again when they have ended."
        )

    def _exchanged(self, notes: Mapping[str, str], *, old: bool) -> Relation:
        """Exchange both tables, in the transaction, and return the one that is in use then."""
        out, coming = self._side(notes, old=not old), self._side(notes, old=old)
        if coming.schema == notes["schema"]:
            return coming
        self._twins.run("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", self._twins.named(out))  # readers go on
        self._check_shape(out, coming)
        if not old:  # rows that are gone; those that were written meanwhile come by `put`
            same = [
                self._sql.SQL("{} = gone.{}").format(self._of_row(column), self._sql.Identifier(column.name))
                for column in self._keys
            ]
            self._twins.run(
                "DELETE FROM {} gone WHERE NOT EXISTS (SELECT FROM {} t WHERE {})",
                self._twins.named(coming),
                self._twins.named(out),
                self._sql.SQL(" AND ").join(same),
            )
        self._twins.exchange(out, coming, _schema_name(notes["schema"], _NEW if old else _OLD))
        return Relation(coming.oid, notes["schema"], notes["table"])


def _schema_name(schema: str, end: str) -> str:
    """Return the name of our schema next to the application's."""
    return schema.encode()[: _NAME_BYTES - len(end)].decode(errors="ignore") + end


def _is_stamp(comment: str | None) -> bool:
    return comment is not None and comment.startswith("{") and f'"{KEY}"' in comment
