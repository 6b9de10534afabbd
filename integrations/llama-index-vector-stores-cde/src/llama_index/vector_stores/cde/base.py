"""CDEVectorStore: a collection of cde-rag as LlamaIndex stores and searches."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core import Settings
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.ingestion import run_transformations
from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.core.vector_stores.types import (
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.cde.conditions import check_groups, where_of
from llama_index.vector_stores.cde.deferring import CollectionEmbedding, EmbeddingStore
from llama_index.vector_stores.cde.nodes import NODE_ID, SOURCE, content, node_of, nodes_only, record_of
from typing_extensions import Self, override

from cde_rag import CDEWarning, Collection, ContextualEmbedder, Hit, Record
from cde_rag.collection.collection import When
from cde_rag.collection.first_context import create_without_documents
from cde_rag.collection.foreign_documents import restored
from cde_rag.embedders.contextual import AnyModel, contextual
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import FilterError, TruncationWarning, adapter_warns, counted, warn_user
from cde_rag.indexing.upsert_plan import first_records
from cde_rag.models.model import check_read
from cde_rag.records import embedded_text
from cde_rag.search.fusion import CANDIDATES
from cde_rag.stores.filters import MAX_VALUES, check_narrows, matches
from cde_rag.stores.kinds import store_at
from cde_rag.stores.store import Store


class CDEVectorStore(EmbeddingStore):
    """Nodes in a collection, which embeds them by itself: each in the corpus's context, and given its siblings.

    Siblings are the nodes of the same source document, in the order in which they came. Vectors that nodes bring are
    not taken, and queries are embedded here, so that nothing of another space can come in.

    Args:
        collection: A collection, best with `parent_key="ref_doc_id"`, as `create` and `from_documents` make it.

    Raises:
        TypeError: A path or a store in place of the collection.

    Examples:
        vector_store = CDEVectorStore.from_documents(documents, FaissStore("papers.faiss"))
        index = VectorStoreIndex.from_vector_store(vector_store, embed_model=vector_store.embed_model)
    """

    stores_text: bool = True
    is_embedding_query: bool = False  # queries come as text

    _collection: Collection = PrivateAttr()

    def __init__(self, collection: Collection) -> None:
        if not isinstance(collection, Collection):
            raise TypeError(
                f"CDEVectorStore expects a cde_rag.Collection, found {type(collection).__name__}. Open one with "
                'CDEVectorStore.open(FaissStore("papers.faiss")), or make one with '
                'CDEVectorStore.from_documents(documents, FaissStore("papers.faiss")).'
            )
        super().__init__(stores_text=True, is_embedding_query=False)
        self._collection = collection

    @classmethod
    @override
    def class_name(cls) -> str:
        """Return the name of the class in LlamaIndex's serialised form."""
        return "CDEVectorStore"

    @classmethod
    def create(cls, store: Store | str | Path, embedder: Embedder) -> Self:
        """Make an empty collection in an empty store, with siblings if the embedder reads any.

        Raises as `Collection.create`.
        """
        key = SOURCE if embedder.max_siblings else None
        return cls(Collection.create(_store(store), embedder, parent_key=key))

    @classmethod
    def open(cls, store: Store | str | Path, *, model: "AnyModel | None" = None) -> Self:
        """Open an existing collection, with its context and model; takes a model and raises as `Collection.open`."""
        return cls(Collection.open(_store(store), model=model))

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[BaseNode],
        store: Store | str | Path,
        *,
        transformations: Sequence[TransformComponent] | None = None,
        model: "AnyModel" = "cde-mini",
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
        embed: When = "first",
    ) -> Self:
        """Split documents, make their context, and store the nodes.

        Args:
            documents: The complete corpus. If there are none, the collection begins in the context of no corpus, and
                moves to one of its own at 64 and at 512 nodes; the context's arguments are left out then.
            store: Store without a collection, the path of a new folder, or an address, as in `Collection.create`.
            transformations: Such as a splitter; `Settings.transformations` by default.
            model: See `cde_rag.ContextualEmbedder`.
            context_size: As for `ContextualEmbedder.from_corpus`.
            seed: As for `ContextualEmbedder.from_corpus`.
            windows: As for `ContextualEmbedder.from_corpus`; the collection is opened with them again.
            embed: As in `add`.

        Raises:
            CorpusError: No text, or metadata that JSON cannot hold; nothing is made.
            StoreError: There is a collection already, or the store is not writable.
            TruncationError: More than 5 % of the nodes' tokens exceed the model's limit.
            TypeError: Something else than Documents or nodes, or no store.
        """
        place, documents = _store(store), nodes_only(documents, "from_documents")
        steps = Settings.transformations if transformations is None else transformations
        nodes = [node for node in run_transformations(documents, steps, in_place=False) if content(node).strip()]
        if not nodes and (context_size, seed, windows) == (None, 0, False):
            return cls(Collection(place, create_without_documents(place, model, SOURCE)))
        texts = [record.text for record in first_records(map(record_of, nodes), SOURCE)]
        embedder = ContextualEmbedder.from_corpus(
            texts, model=model, context_size=context_size, seed=seed, windows=windows
        )
        _check_fits(texts, embedder)
        vector_store = cls.create(place, embedder)
        vector_store.add(nodes, embed=embed)
        return vector_store

    @property
    def collection(self) -> Collection:
        """The collection."""
        return self._collection

    @property
    @override
    def client(self) -> Collection:
        """The collection, where LlamaIndex's users look for it."""
        return self._collection

    @property
    def embed_model(self) -> CollectionEmbedding:
        """The `embed_model` for an index over this store, so that documents are embedded once."""
        return CollectionEmbedding(self._collection)

    @override
    def add(self, nodes: Sequence[BaseNode], *, embed: When = "first", **kwargs: Any) -> list[str]:
        """Embed nodes and store them, or replace those of the same id; also embeds siblings that have changed.

        Args:
            nodes: The nodes.
            embed: "first", or "later": nodes are stored at once and found by words, in the mode "hybrid", which embeds
                what it looks at; `collection.embed_pending()` makes the other vectors. Through an index:
                `index.insert_nodes(nodes, embed="later")`.
            **kwargs: Not used.

        Raises:
            CorpusError: A node without text, or with metadata that JSON cannot hold.
            TruncationError: More than 5 % of the nodes' tokens exceed the model's limit.
            TypeError: Something else than nodes.

        Warns:
            CDEWarning: The nodes were embedded before, in vain; or they repeat texts of their documents that are stored
                under other ids, as after `refresh_ref_docs` of an index without a docstore.
            TruncationWarning: Nodes exceed the model's token limit, with the splitter's setting that makes them fit.
        """
        nodes = nodes_only(nodes, "add")
        if embedded := sum(bool(node.embedding) for node in nodes):
            warn_user(
                f"{counted(embedded, 'node')} came with vectors, which a collection does not take: it makes its own. "
                "To embed them once, give the index embed_model=vector_store.embed_model.",
                CDEWarning,
            )
        records = restored(self._collection, [record_of(node) for node in nodes])
        if doubles := self._doubles(records):
            warn_user(
                f"Found twice from now on: {counted(doubles, 'node')} with texts that their documents have under other "
                "ids. insert and refresh_ref_docs of an index without a docstore add a document again: call "
                "index.delete_ref_doc(document.id_) first, or keep the docstore with the index.",
                CDEWarning,
            )
        _check_fits([embedded_text(record) for record in records], self._collection.embedder)
        with adapter_warns(TruncationWarning):
            report = self._collection.add_records(records, embed=embed)
        if report.truncated:
            setting = _setting(self._collection.embedder.context.identity.max_length)
            warn_user(f"Truncated: {counted(report.truncated, 'node')}. {setting}", TruncationWarning)
        return [node.node_id for node in nodes]

    @override
    async def async_add(self, nodes: Sequence[BaseNode], *, embed: When = "first", **kwargs: Any) -> list[str]:
        """Run `add` in a thread."""
        return await asyncio.to_thread(self.add, nodes, embed=embed)

    @override
    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove the nodes of a source document.

        Raises:
            ValueError: That is no id, as None is, which nodes without a source have for it.
        """
        if not isinstance(ref_doc_id, str) or not ref_doc_id:
            raise ValueError(
                f"delete takes the id of a source document, a str that is not empty, found {ref_doc_id!r:.80}. Nodes "
                "without a source are removed by their ids: delete_nodes([node.node_id])."
            )
        self._collection.delete(where={SOURCE: ref_doc_id})

    @override
    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Run `delete` in a thread."""
        await asyncio.to_thread(self.delete, ref_doc_id)

    @override
    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes of these ids that match the filters; without either, all nodes."""
        where = where_of(filters)
        found = self._collection.scroll(where) if node_ids is None else self._among(node_ids, where)
        return [node_of(record) for record in found]

    @override
    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Run `get_nodes` in a thread."""
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    @override
    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Remove the nodes of these ids that pass the filters.

        Raises:
            FilterError: The filters keep every node or have an empty group, or one has no equivalent.
            ValueError: Neither is given; to remove everything there is `clear`.
        """
        where = where_of(filters)
        if node_ids is not None:
            self._collection.delete([record.id for record in self._among(node_ids, where)])
        elif filters is not None and where is not None:
            remedy = "To remove all nodes, call clear()."
            check_groups(filters, remedy)
            check_narrows(where, remedy)
            self._collection.delete(where=where)
        else:
            raise ValueError("delete_nodes takes node_ids, filters or both, found neither. For all nodes: clear().")

    @override
    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Run `delete_nodes` in a thread."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters)

    @override
    def clear(self) -> None:
        """Remove all nodes; the context stays."""
        self._collection.delete(where={})

    @override
    async def aclear(self) -> None:
        """Run `clear` in a thread."""
        await asyncio.to_thread(self.clear)

    def _doubles(self, records: Sequence[Record]) -> int:
        """Return how many records have the text of a stored one of the same document with another id."""
        documents = sorted({document for record in records if (document := record.metadata.get(SOURCE)) is not None})
        ids, stored = {record.id for record in records}, set[tuple[str, str]]()
        for first in range(0, len(documents), MAX_VALUES):
            found = self._collection.scroll({SOURCE: {"in": documents[first : first + MAX_VALUES]}})
            stored.update((record.metadata[SOURCE], record.text) for record in found if record.id not in ids)
        return sum((record.metadata.get(SOURCE), record.text) in stored for record in records)

    def _among(self, node_ids: Sequence[str], where: dict[str, Any] | None) -> list[Record]:
        """Return the records of these ids that match, those of nodes and others."""
        found = self._collection.get(node_ids)
        return [record for record in found if where is None or matches(where, record.metadata)]

    def _check_written_here(self, node_ids: Sequence[str]) -> None:
        """Refuse ids of records that no node was made of: a search knows ids by the metadata of nodes.

        Raises:
            FilterError: One is of such a record.
        """
        foreign = [record.id for record in self._collection.get(node_ids) if NODE_ID not in record.metadata]
        if foreign:
            raise FilterError(
                f"A search can be limited to nodes that this store wrote, and {len(foreign)} of these node_ids are "
                f"records of another program, such as {foreign[0]!r:.80}. Limit it by filters over their metadata, or "
                "take get_nodes(node_ids)."
            )

    @override
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Search with the text of a query, in the modes `default`, `hybrid`, `text_search`, `sparse` and `mmr`.

        Similarities are cosines in the modes `default` and `mmr`; fused scores from 0 to 1 in `hybrid`; and BM25 in
        `text_search` and `sparse`, which are the same here.

        Args:
            query: With `query_str`; a `query_embedding` is not looked at. For `hybrid`: `alpha`, from 0 (BM25 alone) to
                1 (vectors alone), by default 0.65; `hybrid_top_k`, the number of nodes, by default `similarity_top_k`;
                and `sparse_top_k`, the hits of each ranking that are fused, at least 100. An empty `node_ids` limits
                nothing, as retrievers of an index over a store that keeps its nodes always send it; an empty `doc_ids`
                finds nothing.
            kwargs: For `mmr`: `mmr_threshold` (1: nearness alone, 0: unlikeness alone; 0.5 by default) and
                `mmr_prefetch_k` (hits to choose from, 50 by default). For other modes: `rerank`, the name of a reranker
                of the best hits, as in `Collection.search`; similarities are its scores then.

        Raises:
            FilterError: A filter without an equivalent, or `node_ids` of records that another program wrote.
            StoreError: By terms, where the collection was made without them; `store.index_texts` adds them.
            ValueError: Another mode, no text, an `alpha` outside [0, 1] or in another mode, or an unknown keyword.
        """
        is_mmr, rerank = query.mode == VectorStoreQueryMode.MMR, kwargs.get("rerank")
        known = ["mmr_threshold", "mmr_prefetch_k", *([] if is_mmr else ["rerank"])]
        unknown = sorted(set(kwargs).difference(known))
        if not query.query_str or unknown:
            raise ValueError(
                "A collection embeds the text of a query itself: expected query_str, and no keywords but "
                f"{', '.join(known)}; found query_str={query.query_str!r:.80}, keywords {unknown}."
            )
        if query.alpha is not None and query.mode != VectorStoreQueryMode.HYBRID:
            raise ValueError(f"alpha is for the mode hybrid, found alpha={query.alpha} in the mode {query.mode.value}.")
        if query.node_ids:
            self._check_written_here(query.node_ids)
        where = _all_of(where_of(query.filters), _ids(query.node_ids or None), _sources(query.doc_ids))
        if query.mode == VectorStoreQueryMode.DEFAULT:
            hits = self._collection.search(
                query.query_str, query.similarity_top_k, by="vectors", where=where, rerank=rerank
            )
        elif is_mmr:
            threshold = kwargs.get("mmr_threshold", query.mmr_threshold)
            hits = self._collection.search_diverse(
                query.query_str,
                query.similarity_top_k,
                candidates=kwargs.get("mmr_prefetch_k", 50),
                diversity=0.5 if threshold is None else 1 - threshold,
                where=where,
            )
        elif query.mode == VectorStoreQueryMode.HYBRID:
            candidates = max(CANDIDATES, query.sparse_top_k or 0)
            searcher = self._collection.searcher("hybrid", candidates=candidates, weight=query.alpha)
            searcher = searcher if rerank is None else searcher.reranked(rerank)
            count = query.similarity_top_k if query.hybrid_top_k is None else query.hybrid_top_k
            hits = searcher.search(query.query_str, count, where=where)
        elif query.mode in (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE):
            hits = self._collection.search(
                query.query_str, query.similarity_top_k, by="bm25", where=where, rerank=rerank
            )
        else:
            raise ValueError(
                f"Expected the query mode default, hybrid, text_search, sparse or mmr, found {query.mode.value!r}."
            )
        return _result(hits)

    @override
    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Run `query` in a thread."""
        return await asyncio.to_thread(self.query, query, **kwargs)


def _check_fits(texts: Sequence[str], embedder: Embedder) -> None:
    """Refuse texts of which the model would leave a considerable part unread; raises TruncationError."""
    own = contextual(unwrapped(embedder))
    if own is not None and texts and not own.windows and own.context.identity.max_length:
        setting = _setting(own.context.identity.max_length)
        check_read(own.model, texts, f"{setting} Or make the collection with windows=True.")


def _setting(limit: int) -> str:
    size = limit * 2 // 3  # splitters count fewer tokens
    overlap = size // 80 * 10
    return (
        f"LlamaIndex's splitter makes chunks of 1024 of its tokens by default; {size} fit most texts, fewer code and "
        f"tables: set Settings.chunk_size, Settings.chunk_overlap = {size}, {overlap}, or give "
        f"transformations=[SentenceSplitter(chunk_size={size}, chunk_overlap={overlap})]."
    )


def _store(store: Store | str | Path) -> Store:
    if isinstance(store, str | Path):
        return store_at(store)
    if not isinstance(store, Store):
        raise TypeError(
            f"A collection needs a store of cde_rag, found {type(store).__name__}. Give the path of a folder, such as "
            '"papers.faiss", an address of PostgreSQL, or a store of cde_rag.stores.'
        )
    return store


def _result(hits: Sequence[Hit]) -> VectorStoreQueryResult:
    return VectorStoreQueryResult(
        nodes=[node_of(hit) for hit in hits], similarities=[hit.score for hit in hits], ids=[hit.id for hit in hits]
    )


def _ids(node_ids: Sequence[str] | None) -> dict[str, Any] | None:
    return None if node_ids is None else {NODE_ID: {"in": list(node_ids)}}


def _sources(ref_doc_ids: Sequence[str] | None) -> dict[str, Any] | None:
    return None if ref_doc_ids is None else {SOURCE: {"in": list(ref_doc_ids)}}


def _all_of(*filters: dict[str, Any] | None) -> dict[str, Any] | None:
    parts = [part for part in filters if part is not None]
    return {"and": parts} if parts else None
