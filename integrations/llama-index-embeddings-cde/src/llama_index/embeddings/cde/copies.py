"""Copies of a context next to the vectors: in the index store that `persist` writes, in Qdrant, and in the cache."""

import base64
import binascii
from typing import Any

from llama_index.core.indices.base import BaseIndex
from llama_index.core.storage.index_store.keyval_index_store import KVIndexStore
from llama_index.core.storage.kvstore.types import BaseKVStore
from llama_index.embeddings.cde.callers import Caller
from llama_index.embeddings.cde.weak_map import WeakMap

from cde_rag import CDEWarning, Context
from cde_rag.context.cache import cache_or_warn, cached_context, cached_path
from cde_rag.errors import ContextFormatError, ContextMissingError, StoreError, warn_user

COLLECTION = "cde_contexts"  # in the index's key-value store, next to LlamaIndex's own collections

_kept: WeakMap[str] = WeakMap()  # contexts that this process stored, by store


def find(caller: Caller, fingerprint: str) -> Context:
    """Read the context of a caller's vectors from the first place that has it: index store, Qdrant, cache.

    Raises:
        ContextFormatError: The copy is damaged; no other is taken in its place.
        ContextMissingError: No place has it.
    """
    context = _in_index(caller, fingerprint) or _in_qdrant(caller, fingerprint) or cached_context(fingerprint)
    if context is None:
        raise ContextMissingError(
            f"The vectors were made in the context {fingerprint[:16]}…, which is neither stored with them nor in this "
            f"user's cache ({cached_path(fingerprint)}). After cde-rag reembed give the line that it printed, "
            'CDEEmbedding.load("…"). Else bring it from where they were made: embedding.save(path) or '
            'embedding.save_to_qdrant(client, collection) there, CDEEmbedding(context_path="…") or '
            "CDEEmbedding.from_qdrant(client, collection) here; after persist also "
            'CDEEmbedding.from_persist_dir("./storage").'
        )
    if context.fingerprint != fingerprint:
        raise ContextFormatError(
            f"Expected the context {fingerprint[:16]}… with the vectors, found {context.fingerprint[:16]}… under its "
            'name. Load the right one: CDEEmbedding(context_path="…").'
        )
    return context


def keep(caller: Caller, context: Context) -> None:
    """Write a context to the stores that the caller's vectors go to, unless it is there.

    Warns:
        CDEWarning: Qdrant refused it.
    """
    store, fingerprint = _index_store(caller), context.fingerprint
    if store is not None and _kept.get(store) != fingerprint:
        if store.get(fingerprint, collection=COLLECTION) is None:
            content = base64.b64encode(context.to_bytes()).decode("ascii")
            store.put(fingerprint, {"context": content}, collection=COLLECTION)
        _kept.set(store, fingerprint)
    for store in _qdrant(caller):
        if _kept.get(store) != fingerprint:
            _write_to_qdrant(store, context)
            _kept.set(store, fingerprint)


def _write_to_qdrant(store: Any, context: Context) -> None:
    from cde_rag.stores.qdrant import write_context

    try:
        write_context(store.client, store.collection_name, context.to_bytes(), fingerprint=context.fingerprint)
    except StoreError as error:
        warn_user(
            f"The context is not stored with the collection {store.collection_name!r}: {error} This machine finds it "
            "in its cache; for others write it to a file, embedding.save(path).",
            CDEWarning,
        )


def cache(context: Context) -> None:
    """Write a context to the user's cache.

    Warns:
        CDEWarning: The cache is not writable. The context is in memory, and where `persist` writes it.
    """
    advice = "Until then it is lost with this process, unless you persist the index or call embedding.save(path)."
    cache_or_warn(context, otherwise=advice)


def _index_store(caller: Caller) -> BaseKVStore | None:
    """Return the key-value store that persists the caller's index."""
    if not isinstance(caller.index, BaseIndex):
        return None
    store = caller.index.storage_context.index_store
    return store._kvstore if isinstance(store, KVIndexStore) else None  # noqa: SLF001 - no public name


def _in_index(caller: Caller, fingerprint: str) -> Context | None:
    store = _index_store(caller)
    kept = None if store is None else store.get(fingerprint, collection=COLLECTION)
    if kept is None:
        return None
    where = "The context in the index store"
    try:
        content = base64.b64decode(kept["context"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ContextFormatError(
            f"{where}: expected base64 of a context file, found something else ({error}). Restore it from a copy, or "
            'load the context from a file: CDEEmbedding(context_path="…").'
        ) from error
    return Context.from_bytes(content, where=where)


def _qdrant(caller: Caller) -> list[Any]:
    """Return the caller's stores in Qdrant that have a synchronous client."""
    found = [store for store in caller.stores if getattr(store, "dense_vector_name", None) is not None]
    return [store for store in found if store.client is not None]


def _in_qdrant(caller: Caller, fingerprint: str) -> Context | None:
    for store in _qdrant(caller):
        from cde_rag.stores.qdrant import read_context

        try:
            content = read_context(store.client, store.collection_name, fingerprint)
        except ContextMissingError:
            continue
        return Context.from_bytes(content, where=f"The context of the collection {store.collection_name!r}")
    return None
