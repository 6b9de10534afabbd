"""Texts that other applications keep, and the three calls on them: adopt, catch up, release.

papers = adopt(QdrantCollection(client, "papers", texts="langchain"))
notes = adopt(PostgresTable(PgVectorStore(dsn, "notes"), "data_notes", LLAMA_INDEX), parent_key="ref_doc_id")
catch_up(notes)  # what the application wrote since
release(papers)  # ends the adoption; the application's data were never touched
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cde_rag.adoption.outcome import Adoption
from cde_rag.collection.collection import Collection
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.indexing.upsert import Progress

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

    from cde_rag.adoption.payload_schemas import Texts
    from cde_rag.adoption.pgvector_table import TableColumns
    from cde_rag.embedders.contextual import AnyModel
    from cde_rag.embedders.plain_vectors import PlainVectors
    from cde_rag.models import CDEModel
    from cde_rag.stores.postgres import PgVectorStore


@dataclass(frozen=True)
class QdrantCollection:
    """A collection of Qdrant that another application made, with vectors of any model.

    Each of its points gets one more vector, and becomes a record of the adopted Collection; its own vectors and
    payload stay, so that the application reads and writes as before.

    Attributes:
        client: Client of a server from Qdrant 1.18 on, or in local mode.
        name: Its name, or an alias of it.
        texts: Payload schema of the text: `"langchain"`, `"llamaindex"`, the key of another payload (whose other keys
            are metadata), or a function that makes a Record of a payload, or None of one without a text. The record's
            id is that of the point.
        own_vectors: Name of the points' own vectors, "" for the unnamed ones, where the model given to `adopt` is the
            plain embedder that made them of the same texts: the new vectors are made of them by arithmetic, and no
            model embeds the texts, but for a few of each page that are compared.
        plain_vectors: Where the vectors of a plain embedder are kept; required by `own_vectors`.
    """

    client: "QdrantClient"
    name: str
    texts: "Texts"
    own_vectors: str | None = None
    plain_vectors: "PlainVectors | None" = None


@dataclass(frozen=True)
class PostgresTable:
    """A table with pgvector that another application keeps. It is only read.

    Attributes:
        store: Store of the adopted Collection, in a schema of its own in the database of the table.
        table: Name of the table, `schema.table` if it is not on the search path.
        columns: `LANGCHAIN`, `LANGCHAIN_V2` or `LLAMA_INDEX` of `cde_rag.adoption.pgvector_table`, or other columns.
        collection: Name of the collection in `langchain_pg_collection`, for a table that holds several.
    """

    store: "PgVectorStore"
    table: str
    columns: "TableColumns"
    collection: str | None = None


def adopt(
    source: QdrantCollection | PostgresTable,
    *,
    model: "str | Path | CDEModel | AnyModel | None" = None,
    embedder: Embedder | None = None,
    context_size: int | None = None,
    seed: int = 0,
    parent_key: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collection:
    """Make a Collection of texts that stay in use where they are.

    After a crash at any instant the source is intact, and the same call resumes, in the Context of its first run. Open
    the result like any collection, by its store: `QdrantStore(client, name)`, or the PgVectorStore of the source.

    Args:
        source: The texts: a QdrantCollection or PostgresTable.
        model: As in ContextualEmbedder.from_corpus; the Context is sampled from the texts. By default "cde-mini", or
            the model of the first run.
        embedder: An embedder to use instead of a sampled Context, such as a PlainEmbedder, which `recontextualize` can
            replace later.
        context_size: Number of context documents; as many as the model expects, or 512, by default.
        seed: Random seed of the sample.
        parent_key: As in Collection.create; `"ref_doc_id"` with LlamaIndex, often `"source"` with LangChain.
        on_progress: Called after each write.

    Raises:
        ContextMismatchError: The first run had another model or embedder; or `own_vectors` are not those of `model`.
        CorpusError: No payload or row can be a record; nothing is made.
        MissingExtraError: The extra `qdrant` or `postgres` is not installed.
        StoreError: There is no such collection, table or column, it is a store of this library, the first run was of
            another source, another run is in progress, or the Qdrant server is older.
        TypeError: `source` is something else; or `own_vectors` without a plain embedder as `model`, or without
            `plain_vectors`.

    Warns:
        TruncationWarning: Texts exceeded the model's token limit and were truncated.
    """
    match source:
        case QdrantCollection():
            from cde_rag.adoption.qdrant import adopt_points

            return adopt_points(
                source.client,
                source.name,
                texts=source.texts,
                model=model,
                embedder=embedder,
                own_vectors=source.own_vectors,
                plain_vectors=source.plain_vectors,
                context_size=context_size,
                seed=seed,
                parent_key=parent_key,
                on_progress=on_progress,
            )
        case PostgresTable():
            from cde_rag.adoption.postgres import adopt_table

            return adopt_table(
                source.store,
                source.table,
                source.columns,
                collection=source.collection,
                model=model,
                embedder=embedder,
                context_size=context_size,
                seed=seed,
                parent_key=parent_key,
                on_progress=on_progress,
            )
        case _:
            raise TypeError(
                f"Expected a QdrantCollection or a PostgresTable, found {source!r:.80}. Write "
                'adopt(QdrantCollection(client, "papers", texts="langchain")), or adopt(PostgresTable(store, table, '
                "columns))."
            )


def catch_up(
    collection: Collection,
    source: QdrantCollection | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> Adoption:
    """Bring an adopted collection up to date with its source; call it as often as you like.

    Until then searches return the texts of the last call. In PostgreSQL, records that were added through the
    Collection, and are not in the table, are deleted; in Qdrant they stay. After an error or a kill the parts that were
    written stay, and the next call does the rest.

    Args:
        collection: Result of `adopt`, opened in any way.
        source: The QdrantCollection that was adopted, if its `texts` is a function, which no store keeps.
        on_progress: Called after each write.

    Raises:
        StoreError: It was not adopted, the source is gone or needed here, or another run is in progress.
    """
    if _is_of_qdrant(collection):
        from cde_rag.adoption.qdrant import catch_up_points

        return catch_up_points(collection, texts=None if source is None else source.texts, on_progress=on_progress)
    from cde_rag.adoption.postgres import catch_up_table

    return catch_up_table(collection, on_progress=on_progress)


def release(adopted: Collection | QdrantCollection) -> None:
    """End an adoption: remove the data of this library, and close the Collection. The source stays as it is.

    Args:
        adopted: Result of `adopt`, opened in any way; or the QdrantCollection that was adopted, which needs no model,
            and with which a call is repeated that was interrupted.

    Raises:
        StoreError: It was not adopted, a run is in progress, or (in Qdrant) it has records that its application has
            not, which `cde_rag.adoption.qdrant_points.only_here` lists.
    """
    if isinstance(adopted, QdrantCollection):
        from cde_rag.adoption.qdrant_points import release_points

        release_points(adopted.client, adopted.name)
    elif _is_of_qdrant(adopted):
        from cde_rag.adoption.qdrant import release_collection

        release_collection(adopted)
    else:
        from cde_rag.adoption.postgres import release_table

        release_table(adopted)


def _is_of_qdrant(collection: Collection) -> bool:
    """Return True for an adopted collection of Qdrant, False for an adopted table.

    Raises:
        StoreError: The collection was not adopted.
        TypeError: It is no Collection.
    """
    if not isinstance(cast(object, collection), Collection):
        raise TypeError(f"Expected a Collection, the result of adopt, found {collection!r:.80}. Open it by its store.")
    settings = collection.store.manifest().settings
    if "texts" not in settings and "table" not in settings:
        raise StoreError("This collection was not adopted: it holds its own records. Write to it as to any other.")
    return "texts" in settings
