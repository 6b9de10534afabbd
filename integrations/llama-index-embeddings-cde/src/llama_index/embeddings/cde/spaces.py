"""Checks of marks and names before embedding, so that vectors of two spaces are never mixed."""

from typing import Any

from llama_index.embeddings.cde.callers import Caller
from llama_index.embeddings.cde.marks import marks_of, marks_on, warn_unmarked

from cde_rag import ContextMismatchError, ContextMissingError, StoreError

REMEDY = (
    'Load the context that was saved with the vectors: CDEEmbedding(context_path="…"), '
    'CDEEmbedding.from_persist_dir("./storage") or CDEEmbedding.from_qdrant(client, collection). '
    "For a new corpus make one: CDEEmbedding.from_documents(documents)."
)
NAMED = (
    "Have the context first, and name the vectors by it: embedding = CDEEmbedding.from_documents(documents), or "
    "from_qdrant(client, collection); client.create_collection(collection, vectors_config={embedding.vector_name: "
    "VectorParams(size=embedding.dim, distance=Distance.COSINE)}); QdrantVectorStore(collection, client=client, "
    "dense_vector_name=embedding.vector_name)."
)


def vector_name(fingerprint: str) -> str:
    """Return the name of this space's vectors in stores with named vectors; as in `cde_rag.stores.qdrant`."""
    return f"cde_{fingerprint}"


def check(caller: Caller, fingerprint: str | None) -> None:
    """Refuse a call whose vectors would meet those of another space.

    Args:
        caller: Who asks.
        fingerprint: Fingerprint of the embedding; None while it has no context.

    Raises:
        ContextMismatchError: The index or store has vectors of another context, or names them by another.
        ContextMissingError: The store names its vectors, and there is no context to name them by.
        StoreError: The store would create unnamed vectors.

    Warns:
        CDEWarning: There are vectors without a mark.
    """
    if fingerprint is not None:
        for mark in marks_of(caller) - {fingerprint}:
            raise ContextMismatchError(expected=mark, found=fingerprint, remedy=REMEDY)
        warn_unmarked(caller)
    for store in caller.stores:
        name = getattr(store, "dense_vector_name", None)  # LlamaIndex's QdrantVectorStore, which need not be installed
        if name is not None:
            _check_qdrant(store, name, fingerprint)


def check_brought(caller: Caller, fingerprint: str | None) -> None:
    """Refuse nodes that come into an index with vectors of another space than its embedding's.

    Raises:
        ContextMismatchError: They were made in another context.
    """
    for mark in marks_on(caller.nodes) - {fingerprint}:
        remedy = "The nodes were embedded by another CDEEmbedding: give the index that one, or embed them anew."
        raise ContextMismatchError(expected=str(fingerprint), found=mark, remedy=remedy)


def check_alike(of_index: str | None, of_step: str | None) -> None:
    """Refuse a transformation whose vectors an index would search with another embedding.

    Args:
        of_index: Fingerprint of the embedding that the index was given as `embed_model`.
        of_step: Fingerprint of the transformation.

    Raises:
        ContextMismatchError: The two are not of one context.
    """
    if of_step != of_index:
        remedy = "Give the build one and the same CDEEmbedding, in transformations and as embed_model."
        raise ContextMismatchError(expected=str(of_index), found=str(of_step), remedy=remedy)


def _check_qdrant(store: Any, name: str, fingerprint: str | None) -> None:
    """Refuse a QdrantVectorStore whose vectors are not, or will not be, named by their context."""
    if fingerprint is None:
        raise ContextMissingError(f"The store's vectors are named {name!r}, and there is no context. {NAMED}")
    if name != vector_name(fingerprint):
        raise ContextMismatchError(expected=repr(name), found=vector_name(fingerprint), remedy=NAMED)
    if _may_forget(store) and store.client is not None and not store.client.collection_exists(store.collection_name):
        raise _forgotten(store)


async def check_async_client(caller: Caller) -> None:
    """Refuse a missing collection, like `check`, if the store has an asynchronous client only.

    Raises:
        StoreError: The store would create unnamed vectors.
    """
    for store in caller.stores:
        if _may_forget(store) and store.client is None:
            client = store._aclient  # noqa: SLF001 - it shows the synchronous one only
            if not await client.collection_exists(store.collection_name):
                raise _forgotten(store)


def _may_forget(store: Any) -> bool:
    """Return True if a store is LlamaIndex's for Qdrant, and would create a collection with unnamed vectors."""
    return getattr(store, "dense_vector_name", None) is not None and not store.enable_hybrid


def _forgotten(store: Any) -> StoreError:
    return StoreError(
        f"{store.collection_name}: there is no collection, and LlamaIndex makes one without names. {NAMED}"
    )
