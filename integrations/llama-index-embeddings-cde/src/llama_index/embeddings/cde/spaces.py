"""Checks of marks and names before embedding, so that vectors of two spaces are never mixed."""

from llama_index.embeddings.cde.callers import Caller
from llama_index.embeddings.cde.marks import marks_of, marks_on, warn_unmarked

from cde_rag.errors import ContextMismatchError

REMEDY = (
    "Give the index that you load an embedding of its own: load_index_from_storage(storage_context, "
    "embed_model=CDEEmbedding()), or VectorStoreIndex.from_vector_store(…) with it, which finds the context of the "
    'vectors. One that is in a file, such as that of cde-rag reembed: CDEEmbedding.load("…"). For a new corpus make '
    "one: CDEEmbedding.from_documents(documents)."
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

    Warns:
        CDEWarning: There are vectors without a mark.
    """
    if fingerprint is not None:
        for mark in marks_of(caller) - {fingerprint}:
            raise ContextMismatchError(expected=mark, found=fingerprint, remedy=REMEDY)
        warn_unmarked(caller)


def check_brought(caller: Caller, fingerprint: str | None) -> None:
    """Refuse nodes that come into an index with vectors of another space than its embedding's.

    Raises:
        ContextMismatchError: They were made in another context.
    """
    brought = (node for node in caller.nodes if node.embedding is not None)
    for mark in marks_on(brought) - {fingerprint}:
        remedy = "The nodes were embedded by another CDEEmbedding: give the index that one, or embed them anew."
        raise ContextMismatchError(expected=fingerprint or "", found=mark, remedy=remedy)


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
        raise ContextMismatchError(expected=of_index or "", found=of_step or "", remedy=remedy)
