"""Those of LangChain's parts that keep vectors, or the memory that they exist, under names which the user chooses.

A name that does not tell the vector space lets a later context meet the vectors of an earlier one. None of these parts
asks an embedder what it should be called. But each of them calls the embedder before it has anything to keep, so that
it stands on the call stack, where its name can be read; a wrong name is refused before the first vector is kept.

Who is not called sees nothing. A cache that has all texts under another context's names gives out that context's
vectors, until a query or a new text reaches the embedder. And `index` skips, for a record manager of another context
that has seen all documents, without a call to the embedder; `CDEVectorStore` refuses it when its methods are looked up,
the stores of others do not.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from cde_rag import ContextError
from langchain_cde.space import Role, cache_namespace, record_name, record_namespace


def require_named_space(fingerprint: str) -> None:
    """Refuse a cache, a record manager or a Qdrant collection on the call stack whose names do not tell the space.

    Args:
        fingerprint: Of the space.

    Raises:
        ContextError: A name without the fingerprint, with the one to give.
    """
    frame = inspect.currentframe()
    while frame is not None:
        check = _KEEPERS.get(frame.f_globals.get("__name__", ""))
        if check is not None:
            check(frame.f_locals, fingerprint)
        frame = frame.f_back


def _check_cache(variables: Mapping[str, Any], fingerprint: str) -> None:
    """`CacheBackedEmbeddings`: the keys of documents, and those of queries where these are kept too."""
    cache = variables["self"]
    stores: dict[Role, Any] = {"document": cache.document_embedding_store, "query": cache.query_embedding_store}
    for kept, store in stores.items():
        if store is None:
            continue
        encode = getattr(store, "key_encoder", str)  # a store without one has the texts themselves for keys
        expected, found = cache_namespace(fingerprint, kept), encode("text")
        if expected not in found:
            remedy = {
                "document": "Give CacheBackedEmbeddings.from_bytes_store namespace=embeddings.cache_namespace().",
                "query": "Leave query_embedding_cache out, or give CacheBackedEmbeddings a query_embedding_store whose "
                "keys begin with embeddings.cache_namespace('query').",
            }
            raise ContextError(
                f"A cache of {kept} vectors needs keys with {expected!r}, or vectors of another context or role come "
                f"out of it; found keys such as {found!r:.200}. {remedy[kept]}"
            )


def _check_records(variables: Mapping[str, Any], fingerprint: str) -> None:
    """`index` and `aindex`: the record manager, which makes them skip what it has seen."""
    namespace, expected = variables["record_manager"].namespace, record_namespace(fingerprint, "")
    if expected not in namespace:
        raise ContextError(
            f"A record manager needs a namespace with {expected!r}, or it skips all documents when the context "
            f"changes; found {namespace!r:.200}. "
            f"Make it with namespace=embeddings.record_namespace({record_name(namespace)!r})."
        )


def _check_qdrant(variables: Mapping[str, Any], fingerprint: str) -> None:
    """`QdrantVectorStore`: the name of the vector, an argument while the store is made and an attribute later."""
    from cde_rag.stores.qdrant import vector_name

    if "vector_name" not in variables and "self" not in variables:
        return
    found = variables["vector_name"] if "vector_name" in variables else variables["self"].vector_name
    expected = vector_name(fingerprint)
    if found != expected:
        raise ContextError(
            f"In Qdrant a vector of this context is named {expected!r}, so that Qdrant itself refuses those of others; "
            f"found {found!r:.200}. Give QdrantVectorStore vector_name=embeddings.vector_name."
        )


_KEEPERS: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
    "langchain_classic.embeddings.cache": _check_cache,
    "langchain_core.indexing.api": _check_records,
    "langchain_qdrant.qdrant": _check_qdrant,
    "langchain_qdrant.vectorstores": _check_qdrant,
}
