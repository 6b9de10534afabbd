"""Stamps of the vector space in LangChain's stores that keep metadata: Chroma's collections, FAISS' docstores.

A store is stamped when the first texts are added to it, and refused to embeddings of another space from then on. Like
the names of keepers.py, it is found on the call stack of the embeddings. FAISS keeps a document of its own for it, in
its docstore under the id `cde_fingerprint`, which is in no index and so in no result.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from langchain_core.documents import Document

from cde_rag.errors import ContextError, ContextMismatchError, ContextMissingError
from cde_rag.stamps import KEY, stamped
from cde_rag.stamps import stamp as stamp_of
from langchain_cde.space import Role


def stamp(store: object, fingerprint: str, *, replace: bool) -> None:
    """Write the stamp into a store; see `CDEEmbeddings.stamp`.

    Raises:
        ContextMismatchError: It has the stamp of another space, and that is not to be replaced.
        TypeError: It is no FAISS or Chroma store, which are those that keep a stamp.
    """
    found: Any = store
    kind = {(each.__module__, each.__name__) for each in type(store).__mro__}
    if ("langchain_community.vectorstores.faiss", "FAISS") in kind:
        there, put = _docstore_metadata(found.docstore), partial(_stamp_docstore, found.docstore)
    elif ("langchain_chroma.vectorstores", "Chroma") in kind:
        collection = _opened(found)
        there, put = collection.metadata, partial(_stamp_collection, collection)
    else:
        raise TypeError(f"Expected LangChain's FAISS or Chroma, which keep a stamp, found {type(store).__name__}.")
    if not replace and (other := stamped(there)) not in (None, fingerprint):
        remedy = "Where these embeddings made its vectors all the same: embeddings.stamp(store, replace=True)."
        raise ContextMismatchError(expected=str(other), found=fingerprint, remedy=remedy)
    put(fingerprint)


def stamp_of_faiss(variables: Mapping[str, Any]) -> str | None:
    """Return the fingerprint that a `FAISS` store is stamped with; None without a store or stamp."""
    return stamped(_docstore_metadata(variables["self"].docstore)) if "self" in variables else None


def stamp_of_chroma(variables: Mapping[str, Any]) -> str | None:
    """Return the fingerprint that a `Chroma` store is stamped with; None without a store or stamp."""
    return stamped(_opened(variables["self"]).metadata) if "self" in variables else None


def check_faiss(variables: Mapping[str, Any], fingerprint: str, role: Role) -> None:
    """Check the stamp of a `FAISS` store in its docstore, which is an argument while the store is constructed."""
    if "self" in variables:
        store = variables["self"]
        _check(_docstore_metadata(store.docstore), fingerprint, "this FAISS index", empty=not store.index.ntotal)
        docstore = store.docstore
    elif "kwargs" in variables:  # of from_texts
        from langchain_community.docstore.in_memory import InMemoryDocstore

        docstore = variables["kwargs"].setdefault("docstore", InMemoryDocstore())
        _check(_docstore_metadata(docstore), fingerprint, "the docstore that was given", empty=True)
    else:
        return
    if role == "document" and stamped(_docstore_metadata(docstore)) is None:
        _stamp_docstore(docstore, fingerprint)


def check_chroma(variables: Mapping[str, Any], fingerprint: str, role: Role) -> None:
    """Check the stamp of a `Chroma` store in its collection's metadata."""
    if "self" not in variables:
        return
    collection = _opened(variables["self"])
    where = f"the Chroma collection {collection.name!r}"
    _check(collection.metadata, fingerprint, where, empty=not collection.count())
    if role == "document" and stamped(collection.metadata) is None:
        _stamp_collection(collection, fingerprint)
        _check(_opened(variables["self"]).metadata, fingerprint, where, empty=True)


def _check(metadata: Mapping[str, Any] | None, fingerprint: str, where: str, *, empty: bool) -> None:
    """Refuse a stamp of another space, and a store that has vectors and no stamp."""
    found = stamped(metadata)
    if found == fingerprint or (found is None and empty):
        return
    if found is None:
        raise ContextMissingError(
            f"Expected a stamp in {where}, which says of which context its vectors are, found none. If these "
            "embeddings made them: embeddings.stamp(store). Else make the store anew of the texts."
        )
    remedy = (
        f"Use {where} with the embeddings that filled it, such as CDEEmbeddings.load(path) of their context; or make "
        "it anew of the texts. One that was emptied: embeddings.stamp(store, replace=True)."
    )
    raise ContextMismatchError(expected=found, found=fingerprint, remedy=remedy)


def _docstore_metadata(docstore: Any) -> Mapping[str, Any] | None:
    mark = docstore.search(KEY)  # a sentence where there is none
    return mark.metadata if isinstance(mark, Document) else None


def _opened(store: Any) -> Any:
    """Return the current collection of a Chroma store.

    Raises:
        ContextError: Another collection has its name now.
    """
    held = store._collection  # noqa: SLF001 (Chroma has no public name for it)
    now = store._client.get_collection(held.name, embedding_function=None)  # noqa: SLF001 (likewise)
    if now.id != held.id:
        raise ContextError(
            f"Expected the Chroma collection {held.name!r} that was opened, found another of that name: it was renamed "
            "or made anew. Open it again."
        )
    return now


def _stamp_docstore(docstore: Any, fingerprint: str) -> None:
    if isinstance(docstore.search(KEY), Document):
        docstore.delete([KEY])
    text = f"The vectors of this index are of the space {fingerprint} (cde-rag)."
    docstore.add({KEY: Document(page_content=text, metadata=stamp_of(fingerprint))})


def _stamp_collection(collection: Any, fingerprint: str) -> None:
    kept = {key: value for key, value in (collection.metadata or {}).items() if key != "hnsw:space"}  # fixed for good
    collection.modify(metadata=kept | stamp_of(fingerprint))
