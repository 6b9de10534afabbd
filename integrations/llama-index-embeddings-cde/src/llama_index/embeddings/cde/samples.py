"""Samples of nodes, whose marks name the context of the vectors that a store has already."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from llama_index.core import PropertyGraphIndex
from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.vector_stores import VectorStoreQuery
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from llama_index.embeddings.cde.callers import Caller
from llama_index.embeddings.cde.marks import named

from cde_rag import CDEWarning
from cde_rag.errors import ContextMissingError, warn_user

SIZE = 16  # nodes; any vector's nearest neighbours are as good as others


def sampled_store(caller: Caller) -> BasePydanticVectorStore | None:
    """Return the caller's store, unless it embeds by itself or its vectors are named by their context.

    The vectors of a knowledge graph belong to names, which carry no mark.
    """
    if caller.pipeline is None and (caller.index is None or isinstance(caller.index, PropertyGraphIndex)):
        return None
    for store in caller.stores:
        if isinstance(store, BasePydanticVectorStore):
            return store if store.is_embedding_query and named(store) is None else None
    return None


def sample(caller: Caller, store: BasePydanticVectorStore, dim: int) -> Caller:
    """Return the caller with a sample of its store's nodes.

    Args:
        caller: The caller.
        store: Its store.
        dim: Length of a vector.

    Raises:
        ContextMissingError: The store refuses a search, before a query.

    Warns:
        CDEWarning: The store refuses a search, before an insert.
    """
    if not store.stores_text:
        return _from_docstore(caller)
    found = VectorStoreQueryResult()
    with _refusals(caller, store, dim):
        found = store.query(_query(dim))
    return replace(caller, sample=tuple(found.nodes or ()))


async def asample(caller: Caller, store: BasePydanticVectorStore, dim: int) -> Caller:
    """Call `sample` with an asynchronous search."""
    if not store.stores_text:
        return await asyncio.to_thread(_from_docstore, caller)
    found = VectorStoreQueryResult()
    with _refusals(caller, store, dim):
        found = await store.aquery(_query(dim))
    return replace(caller, sample=tuple(found.nodes or ()))


def _from_docstore(caller: Caller) -> Caller:
    """Take the sample from an index's own nodes, for a store that keeps vectors only."""
    if caller.index is None or not isinstance(caller.struct, IndexDict):
        return caller
    ids = list(islice(caller.struct.nodes_dict.values(), SIZE))
    return replace(caller, sample=tuple(caller.index.docstore.get_nodes(ids, raise_error=False)))


def _query(dim: int) -> VectorStoreQuery:
    return VectorStoreQuery(query_embedding=[1.0] + [0.0] * (dim - 1), similarity_top_k=SIZE)


@contextmanager
def _refusals(caller: Caller, store: BasePydanticVectorStore, dim: int) -> Generator[None, None, None]:
    """Interpret the error of a store that is searched: nothing in a new one, an obstacle to a query."""
    try:
        yield
    except Exception as error:  # each store has its own for a collection that does not exist yet
        said = f"{type(store).__name__} cannot be searched for the context of its vectors: {error!r}."
        if caller.queries:
            raise ContextMissingError(
                f"{said} The search was for a vector of length {dim}; if its vectors are of another model, give "
                'CDEEmbedding(model_name="…"); of your own embedding, CDEEmbedding(model=…).'
            ) from error
        if not caller.builds and caller.pipeline is None:
            warn_user(f"{said} If it is new, that is as it should be.", CDEWarning)
