"""Checks of LangChain components that store vectors, or a record that vectors exist.

Some store them under names chosen by the user, some have metadata (stamps.py), some have neither.

If a name does not contain the vector space's fingerprint, vectors of an old and a new context can get mixed. None of
these components asks an embedder for its name. But each of them calls the embedder before it stores anything, so that
it is on the call stack, where its name can be read; a wrong name is refused before the first vector is stored. A store
with neither name nor metadata causes a warning, once.

These checks run only when the embedder is called. A cache that has all texts under another context's names returns that
context's vectors until a query or a new text reaches the embedder. And `index` skips all documents, without a call to
the embedder, if a record manager of another context has seen them; `CDEVectorStore` refuses such a record manager when
its methods are looked up, other stores do not.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.vectorstores import VectorStore

from cde_rag import Context
from cde_rag.errors import CDEWarning, ContextError, StoreError, warn_user
from langchain_cde.space import Role, cache_namespace, record_name, record_namespace
from langchain_cde.stamps import check_chroma, check_faiss, stamp_of_chroma, stamp_of_faiss


class UnstampedStoreWarning(CDEWarning):
    """A vector store keeps nothing that says which context its vectors are of."""


def require_named_space(fingerprint: str, role: Role) -> None:
    """Refuse a cache, record manager or vector store on the call stack that is not of the space.

    Args:
        fingerprint: Fingerprint of the space.
        role: Role of the texts; a store is stamped when documents are embedded.

    Raises:
        ContextError: A name or stamp without the fingerprint, with the remedy.

    Warns:
        UnstampedStoreWarning: A store that has neither; once for each class of store.
    """
    frame, kept, stores = inspect.currentframe(), False, list[type[VectorStore]]()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        check = _KEEPERS.get(module)
        if check is not None:
            check(frame.f_locals, fingerprint, role)
        kept = kept or module in _STORES
        stores += _store_in(frame.f_locals)
        frame = frame.f_back
    if stores and not kept:
        _warn_of(stores[0])


def stamp_of_caller() -> str | None:
    """Return the fingerprint that a vector store on the call stack is stamped with; None without one."""
    frame = inspect.currentframe()
    while frame is not None:
        read = _STAMPED.get(frame.f_globals.get("__name__", ""))
        if read is not None and (fingerprint := read(frame.f_locals)) is not None:
            return fingerprint
        frame = frame.f_back
    return None


def shows_all() -> bool:
    """Return True if a store that is made of texts embeds all of them by this call."""
    return any(module in _MADE_AT_ONCE and name in ("from_texts", "afrom_texts") for module, name, _ in _callers())


def in_qdrant() -> bool:
    """Return True if a store in Qdrant calls."""
    return any(module in _QDRANT for module, _, _ in _callers())


def keep_in_qdrant(context: Context) -> None:
    """Store the context with the Qdrant collection that the calling store writes to, once.

    Warns:
        CDEWarning: Qdrant refused it.
    """
    for module, name, variables in _callers():
        if module not in _QDRANT or name != "add_texts" or _KEPT.get(store := variables["self"]) == context.fingerprint:
            continue
        from cde_rag.stores.qdrant import write_context

        try:
            write_context(store.client, store.collection_name, context.to_bytes(), fingerprint=context.fingerprint)
        except StoreError as error:
            warn_user(
                f"The context is not stored with the collection {store.collection_name!r}: {error} Store it with "
                "embeddings.save_to_qdrant(client, collection), or in a file, embeddings.save(path).",
                CDEWarning,
            )
        _KEPT[store] = context.fingerprint


def _callers() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the module, the name of the function and the variables of each frame on the call stack."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame.f_locals
        frame = frame.f_back


def _store_in(variables: Mapping[str, Any]) -> list[type[VectorStore]]:
    """Return the class of the vector store whose method a frame is, in a list that is empty for other frames."""
    found: object = variables.get("self", variables.get("cls"))
    kind = found if isinstance(found, type) else type(found)
    return [kind] if issubclass(kind, VectorStore) else []


def _warn_of(store: type[VectorStore]) -> None:
    """Warn once about a class of store that cannot be checked."""
    if store not in _WARNED:
        _WARNED.add(store)
        warn_user(
            f"{store.__name__} keeps nothing that says which context its vectors are of: opened with embeddings of "
            "another context, it returns wrong results without an error. Keep its vectors apart by name, and save the "
            "context with them (embeddings.save); or use CDEVectorStore, Qdrant, Chroma or FAISS, where that is an "
            "error.",
            UnstampedStoreWarning,
        )


_WARNED: set[type[VectorStore]] = set()


def _check_cache(variables: Mapping[str, Any], fingerprint: str, _: Role) -> None:
    """Check the key prefixes of a `CacheBackedEmbeddings`, for documents and for queries if these are cached too."""
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


def _check_records(variables: Mapping[str, Any], fingerprint: str, _: Role) -> None:
    """Check the namespace of the record manager of `index` and `aindex`, by which they skip known documents."""
    namespace, expected = variables["record_manager"].namespace, record_namespace(fingerprint, "")
    if expected not in namespace:
        raise ContextError(
            f"A record manager needs a namespace with {expected!r}, or it skips all documents when the context "
            f"changes; found {namespace!r:.200}. "
            f"Make it with namespace=embeddings.record_namespace({record_name(namespace)!r})."
        )


def _check_qdrant(variables: Mapping[str, Any], fingerprint: str, _: Role) -> None:
    """Check the vector name of a `QdrantVectorStore`: an argument during its construction, later an attribute."""
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


_KEEPERS: Mapping[str, Callable[[Mapping[str, Any], str, Role], None]] = {
    "langchain_chroma.vectorstores": check_chroma,
    "langchain_classic.embeddings.cache": _check_cache,
    "langchain_community.vectorstores.faiss": check_faiss,
    "langchain_core.indexing.api": _check_records,
    "langchain_qdrant.qdrant": _check_qdrant,
    "langchain_qdrant.vectorstores": _check_qdrant,
}
_STAMPED: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "langchain_chroma.vectorstores": stamp_of_chroma,
    "langchain_community.vectorstores.faiss": stamp_of_faiss,
}
_QDRANT: Collection[str] = ("langchain_qdrant.qdrant", "langchain_qdrant.vectorstores")
_MADE_AT_ONCE: Collection[str] = ("langchain_community.vectorstores.faiss", "langchain_core.vectorstores.in_memory")
_KEPT: WeakKeyDictionary[VectorStore, str] = WeakKeyDictionary()  # contexts that this process stored, by store
_STORES: Collection[str] = {  # modules of stores that cannot meet another context unseen
    "langchain_cde.vector_store",
    "langchain_chroma.vectorstores",
    "langchain_community.vectorstores.faiss",
    "langchain_qdrant.qdrant",
    "langchain_qdrant.vectorstores",
}
