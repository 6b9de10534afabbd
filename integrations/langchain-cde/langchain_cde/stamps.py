"""Stamps of the vector space in LangChain's stores that keep metadata: Chroma's collections, FAISS' docstores.

A store is stamped when the first texts are added to it, and refused to embeddings of another space from then on. Like
the names of keepers.py, it is found on the call stack of the embeddings. FAISS keeps a document of its own for it, in
its docstore under the id `cde_fingerprint`, which is in no index and so in no result.
"""

from collections.abc import Mapping
from typing import Any

from langchain_core.documents import Document

from cde_rag.fingerprint import KEY, check
from cde_rag.fingerprint import stamp as stamp_of
from langchain_cde.space import Role


def stamp(store: object, fingerprint: str) -> None:
    """Write the stamp into a store that has vectors already; see `CDEEmbeddings.stamp`.

    Raises:
        TypeError: It is no FAISS or Chroma store, which are those that keep a stamp.
    """
    found: Any = store
    kind = {(each.__module__, each.__name__) for each in type(store).__mro__}
    if ("langchain_community.vectorstores.faiss", "FAISS") in kind:
        _stamp_docstore(found.docstore, fingerprint)
    elif ("langchain_chroma.vectorstores", "Chroma") in kind:
        _stamp_collection(found._collection, fingerprint)  # noqa: SLF001 (Chroma has no public name for it)
    else:
        raise TypeError(f"Expected LangChain's FAISS or Chroma, which keep a stamp, found {type(store).__name__}.")


def check_faiss(variables: Mapping[str, Any], fingerprint: str, role: Role) -> None:
    """`FAISS`: its docstore; that of one which is being made goes to its constructor as an argument."""
    if "self" not in variables:
        if "kwargs" in variables:  # of from_texts
            from langchain_community.docstore.in_memory import InMemoryDocstore

            _stamp_docstore(variables["kwargs"].setdefault("docstore", InMemoryDocstore()), fingerprint)
        return
    store = variables["self"]
    if not store.index.ntotal:
        if role == "document":
            _stamp_docstore(store.docstore, fingerprint)
        return
    mark = store.docstore.search(KEY)  # a sentence where there is none
    check(mark.metadata if isinstance(mark, Document) else None, fingerprint, where="This FAISS index")


def check_chroma(variables: Mapping[str, Any], fingerprint: str, role: Role) -> None:
    """`Chroma`: the metadata of its collection."""
    if "self" not in variables:
        return
    store = variables["self"]
    name = store._collection.name  # noqa: SLF001 (as above)
    now = store._client.get_collection(name)  # noqa: SLF001 (another process may have filled it since)
    if now.count():
        check(now.metadata, fingerprint, where=f"The Chroma collection {now.name!r}")
    elif role == "document":
        _stamp_collection(now, fingerprint)


def _stamp_docstore(docstore: Any, fingerprint: str) -> None:
    if isinstance(docstore.search(KEY), Document):
        docstore.delete([KEY])
    text = f"The vectors of this index are of the space {fingerprint} (cde-rag)."
    docstore.add({KEY: Document(page_content=text, metadata=stamp_of(fingerprint))})


def _stamp_collection(collection: Any, fingerprint: str) -> None:
    kept = {key: value for key, value in (collection.metadata or {}).items() if key != "hnsw:space"}  # fixed for good
    collection.modify(metadata=kept | stamp_of(fingerprint))
