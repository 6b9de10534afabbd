"""Adoption of a table of PostgreSQL that another application keeps, such as LangChain's or LlamaIndex's.

The table is only read. Its texts become a Collection in a schema of the same database, with vectors of our model, and
`catch_up_table` brings it up to date with the table: texts are compared by digest, and those that changed are embedded.
Its application reads and writes the table as before, and `release_table` drops the schema.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from cde_rag.adoption.outcome import Adoption
from cde_rag.adoption.pgvector_table import TableColumns, qualified_table, table_records
from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import create_in, settings_of
from cde_rag.embedders.contextual import AnyModel, ContextualEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError, counted
from cde_rag.indexing.upsert import Progress
from cde_rag.models import CDEModel
from cde_rag.records import Record, embedded_text, usable, why_none
from cde_rag.stores.postgres import PgVectorStore

_TABLE: Final = "table"  # key of the settings that name the table


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, as the settings of the collection keep it."""

    name: str
    columns: TableColumns
    collection: str | None

    def records(self, store: PgVectorStore) -> Iterator[Record]:
        return table_records(store.dsn, self.name, self.columns, collection=self.collection)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "columns": list(self.columns), "collection": self.collection}

    @classmethod
    def of(cls, collection: Collection) -> tuple["_Table", PgVectorStore]:
        store = collection.store
        if not isinstance(store, PgVectorStore):
            raise StoreError(f"Expected a collection in PostgreSQL, found one in {type(store).__name__}.")
        found = store.manifest().settings.get(_TABLE)
        if found is None:
            raise StoreError(f"{store}: expected a collection that was adopted, found one that holds its own records.")
        return cls(found["name"], TableColumns(*found["columns"]), found["collection"]), store


def adopt_table(
    store: PgVectorStore,
    table: str,
    columns: TableColumns,
    *,
    collection: str | None = None,
    model: "str | Path | CDEModel | AnyModel | None" = None,
    embedder: Embedder | None = None,
    context_size: int | None = None,
    seed: int = 0,
    parent_key: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collection:
    """Make a Collection of the texts of a table, which stays as it is and in use.

    After a crash at any instant the same call resumes, in the Context of its first run.

    Args:
        store: Store of the new collection, in the database of the table.
        table: Name of the table, `schema.table` if it is not on the search path.
        columns: `LANGCHAIN`, `LANGCHAIN_V2` or `LLAMA_INDEX` of `cde_rag.adoption.pgvector_table`, or other columns.
        collection: Name of the collection in `langchain_pg_collection`, for a table that holds several.
        model: As in ContextualEmbedder.from_corpus; the Context is sampled from the texts. By default "cde-mini", or
            the model of the first run.
        embedder: An embedder to use instead of a sampled Context.
        context_size: Number of context documents; as many as the model expects, or 512, by default.
        seed: Random seed of the sample.
        parent_key: As in Collection.create; often `"source"` with LangChain, `"ref_doc_id"` with LlamaIndex.
        on_progress: Called after each write.

    Raises:
        ContextMismatchError: The first run had another model or embedder.
        CorpusError: No row of the table can be a record; nothing is made.
        StoreError: There is no such table or column, the collection is of something else, or another run is in
            progress.

    Warns:
        TruncationWarning: Texts exceeded the model's token limit and were truncated.
    """
    wanted = _Table(qualified_table(store.dsn, table), columns, collection)
    if store.exists():
        opened = Collection.open(store, model=model) if embedder is None else Collection(store, embedder)
        if embedder is not None and opened.embedder.fingerprint != embedder.fingerprint:
            raise ContextMismatchError(expected=opened.embedder.fingerprint, found=embedder.fingerprint)
        begun = store.manifest().settings.get(_TABLE)
        if begun is not None:  # by version 0.2, whose names may lack their schema
            begun = {**begun, "name": qualified_table(store.dsn, begun["name"])}
        if begun != wanted.settings():
            raise StoreError(f"{store}: expected a collection of {wanted.settings()}, found one of {begun or 'none'}.")
    else:
        if embedder is None:
            texts = (embedded_text(record) for record in wanted.records(store))
            try:
                embedder = ContextualEmbedder.from_corpus(
                    texts,
                    model=cast(CDEModel, "cde-mini" if model is None else model),
                    context_size=context_size,
                    seed=seed,
                )
            except CorpusError as error:
                raise CorpusError(f"{table}: {error}") from error
        settings = settings_of(embedder, parent_key)
        rows, why = why_none(wanted.records(store), parent_key)
        if rows:  # a collection that is made keeps its table and parent key
            given = f"parent_key={parent_key!r} was given"
            raise CorpusError(f"{wanted.name}: none of {counted(rows, 'row')} can be a record: {why} {given}.")
        create_in(store, embedder, {**settings, _TABLE: wanted.settings()})
        opened = Collection(store, embedder)
    catch_up_table(opened, on_progress=on_progress)
    return opened


def catch_up_table(collection: Collection, *, on_progress: Callable[[Progress], None] | None = None) -> Adoption:
    """Bring an adopted collection up to date with its table, as of one instant; call it as often as you like.

    Until then searches return the texts of the last call. Records that were added through the Collection, and are not
    in the table, are deleted. After an error or a kill the parts that were written stay, and the next call does the
    rest.

    Args:
        collection: Result of `adopt_table`, opened in any way.
        on_progress: Called after each write.

    Raises:
        StoreError: It was not adopted, the table is gone, or another run is in progress.
    """
    started = time.monotonic()
    table, store = _Table.of(collection)
    seen, skipped = set[str](), 0

    def records() -> Iterator[Record]:
        nonlocal skipped
        for record in table.records(store):
            try:
                found = usable(record, collection.parent_key)
            except CorpusError:
                skipped += 1
                continue
            if found.id in seen:
                skipped += 1
            else:
                seen.add(found.id)
                yield found

    with store.lease():
        report = collection.add_records(records(), on_progress=on_progress)
        deleted = collection.delete([record.id for record in collection.scroll() if record.id not in seen])
    changes = {name: count for name, count in asdict(report).items() if name in ("added", "replaced", "updated")}
    return Adoption(
        **changes,
        deleted=deleted,
        skipped=skipped,
        documents=collection.count(),
        elapsed_s=time.monotonic() - started,
    )


def release_table(collection: Collection) -> None:
    """Drop the schema of an adopted collection; the table was never touched.

    Raises:
        StoreError: It was not adopted, or a run is in progress.
    """
    _, store = _Table.of(collection)
    with store.lease():
        store.remove()
    collection.close()
