"""Marks of the vector space: on nodes, in LlamaIndex's own stores, and in names of vectors in Qdrant."""

import re
from collections.abc import Iterable
from typing import Any

from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.cde.callers import Caller, holds_vectors
from llama_index.embeddings.cde.weak_map import WeakMap

from cde_rag import CDEWarning
from cde_rag.errors import warn_user

SUMMARY = re.compile("Vectors of the cde-rag context ([0-9a-f]{64})")  # of an index that older versions built
KEY = "cde_context"  # beside the nodes' ids in a SimpleVectorStore's metadata, with which it is persisted
ON_NODE = re.compile(r"cde_context:([0-9a-f]{64})")
NAME = re.compile("cde_([0-9a-f]{64})")  # of a vector in Qdrant

spaces: WeakMap[str] = WeakMap()  # of the stores that this process wrote to or looked at


def mark_nodes(nodes: Iterable[BaseNode], fingerprint: str) -> None:
    """Write the space of a node's vector on the node, which takes it into any store, docstore or cache.

    The mark is in the list of metadata keys that are not embedded: there it changes neither the node's hash nor its
    metadata nor a prompt.
    """
    for node in nodes:
        others = [key for key in node.excluded_embed_metadata_keys if not ON_NODE.fullmatch(key)]
        node.excluded_embed_metadata_keys = [*others, f"cde_context:{fingerprint}"]


def marks_on(nodes: Iterable[BaseNode]) -> set[str]:
    """Return the spaces that nodes are marked with."""
    keys = (key for node in nodes for key in node.excluded_embed_metadata_keys)
    return {found[1] for key in keys if (found := ON_NODE.fullmatch(key))}


def marks_of(caller: Caller) -> set[str]:
    """Return the spaces marked in an index or its stores.

    Where `cde-rag reembed` replaced a store's vectors, its mark alone counts: it changes neither nodes nor indexes.
    """
    if moved := {_read(store) for store in caller.stores if _is_moved(store)}:
        return {mark for mark in moved if mark is not None}
    found = SUMMARY.search((caller.struct and caller.struct.summary) or "")
    marks = {found[1] if found else None} | {named(store) for store in caller.stores}
    if any(holds_vectors(store) for store in caller.stores):
        marks |= {_read(store) for store in caller.stores}
    return {mark for mark in marks if mark is not None} | marks_on(caller.sample)


def named(store: object) -> str | None:
    """Return the space that the vectors of a store in Qdrant are named by."""
    found = NAME.fullmatch(getattr(store, "dense_vector_name", None) or "")  # QdrantVectorStore need not be installed
    return found[1] if found else None


def warn_unmarked(caller: Caller) -> None:
    """Warn of vectors without a mark, which may be of another context or another model."""
    if _unmarked(caller):
        warn_user(
            "There are vectors already, and nothing says in which context they were made: by another embedding, or by "
            "nodes that brought theirs. Vectors of two spaces cannot be compared. "
            "Unless you know that they are of this context, build the index anew with this embedding.",
            CDEWarning,
        )


def mark(caller: Caller, fingerprint: str) -> bool:
    """Write the space into the index's persisted data and on the nodes that come into it.

    Returns:
        False if nothing was marked, since there are unmarked vectors already.
    """
    if _unmarked(caller):
        return False
    mark_nodes((node for node in caller.nodes if node.embedding is None), fingerprint)
    for store in caller.stores:
        _write(store, fingerprint)
    return True


def _unmarked(caller: Caller) -> bool:
    holds = bool(caller.sample) or any(holds_vectors(store) for store in caller.stores)
    return holds and not marks_of(caller)


def _marked(store: SimpleVectorStore) -> dict[str, Any]:
    return (store.data.metadata_dict or {}).get(KEY) or {}


def _is_moved(store: object) -> bool:
    return isinstance(store, SimpleVectorStore) and holds_vectors(store) and bool(_marked(store).get("moved"))


def _read(store: object) -> str | None:
    if isinstance(store, SimpleVectorStore):
        return _marked(store).get("fingerprint")
    return spaces.get(store) if isinstance(store, SimplePropertyGraphStore) else None


def _write(store: object, fingerprint: str) -> None:
    if isinstance(store, SimpleVectorStore):
        store.data.metadata_dict[KEY] = {**_marked(store), "fingerprint": fingerprint}
    elif store is not None:
        spaces.set(store, fingerprint)
