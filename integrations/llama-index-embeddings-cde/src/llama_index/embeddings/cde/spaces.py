"""Which vector space an index holds: told by a line in its summary, or by the name of its vectors."""

import re
from typing import Any

from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.embeddings.cde.callers import Caller

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
SUMMARY = "Vectors of the cde-rag context {}"


def vector_name(fingerprint: str) -> str:
    """What vectors of this space are called where a store names them; as `cde_rag.stores.qdrant.vector_name`."""
    return f"cde_{fingerprint}"


def mark(struct: IndexStruct | None, fingerprint: str) -> None:
    """Note the space in what the index persists; a summary that the user gave stays."""
    if struct is not None and struct.summary is None:
        struct.summary = SUMMARY.format(fingerprint)


def check(caller: Caller, fingerprint: str | None) -> None:
    """Refuse a call whose vectors would meet those of another space.

    Args:
        caller: Who asks.
        fingerprint: Of the embedding; None while it has no context.

    Raises:
        ContextMismatchError: The index holds vectors of another context, or its store does not name them by theirs.
        ContextMissingError: The store names its vectors, and there is no context to name them by.
        StoreError: The store would name its vectors by nothing.
    """
    found = re.fullmatch(SUMMARY.format("([0-9a-f]{64})"), (caller.struct and caller.struct.summary) or "")
    if found and fingerprint is not None and found[1] != fingerprint:
        raise ContextMismatchError(expected=found[1], found=fingerprint, remedy=REMEDY)
    for store in caller.stores:
        name = getattr(store, "dense_vector_name", None)  # LlamaIndex's QdrantVectorStore, which need not be installed
        if name is not None:
            _check_qdrant(store, name, fingerprint)


def _check_qdrant(store: Any, name: str, fingerprint: str | None) -> None:
    """Refuse a QdrantVectorStore whose vectors are not, or will not be, named by their context."""
    if fingerprint is None:
        raise ContextMissingError(f"The store's vectors are named {name!r}, and there is no context. {NAMED}")
    if name != vector_name(fingerprint):
        raise ContextMismatchError(expected=repr(name), found=vector_name(fingerprint), remedy=NAMED)
    if (
        store.client is not None
        and not store.enable_hybrid
        and not store.client.collection_exists(store.collection_name)
    ):
        raise StoreError(
            f"{store.collection_name}: there is no collection, and LlamaIndex makes one without names. {NAMED}"
        )
