"""Caller of an embedding, from the framework's trace and the call stack, to recognise the build of an index."""

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core import DocumentSummaryIndex, PropertyGraphIndex, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import global_stack_trace_ids
from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseComponent, BaseNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index_instrumentation import DispatcherSpanMixin

WHOLE_CORPUS = (VectorStoreIndex, PropertyGraphIndex, DocumentSummaryIndex)  # others embed piece by piece
BUILD = "index_construction"


@dataclass(frozen=True)
class Caller:
    """Caller of an embedding, according to the call stack and the trace.

    Attributes:
        traces: Names of the framework's open traces, outermost first.
        index: The calling index, or that of a calling retriever.
        pipeline: The calling ingestion pipeline.
        component: Another calling component, such as a splitter, that embeds for its own purposes.
        nodes: Nodes that an index inserts by this call, if they are on the stack; some may have vectors.
        made: Vectors that the index stores with them, by the nodes' ids, if they are on the stack.
        sample: Some nodes that the store has vectors of; see samples.py.
    """

    traces: tuple[str, ...] = field(default_factory=lambda: tuple(global_stack_trace_ids.get()))
    index: BaseIndex[Any] | None = None
    pipeline: IngestionPipeline | None = None
    component: object | None = None
    nodes: Sequence[BaseNode] = ()
    made: dict[str, list[float]] | None = None
    sample: Sequence[BaseNode] = ()

    @property
    def queries(self) -> bool:
        """True if vectors are searched."""
        return isinstance(self.component, BaseRetriever)

    @property
    def builds(self) -> bool:
        """True if a new index is being built."""
        return self.component is None and self.traces[-1:] == (BUILD,) and not self.adds

    @property
    def adds(self) -> bool:
        """True if documents are being added to an existing index."""
        return any(word in trace for trace in self.traces for word in ("insert", "refresh", "update"))

    @property
    def struct(self) -> IndexStruct | None:
        """Persisted struct of the index; None while the index is being built."""
        return None if self.index is None or not hasattr(self.index, "_index_struct") else self.index.index_struct

    @property
    def stores(self) -> list[Any]:
        """Stores that hold the vectors, or will hold them."""
        if self.index is not None:
            context = self.index.storage_context
            return [context.vector_store, context.property_graph_store]
        if self.queries:  # of a PropertyGraphIndex: it knows its stores, not its index
            return [getattr(self.component, name, None) for name in ("_vector_store", "_graph_store")]
        return [] if self.pipeline is None else [self.pipeline.vector_store]


def caller_of(embedding: object) -> Caller:
    """Return the nearest component of the framework on the stack other than the embedding itself."""
    frame, nodes, vectors = inspect.currentframe(), (), None
    while frame is not None:
        owner, made = frame.f_locals.get("self"), frame.f_locals.get("cls")
        if frame.f_code.co_name in ("embed_nodes", "async_embed_nodes"):  # of an index, which is further out
            nodes, vectors = frame.f_locals.get("nodes", ()), frame.f_locals.get("id_to_embed_map")
        if isinstance(made, type) and issubclass(made, BaseIndex):  # from_documents runs the transformations
            return Caller()
        if isinstance(owner, IngestionPipeline):
            return Caller(pipeline=owner)
        if isinstance(owner, BaseIndex):
            return Caller(index=owner, nodes=nodes, made=vectors)
        if isinstance(owner, BaseRetriever) and isinstance(index := getattr(owner, "_index", None), BaseIndex):
            return Caller(index=index, component=owner)
        if owner is not embedding and isinstance(owner, BaseComponent | DispatcherSpanMixin):
            return Caller(component=owner)
        frame = frame.f_back
    return Caller()


def begins(caller: Caller, documents: Collection[str]) -> bool:
    """Return True at the start of a corpus: a new index, or a pipeline's run that is not known to be a later one.

    Args:
        caller: The caller.
        documents: As in `refusal`.
    """
    if caller.pipeline is None:
        return caller.builds
    asked = caller.pipeline.vector_store
    return (asked is None or isinstance(asked, SimpleVectorStore)) and refusal(caller, documents) is None


def refusal(caller: Caller, documents: Collection[str]) -> str | None:
    """Return the reason why no context may be made from the caller's texts; None if it may.

    Args:
        caller: The caller.
        documents: Known ids of the source documents of this call.
    """
    if caller.component is not None:
        return f"{type(caller.component).__name__} asks for vectors of texts that are not the corpus"
    if caller.adds:
        return "These documents are added to an index that exists"
    if caller.index is not None and not (caller.builds and isinstance(caller.index, WHOLE_CORPUS)):
        return f"{type(caller.index).__name__} does not show its whole corpus before the first vector"
    if caller.sample or any(holds_vectors(store) for store in caller.stores):
        return "There are vectors in the store already"
    docstore = None if caller.pipeline is None else caller.pipeline.docstore
    if docstore is not None and not set(docstore.get_all_document_hashes().values()) <= set(documents):
        return "The pipeline's docstore knows documents of earlier runs"
    return None


def is_empty(caller: Caller) -> bool:
    """Return True if the caller is an index that has no vectors yet."""
    return isinstance(caller.index, VectorStoreIndex) and not (
        caller.sample or any(holds_vectors(store) for store in caller.stores)
    )


def holds_vectors(store: object) -> bool:
    """Return True if one of the framework's own stores has vectors; other stores cannot be inspected."""
    if isinstance(store, SimpleVectorStore):
        return bool(store.data.embedding_dict)
    return isinstance(store, SimplePropertyGraphStore) and bool(store.graph.nodes)
