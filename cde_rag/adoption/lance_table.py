"""Tables of LanceDB, in a folder, read and moved to another model.

LanceDB keeps every version of a table. The new vectors are made in a table of the journal, a shadow with all columns,
which then becomes the next version by one overwrite: there is no gap, and a rollback restores the version before. Row
ids, order, columns and their types stay; only the column of vectors has another length. An overwrite drops indexes,
which are made again.

    new/            shadow
    old/            the table's files as they were, as links: its application's `optimize` may delete old versions
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
from jaxtyping import Float32

from cde_rag._files import replacing
from cde_rag.adoption.application_lines import ANY, LLAMA_INDEX, model_line, plain_name
from cde_rag.adoption.llamaindex_nodes import NODE, embedded_text
from cde_rag.adoption.movable import PAGE, SourceChangedError, SourceFacts, SourceRow
from cde_rag.adoption.name_counts import NameCounts
from cde_rag.adoption.positions import drawn, stored
from cde_rag.adoption.table_columns import filterable, one_of, text_column
from cde_rag.adoption.text_vectors import OURS, TextVectors
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError, require
from cde_rag.indexing.audit import StoredVector, audit
from cde_rag.indexing.stamp_reader import KEY
from cde_rag.indexing.stamping import fingerprint_in, stamp_of
from cde_rag.records import Record

_MOVE: Final = b"cde_move"  # key in the metadata of the column of vectors: the move that wrote this version
_FUNCTIONS: Final = b"embedding_functions"  # key in the metadata of the table: functions of LanceDB's registry
_NEW, _OLD = "new", "old"
_FLOATS: Final = {"halffloat": np.float16, "float": np.float32, "double": np.float64}
_AHEAD: Final = 8 * PAGE  # rows that LanceDB reads at once
_SCALAR: Final = ("BTree", "Bitmap", "LabelList")
_VECTOR: Final = {
    "IvfFlat": "IvfFlat",
    "IvfSq": "IvfSq",
    "IvfPq": "IvfPq",
    "IvfRq": "IvfRq",
    "IvfHnswFlat": "HnswFlat",
    "IvfHnswSq": "HnswSq",
    "IvfHnswPq": "HnswPq",
}
_FULL_TEXT: Final = {"min_ngram_length": "ngram_min_length", "max_ngram_length": "ngram_max_length"}


class LanceTable(TextVectors):
    """A table of LanceDB.

    Args:
        target: Name given by the user.
        folder: Folder of the database.
        name: Name of the table.
        text: Column of the texts; by default that of the table's embedding function, or the first of the usual names.
        vector: Column of the vectors; by default the only one.
        home: Folder of a move's journal.
        random: Draws samples.
    """

    def __init__(
        self, target: str, folder: Path, name: str, text: str | None, vector: str | None, home: Path, random: Random
    ) -> None:
        super().__init__(target, home)
        self._folder, self._name, self._random = folder, name, random
        self._asked = {"text": text, "vector": vector}

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._live().count_rows())

    def stamp(self) -> str | None:
        """Return the fingerprint in the stamp, or None."""
        return fingerprint_in(self.stamp_text())

    def stamp_text(self) -> str | None:
        """Return the stamp in the metadata of the column of vectors, or None."""
        live = self._live()
        found = _metadata(live, self._columns(live).vector).get(KEY.encode())
        return None if found is None else found.decode(errors="replace")

    def put_stamp(self, text: str) -> None:
        """Store a stamp in the metadata of the column: in a new version of the table, which an overwrite loses."""
        live = self._live()
        if not hasattr(live, "update_field_metadata"):
            raise StoreError(f"{self.target}: expected lancedb 0.34 or newer, found an older one. Upgrade it.")
        live.update_field_metadata({"path": self._columns(live).vector, "metadata": {KEY: text}})

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random rows that have a text and a vector."""
        live = self._live()
        columns = self._columns(live)

        def read(places: list[int]) -> list[StoredVector]:
            rows = zip(places, live.take_offsets(places).to_list(), strict=True)
            found = [(place, columns.text_of(row), row) for place, row in rows if row[columns.vector] is not None]
            return [
                stored(str(row.get("id", place)), text, row[columns.vector])
                for place, text, row in found
                if text is not None
            ]

        return drawn(self._random, int(live.count_rows()), count, read)

    def found(self) -> SourceFacts:
        """Return length and distance of the vectors, and the embedding function of their column."""
        live = self._live()
        vector = self._columns(live).vector
        kinds = [index["distance"] for index in self._indexes(live) if index["column"] == vector]
        function = _functions(live).get(vector)
        named = None if function is None else f"{function['name']} {json.dumps(function['model'])}"
        return SourceFacts(live.schema.field(vector).type.list_size, next(iter(kinds), None) or "l2", named)

    def check(self, embedder: Embedder) -> None:
        """Refuse columns and indexes that cannot be made again, and functions that cannot be those of the new model.

        Raises:
            StoreError: See above.
        """
        live = self._live()
        columns, functions = self._columns(live), _functions(live)
        kind = str(live.schema.field(columns.vector).type.value_type)
        if kind not in _FLOATS:
            raise StoreError(f"{self.target}: expected floats in {columns.vector!r}, found {kind}. It is not moved.")
        for field in live.schema:
            metadata = _metadata(live, field.name)
            if any(b"blob" in part for part in (*metadata, *metadata.values())):
                raise StoreError(
                    f"{self.target}: expected columns that are copied, found blobs in {field.name!r:.60}. Make a new "
                    "table of the texts, with the new model, and keep the blobs in this one."
                )
        self._indexes(live)
        others = [column for column in functions if column != columns.vector]
        if others or (functions and plain_name(embedder) is None):
            column = others[0] if others else columns.vector
            whose = "another column" if others else f"{embedder.context.identity.name} with its context or prefixes"
            raise StoreError(
                f"{self.target}: its schema names the embedding function {functions[column]['name']!r:.60} for "
                f"{column!r:.60}, and LanceDB cannot be given one for {whose}. Take the functions out, and give "
                f"LanceDB the vectors yourself: db.create_table({self._name!r}, db.open_table({self._name!r})"
                '.to_arrow().replace_schema_metadata(None), mode="overwrite"); then move it.'
            )

    def version(self) -> str:
        """Return number and time of the version: a table that was dropped and made again counts from 1."""
        return _version(self._live())

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the rows in use; those of the old and the new vectors are the same."""
        del old
        live = self._live()
        for page, _ in self._named(live, self._columns(live, notes)):
            yield page

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the rows that have a text and a vector, with those columns and metadata that filters can read."""
        live = self._live()
        columns = self._columns(live)
        for page, batch in self._named(live, columns):
            rows, left_out = zip(page, _vectors(batch.column(columns.vector)), strict=True), ("id", columns.text)
            found: list[tuple[Record, Float32[np.ndarray, " dim"]]] = []
            for row, vector in rows:
                if row.text is not None and vector is not None:
                    text = row.payload[columns.text] if own else row.text
                    record = Record(row.id, text, metadata=filterable(row.payload, left_out))
                    found.append((record, vector.astype(np.float32)))
            yield found

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make the folder of the shadow, and note the columns, the stamp and a function of the new model."""
        live = self._live()
        columns = self._columns(live)
        named = {"text": columns.text, "vector": columns.vector, "stamp": stamp_of(embedder)}
        return super().begin(folder, embedder) | named | {"name": plain_name(embedder) or ""}

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Write the shadow: the table as it is, with the new vectors; and note version, indexes and digests of rows.

        Raises:
            SourceChangedError: A text has no vector yet.
            StoreError: LanceDB wrote other rows or columns than it read.
        """
        live, columns = self._live(), _Columns(notes["text"], notes["vector"])
        if notes.get("sealed") == _version(live):
            return dict(notes)
        for page, _ in self._pages(live, columns):
            self.made(notes, page, parked)
        move = uuid4().hex
        schema = _moved_schema(live, notes, move)
        new = Path(notes["folder"]) / _NEW
        shutil.rmtree(new, ignore_errors=True)

        def batches() -> Iterator[Any]:
            for page, batch in self._pages(live, columns):
                yield _with_vectors(batch, schema, columns.vector, self.made(notes, page, parked))

        made, was = self._written(new, schema, batches()), self._digests(live, columns)
        if self._digests(made, columns)[0] != was[0] or not made.schema.equals(schema, check_metadata=True):
            raise StoreError(f"{self.target}: expected LanceDB to copy rows and columns as they are, found others.")
        found = {"version": str(live.version), "sealed": _version(live), "move": move, "rows": was[0], "old": was[1]}
        return {**notes, **found, "indexes": json.dumps(self._indexes(live))}

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "LanceTable":
        """Return the shadow."""
        del old
        new = Path(notes["folder"]) / _NEW
        return LanceTable(self.target, new, self._name, notes["text"], notes["vector"], self.home, self._random)

    def switch(self, notes: Mapping[str, str]) -> float:
        """Overwrite the table with the shadow, in one step, and make its indexes again; there is no gap.

        LanceDB does not refuse an overwrite of a version that has just been written. So that version is put back.
        """
        live, version = self._live(), int(notes["version"])
        if not _is_of(live, notes):
            if _version(live) != notes.get("sealed"):
                raise self._changed()
            shutil.rmtree(self._kept(notes), ignore_errors=True)  # of a table that was dropped since, its numbers too
            _link(self._files, self._kept(notes))
            shadow = self.shadow(notes, old=False)._live()  # noqa: SLF001
            self._written(self._folder, shadow.schema, _batches(shadow))
            live = self._live()
        between: list[int] = []
        for number in sorted(int(each["version"]) for each in live.list_versions() if each["version"] > version):
            if _is_of(self._live(number), notes):
                break
            between.append(number)
        if between:
            if live.version > between[-1] + 1:
                raise StoreError(
                    f"{self.target}: its application wrote version {between[-1]} during the switch, and others since. "
                    f"Run table.restore({between[-1]}), add the later rows, and run the command again."
                )
            live.restore(between[-1])
            raise self._changed()
        self._index(live, notes)
        return 0.0

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Restore the version before the switch, as a new one; there is no gap."""
        live, columns = self._live(), _Columns(notes["text"], notes["vector"])
        if _is_of(live, notes):
            if self._digests(live, columns)[0] != notes["rows"]:
                raise self._changed()
            before = live.version
            _link(self._kept(notes), self._files)  # what `optimize` may have deleted
            live.restore(int(notes["version"]))
            if live.version > before + 1:
                live.restore(live.version - 1)
                raise self._changed()
        elif self._digests(live, columns)[1] != notes["old"]:
            raise self._changed()
        return 0.0

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if the version is of this move, or one that the application wrote with the new model."""
        if _is_of(self._live(), notes):
            return True
        return self.found().dim == int(notes["dim"]) and audit(self, embedder).share >= OURS

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the line of a program with LanceDB, or LangChain's."""
        live = self._live()
        rest = f"and Vector({embedder.dim}) in a LanceModel; then open the table anew"
        if self._columns(live).vector in _functions(live):
            return f"No model: the table will name {plain_name(embedder)!r}, which table.search(text) takes; {rest}"
        kind: Any = live.schema.field("metadata").type if "metadata" in live.schema.names else None
        fields = [field.name for field in kind] if str(kind).startswith("struct") else []
        return model_line(embedder, context, LLAMA_INDEX if NODE in fields else ANY, rest)

    @property
    def _files(self) -> Path:
        return self._folder / f"{self._name}.lance"

    def _kept(self, notes: Mapping[str, str]) -> Path:
        return Path(notes["folder"]) / _OLD

    def _live(self, version: int | None = None) -> Any:
        """Open the table, as it is now: a handle of LanceDB stays at its version."""
        table = require("lancedb", "lancedb").connect(str(self._folder)).open_table(self._name)
        if version is not None:
            table.checkout(version)
        return table

    def _columns(self, table: Any, notes: Mapping[str, str] | None = None) -> "_Columns":
        if notes:
            return _Columns(notes["text"], notes["vector"])
        lists = [field.name for field in table.schema if str(field.type).startswith("fixed_size_list")]
        vector = one_of(lists, self._asked["vector"], f"{self.target}: columns of vectors")
        text = self._asked["text"] or _functions(table).get(vector, {}).get("source_column")
        return _Columns(text_column(list(table.schema.names), text, self.target), vector)

    def _named(self, table: Any, columns: "_Columns") -> Iterator[tuple[list[SourceRow], Any]]:
        """Yield all rows as `_pages` does, by ids that none has in common: their own, or digests of their texts."""
        place, names = 0, NameCounts()
        for page, batch in self._pages(table, columns):
            wanted: list[str] = []
            for row in page:
                named = f"row {place}" if row.text is None else sha256(row.text.encode()).hexdigest()[:32]
                id_ = row.payload.get("id")
                wanted.append(named if id_ is None else str(id_))
                place += 1
            yield [row._replace(id=name) for row, name in zip(page, names.unique(wanted), strict=True)], batch

    def _pages(self, table: Any, columns: "_Columns") -> Iterator[tuple[list[SourceRow], Any]]:
        """Yield all rows in their order, without ids, with their batches of Arrow."""
        for batch in _batches(table):
            page = batch.drop_columns([columns.vector]).to_pylist()
            yield [SourceRow("", columns.text_of(row), row) for row in page], batch

    def _digests(self, table: Any, columns: "_Columns") -> tuple[str, str]:
        """Return digests of all rows in any order: without their vectors, and with them."""
        rows = vectors = 0
        for page, batch in self._pages(table, columns):
            for row, vector in zip(page, _vectors(batch.column(columns.vector)), strict=True):
                rows += int(row.digest, 16)
                written = b"" if vector is None else vector.tobytes()
                vectors += int(sha256(row.digest.encode() + written).hexdigest(), 16)
        return f"{rows % 2**256:x}", f"{vectors % 2**256:x}"

    def _written(self, folder: Path, schema: Any, batches: Iterator[Any]) -> Any:
        """Write the table, or its next version, in a database."""
        lancedb, arrow = require("lancedb", "lancedb"), require("pyarrow", "lancedb")
        reader = arrow.RecordBatchReader.from_batches(schema, batches)
        mode = "overwrite" if folder == self._folder else "create"
        # "null": rows without a vector stay so
        return lancedb.connect(str(folder)).create_table(
            self._name, reader, schema=schema, mode=mode, on_bad_vectors="null"
        )

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(
            f"{self.target}: expected the table as it was, found another version, which its application wrote "
            "meanwhile. Run the command again."
        )

    def _indexes(self, table: Any) -> list[dict[str, Any]]:
        """Return the options by which all indexes can be made again.

        Raises:
            StoreError: LanceDB does not say enough of one.
        """
        found: list[dict[str, Any]] = []
        for index in table.list_indices():
            kind = str(index.index_type)
            details: dict[str, Any] | None = getattr(index, "index_details", None)  # older ones do not name it
            is_known, options = details is not None, dict[str, Any]()
            if kind == "FTS":
                known = require("lancedb.index", "lancedb").FTS.__dataclass_fields__
                named = {_FULL_TEXT.get(key, key): value for key, value in (details or {}).items()}
                options = {key: value for key, value in named.items() if key in known}
                unknown = [
                    key for key, value in named.items() if key not in known and value not in (None, False, "text")
                ]
                is_known = is_known and not unknown
            else:
                is_known = is_known and (kind in _SCALAR or kind in _VECTOR)
            if not is_known or len(index.columns) != 1:
                raise StoreError(
                    f"{self.target}: expected indexes that can be made again, found {index.name!r:.60} of kind "
                    f"{kind}, whose options lancedb does not name. Upgrade it; or run table.drop_index({index.name!r}),"
                    " and make it again after the move."
                )
            distance = table.index_stats(index.name).distance_type if kind in _VECTOR else None
            found.append(
                {"name": index.name, "kind": kind, "column": index.columns[0], "distance": distance, "options": options}
            )
        return sorted(found, key=lambda index: (index["kind"] in _VECTOR, index["kind"] != "FTS"))  # searches that fail

    def _index(self, table: Any, notes: Mapping[str, str]) -> None:
        """Make the indexes that the version before had, and this one lacks."""
        configs, there = require("lancedb.index", "lancedb"), {index.name for index in table.list_indices()}
        for index in json.loads(notes["indexes"]):
            if index["name"] in there:
                continue
            if index["distance"] is not None:
                index["options"]["distance_type"] = index["distance"]
            kind = str(index["kind"])
            config = getattr(configs, _VECTOR.get(kind, kind))(**index["options"])
            try:
                table.create_index(index["column"], config=config, name=index["name"])
            except (RuntimeError, ValueError) as error:
                raise StoreError(
                    f"{self.target}: the new vectors are in use, but its index {index['name']!r:.60} cannot be made "
                    f"again ({error!s:.120}). Run cde-rag rollback, then table.drop_index({index['name']!r}), and the "
                    "same command again."
                ) from error


class _Columns(NamedTuple):
    """Names of the columns of the texts and the vectors."""

    text: str
    vector: str

    def text_of(self, row: Mapping[str, Any]) -> str | None:
        """Return the text of a row as it was embedded."""
        return embedded_text(row[self.text], row.get("metadata"))


def _batches(table: Any) -> Iterator[Any]:
    """Yield all rows in their order, as batches of Arrow.

    LanceDB reads ahead as fast as it can, and keeps what it has read: so it is asked for some pages at a time.
    """
    for start in range(0, table.count_rows(), _AHEAD):
        yield from (each for each in table.search().limit(_AHEAD).offset(start).to_batches(PAGE) if each.num_rows)


def _metadata(table: Any, column: str) -> dict[bytes, bytes]:
    return dict(table.schema.field(column).metadata or {})


def _version(table: Any) -> str:
    """Return number and time of a table's version."""
    number = table.version
    times = [each["timestamp"] for each in table.list_versions() if each["version"] == number]
    return f"{number} {''.join(map(str, times))}"  # none of one that its application has cleaned up by now


def _is_of(table: Any, notes: Mapping[str, str]) -> bool:
    """Return True if this version of a table is of a move."""
    vector = notes["vector"]
    return vector in table.schema.names and _metadata(table, vector).get(_MOVE) == notes["move"].encode()


def _functions(table: Any) -> dict[str, dict[str, Any]]:
    """Return the embedding functions that the schema names, by their columns of vectors; none is made."""
    metadata: dict[bytes, bytes] = table.schema.metadata or {}
    written = metadata.get(_FUNCTIONS)
    return {} if written is None else {each["vector_column"]: each for each in json.loads(written)}


def _moved_schema(table: Any, notes: Mapping[str, str], move: str) -> Any:
    """Return the schema of a table with the new vectors: their length, the stamp, and the function of the new model."""
    arrow: Any = require("pyarrow", "lancedb")
    schema, vector, functions = table.schema, notes["vector"], _functions(table)
    field, metadata = schema.field(vector), dict(schema.metadata or {})
    kind = arrow.list_(field.type.value_field, int(notes["dim"]))
    stamps = {KEY.encode(): notes["stamp"].encode(), _MOVE: move.encode()}
    made = field.with_type(kind).with_metadata({**_metadata(table, vector), **stamps})
    if vector in functions:
        model = {"name": "sentence-transformers", "model": {"name": notes["name"]}}
        metadata[_FUNCTIONS] = json.dumps([functions[vector] | model]).encode()
    return schema.set(schema.get_field_index(vector), made).with_metadata(metadata or None)


def _with_vectors(batch: Any, schema: Any, column: str, vectors: Float32[np.ndarray, "rows dim"]) -> Any:
    """Return a batch with other vectors; where there was none, there is none."""
    arrow: Any = require("pyarrow", "lancedb")
    kind, place = schema.field(column).type, schema.get_field_index(column)
    flat = arrow.array(vectors.astype(_FLOATS[str(kind.value_type)]).ravel())
    made = arrow.FixedSizeListArray.from_arrays(flat, type=kind, mask=batch.column(place).is_null())
    return arrow.RecordBatch.from_arrays([*batch.columns[:place], made, *batch.columns[place + 1 :]], schema=schema)


def _vectors(column: Any) -> Iterator[np.ndarray | None]:
    """Yield the vectors of a column of Arrow, of its own type of floats; None where there is none."""
    flat = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)
    there = iter(flat)
    yield from (next(there) if valid else None for valid in column.is_valid().to_pylist())


def _link(source: Path, target: Path) -> None:
    """Bring the files of a table to another folder. LanceDB never changes one, so that links do."""
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_dir() or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # of an older version, which its application deletes
            try:
                os.link(path, place)
            except OSError:  # another disk, or one without links
                with replacing(place) as temporary:
                    shutil.copyfile(path, temporary)
