"""Contexts beside a Qdrant collection: opaque bytes, in chunks, in a collection of their own.

    papers__cde_contexts     points without vectors
        a head               fingerprint, sha256, bytes and number of chunks of one context; it is written last
        a chunk              a part of the bytes in base64

The collection that they belong to can be anyone's, and need not exist yet. With a `cde_rag.Context`:

    write_context(client, "papers", context.to_bytes(), fingerprint=context.fingerprint)
    context = Context.from_bytes(read_context(client, "papers"), where="the collection 'papers'")
"""

import base64
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, Final, cast

from qdrant_client import QdrantClient, models

from cde_rag.errors import ContextFormatError, ContextMissingError, StoreError
from cde_rag.stores.qdrant.calls import call, call_if_found

CONTEXTS: Final = "__cde_contexts"  # behind the name of the collection
METADATA: Final = "cde"  # our key in a collection's metadata
_CHUNK_BYTES: Final = 2**19
_NAMES: Final = uuid.UUID("5c0a1f3e-6a52-4d0f-9a5b-2b8c1f0c7d11")  # namespace of the points' ids
_MOST: Final = 10_000  # contexts listed


def concrete(client: QdrantClient, collection: str) -> str:
    """Name of the collection that `collection` is an alias of; itself where it is no alias."""
    for alias in call(client.get_aliases).aliases:
        if alias.alias_name == collection:
            return alias.collection_name
    return collection


def write_context(client: QdrantClient, collection: str, context: bytes, *, fingerprint: str) -> None:
    """Keep a context beside a collection, in place of one of the same fingerprint.

    A reader finds the whole old one or the whole new one, also after a kill.

    Args:
        client: Of a server, or in local mode.
        collection: Name of the collection or an alias of it; it need not exist.
        context: Any bytes.
        fingerprint: Of the context, 64 hex digits.

    Raises:
        StoreError: Qdrant refused it.
    """
    name = contexts_beside(client, collection)
    sha256 = hashlib.sha256(context).hexdigest()
    parts = [context[start : start + _CHUNK_BYTES] for start in range(0, len(context), _CHUNK_BYTES)]
    for number, part in enumerate(parts):
        data = base64.b64encode(part).decode("ascii")
        _put(
            client,
            name,
            _chunk_id(fingerprint, sha256, number),
            {"fingerprint": fingerprint, "sha256": sha256, "data": data},
        )
    head = {"fingerprint": fingerprint, "head": sha256, "bytes": len(context), "chunks": len(parts)}
    _put(client, name, _head_id(fingerprint), head)
    _delete(client, name, must=[_equal("fingerprint", fingerprint)], must_not=_belongs(sha256))


def read_context(client: QdrantClient, collection: str, fingerprint: str | None = None) -> bytes:
    """The bytes that `write_context` was given.

    Args:
        client: Of a server, or in local mode.
        collection: Name of the collection or an alias of it.
        fingerprint: Of the context; without one, that in the collection's metadata, else the only one there is.

    Raises:
        ContextMissingError: There is none, or there are several to choose from.
        ContextFormatError: It is not as it was written.
        StoreError: Qdrant refused it.
    """
    collection = concrete(client, collection)
    name = collection + CONTEXTS
    wanted = fingerprint or _active(client, collection) or _only(client, name)
    head = _head(client, name, wanted)
    while True:
        context = _joined(client, name, wanted, head)
        if context is not None:
            return context
        before, head = head, _head(client, name, wanted)
        if head == before:  # nobody replaced it while it was read
            raise ContextFormatError(
                f"{name}: expected the context {wanted[:16]}… with its sha256, found missing or damaged chunks. "
                "Write it again with write_context, or restore a snapshot."
            )


def delete_context(client: QdrantClient, collection: str, fingerprint: str) -> None:
    """Remove a context; nothing where there is none."""
    name = concrete(client, collection) + CONTEXTS
    if call(lambda: client.collection_exists(name)):
        _delete(client, name, must=[_equal("fingerprint", fingerprint)])


def metadata_of(client: QdrantClient, collection: str) -> Mapping[str, Any] | None:
    """A collection's metadata; None where there is no such collection."""
    found = call_if_found(lambda: client.get_collection(collection))
    return None if found is None else found.config.metadata or {}


def contexts_beside(client: QdrantClient, collection: str) -> str:
    """Name of the collection with the contexts of another one; it is made where it is not there."""
    name = concrete(client, collection) + CONTEXTS
    if call(lambda: client.collection_exists(name)):
        return name
    try:
        call(lambda: client.create_collection(name, vectors_config={}))
    except (StoreError, ValueError):
        if not call(lambda: client.collection_exists(name)):  # if it is there now, another writer was faster
            raise
    return name


def _put(client: QdrantClient, name: str, id_: str, payload: dict[str, Any]) -> None:
    point = models.PointStruct(id=id_, vector={}, payload=payload)
    call(lambda: client.upsert(name, [point], wait=True))


def _delete(
    client: QdrantClient, name: str, *, must: list[models.Condition], must_not: list[models.Condition] | None = None
) -> None:
    which = models.FilterSelector(filter=models.Filter(must=must, must_not=must_not))
    call(lambda: client.delete(name, which, wait=True))


def _belongs(sha256: str) -> list[models.Condition]:
    return [_equal("sha256", sha256), _equal("head", sha256)]


def _equal(key: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def _active(client: QdrantClient, collection: str) -> str | None:
    """The fingerprint in the collection's metadata."""
    ours = (metadata_of(client, collection) or {}).get(METADATA)
    fingerprint = cast(Mapping[str, object], ours).get("fingerprint") if isinstance(ours, Mapping) else None
    return fingerprint if isinstance(fingerprint, str) else None


def _only(client: QdrantClient, name: str) -> str:
    heads = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="head"))])
    found = call_if_found(lambda: client.scroll(name, heads, limit=_MOST, with_payload=["fingerprint"]))
    fingerprints = [str((head.payload or {}).get("fingerprint")) for head in (found[0] if found else [])]
    if len(fingerprints) == 1:
        return fingerprints[0]
    if not fingerprints:
        raise ContextMissingError(f"{name}: expected a context, found none. Keep one there with write_context.")
    listed = ", ".join(sorted(fingerprints)[:5])
    raise ContextMissingError(f"{name}: expected one context, found {len(fingerprints)}: {listed}. Name one.")


def _head(client: QdrantClient, name: str, fingerprint: str) -> Mapping[str, Any]:
    found = call_if_found(lambda: client.retrieve(name, [_head_id(fingerprint)], with_payload=True))
    if not found:
        hint = "Keep it there with write_context."
        raise ContextMissingError(f"{name}: expected the context {fingerprint[:16]}…, found none of that name. {hint}")
    return found[0].payload or {}


def _joined(client: QdrantClient, name: str, fingerprint: str, head: Mapping[str, Any]) -> bytes | None:
    """The bytes that a head tells of; None where they are not all there or not as they were."""
    sha256, size, chunks = head.get("head"), head.get("bytes"), head.get("chunks")
    if not (isinstance(sha256, str) and isinstance(size, int) and isinstance(chunks, int)):
        return None
    parts: list[bytes] = []
    for number in range(chunks):
        id_ = _chunk_id(fingerprint, sha256, number)
        found = call_if_found(lambda id_=id_: client.retrieve(name, [id_], with_payload=["data"]))
        data = (found[0].payload or {}).get("data") if found else None
        if not isinstance(data, str):
            return None
        try:
            parts.append(base64.b64decode(data, validate=True))
        except ValueError:
            return None
    context = b"".join(parts)
    return context if len(context) == size and hashlib.sha256(context).hexdigest() == sha256 else None


def _head_id(fingerprint: str) -> str:
    return str(uuid.uuid5(_NAMES, f"head {fingerprint}"))


def _chunk_id(fingerprint: str, sha256: str, number: int) -> str:
    return str(uuid.uuid5(_NAMES, f"chunk {fingerprint} {sha256} {number}"))
