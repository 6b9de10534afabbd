"""Marks of the vector space: in an index's summary, in the stores of LlamaIndex itself, and on vectors."""

import re
import warnings
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.cde.callers import Caller, holds_vectors

from cde_rag import CDEWarning

SUMMARY = "Vectors of the cde-rag context {}"
KEY = "cde_context"  # beside the nodes' ids in a SimpleVectorStore's metadata, with which it is persisted

_graphs: WeakKeyDictionary[SimplePropertyGraphStore, str] = WeakKeyDictionary()  # these persist nothing of the kind


class SpaceVector(list[float]):
    """A vector that knows its space; in all else the list of floats that LlamaIndex asks for."""

    def __init__(self, numbers: Iterable[float], fingerprint: str) -> None:
        super().__init__(numbers)
        self.fingerprint = fingerprint


def give(node: BaseNode, vector: SpaceVector) -> None:
    """Give a node its embedding; assigned like any other field, it would become a bare list."""
    vars(node)["embedding"] = vector


def marks_on(nodes: Sequence[BaseNode]) -> set[str]:
    """Return the known spaces of the vectors that nodes have."""
    return {node.embedding.fingerprint for node in nodes if isinstance(node.embedding, SpaceVector)}


def marks_of(caller: Caller) -> set[str]:
    """Return the spaces marked in an index or its stores."""
    found = re.search(SUMMARY.format("([0-9a-f]{64})"), (caller.struct and caller.struct.summary) or "")
    marks = {found[1] if found else None}
    if any(holds_vectors(store) for store in caller.stores):
        marks |= {_read(store) for store in caller.stores}
    return {mark for mark in marks if mark is not None}


def warn_unmarked(caller: Caller) -> None:
    """Warn of vectors without a mark, which may be of another context or another model."""
    if _unmarked(caller):
        warnings.warn(
            "There are vectors already, and nothing says in which context they were made: by another embedding, by "
            "nodes that brought theirs, or the index's summary was replaced. Vectors of two spaces cannot be compared. "
            "Unless you know that they are of this context, build the index anew with this embedding.",
            CDEWarning,
            stacklevel=2,
        )


def mark(caller: Caller, fingerprint: str) -> None:
    """Write the space into the index's persisted data, unless it has unmarked vectors or a summary of the user."""
    if _unmarked(caller):
        return
    for store in caller.stores:
        _write(store, fingerprint)
    if caller.struct is not None and caller.struct.summary is None and (caller.builds or _nodes(caller) == 0):
        caller.struct.summary = SUMMARY.format(fingerprint)


def _unmarked(caller: Caller) -> bool:
    return bool(_nodes(caller) or any(holds_vectors(store) for store in caller.stores)) and not marks_of(caller)


def _nodes(caller: Caller) -> int | None:
    """Return the number of nodes that an index has vectors of; None if only its store knows it."""
    if caller.index is None or not isinstance(caller.struct, IndexDict):
        return None
    return None if caller.index.storage_context.vector_store.stores_text else len(caller.struct.nodes_dict)


def _read(store: object) -> str | None:
    if isinstance(store, SimpleVectorStore):
        return (store.data.metadata_dict or {}).get(KEY, {}).get("fingerprint")
    return _graphs.get(store) if isinstance(store, SimplePropertyGraphStore) else None


def _write(store: object, fingerprint: str) -> None:
    if isinstance(store, SimpleVectorStore):
        store.data.metadata_dict[KEY] = {"fingerprint": fingerprint}
    elif isinstance(store, SimplePropertyGraphStore):
        _graphs[store] = fingerprint
