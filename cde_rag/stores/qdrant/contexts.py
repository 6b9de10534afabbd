"""Contexts stored with a Qdrant collection: opaque bytes, in chunks, in a collection of their own.

    papers__cde_contexts     points without vectors
        a head               fingerprint, sha256, bytes and number of chunks of one context; it is written last
        a chunk              a part of the bytes in base64
        the manifest         of a store of ours; see manifest.py
        the lease            of a run; see lease.py

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
from cde_rag.stores.qdrant_base.manifest import PointsManifest

CONTEXTS: Final = "__cde_contexts"  # suffix of the collection's name
METADATA: Final = "cde"  # our key in a collection's metadata
MANIFEST_ID: Final = "7a1de2b6-33f5-4a27-9a37-4f0d5e6f0b52"  # of the point with a store's manifest
_CHUNK_BYTES: Final = 2**19
_NAMES: Final = uuid.UUID("5c0a1f3e-6a52-4d0f-9a5b-2b8c1f0c7d11")  # namespace of the points' ids
_MOST: Final = 10_000  # contexts listed
_TRIES: Final = 8  # to read one that is replaced meanwhile
_EMPTY_HEAD: Final = models.IsEmptyCondition(is_empty=models.PayloadField(key="head"))


def concrete(client: QdrantClient, collection: str) -> str:
    """Name of the collection that `collection` is an alias of; itself where it is no alias."""
    for alias in call(client.get_aliases).aliases:
        if alias.alias_name == collection:
            return alias.collection_name
    return collection


def write_context(
    client: QdrantClient, collection: str, context: bytes, *, fingerprint: str, key: str | None = None
) -> None:
    """Store a context with a collection; replaces one of the same fingerprint.

    A reader finds the complete old one or the complete new one, also after a crash.

    Args:
        client: Client of a server, or in local mode.
        collection: Name of the collection or an alias of it; it need not exist.
        context: Any bytes.
        fingerprint: Fingerprint of the context, 64 hex digits.
        key: Key that begins with the fingerprint, to store several contexts of it; by default the fingerprint.

    Raises:
        StoreError: Qdrant refused it.
    """
    name = contexts_collection(client, collection)
    sha256 = hashlib.sha256(context).hexdigest()
    parts = [context[start : start + _CHUNK_BYTES] for start in range(0, len(context), _CHUNK_BYTES)]
    key = fingerprint if key is None else key
    for number, part in enumerate(parts):
        data = base64.b64encode(part).decode("ascii")
        _put(
            client,
            name,
            _chunk_id(key, sha256, number),
            {"fingerprint": fingerprint, "key": key, "sha256": sha256, "data": data},
        )
    head = {
        "fingerprint": fingerprint,
        "key": key,
        "head": sha256,
        "bytes": len(context),
        "chunks": len(parts),
    }
    _put(client, name, _head_id(key), head)
    _delete(client, name, must=[_of(key)], must_not=_belongs(sha256))


def read_context(client: QdrantClient, collection: str, fingerprint: str | None = None) -> bytes:
    """Read the bytes stored by `write_context`.

    Args:
        client: Client of a server, or in local mode.
        collection: Name of the collection or an alias of it.
        fingerprint: Fingerprint of the context; by default that in the collection's metadata, else the only one.

    Raises:
        ContextMissingError: There is none, or there are several and no `fingerprint` is given.
        ContextFormatError: It is damaged.
        StoreError: Qdrant refused it.
    """
    collection = concrete(client, collection)
    name = collection + CONTEXTS
    wanted = fingerprint
    if wanted is None:
        wanted = _active(client, collection) or _only(client, name)
    head = _head(client, name, wanted)
    for _ in range(_TRIES):
        context = _joined(client, name, wanted, head)
        if context is not None:
            return context
        before, head = head, _head(client, name, wanted)
        if head == before:  # nobody replaced it while it was read
            raise ContextFormatError(
                f"{name}: expected the context {wanted[:16]}… with its sha256, found missing or damaged chunks. "
                "Write it again with write_context, or restore a snapshot."
            )
    raise StoreError(
        f"{name}: expected the context {wanted[:16]}… to stay while it is read, found it replaced {_TRIES} times. "
        "Stop whatever writes it all the time."
    )


def delete_context(client: QdrantClient, collection: str, key: str) -> None:
    """Remove a context; nothing where there is none of that key."""
    name = concrete(client, collection) + CONTEXTS
    if call(lambda: client.collection_exists(name)):
        _delete(client, name, must=[_of(key)])


def manifest_payload(client: QdrantClient, name: str) -> tuple[Mapping[str, Any], str] | None:
    """Return the manifest in a collection of contexts, and the token of its write, or None."""
    found = call_if_found(lambda: client.retrieve(name, [MANIFEST_ID], with_payload=["manifest", "token"]))
    payload = (found[0].payload or {}) if found else {}
    manifest, token = payload.get("manifest"), str(payload.get("token", ""))
    return (cast(Mapping[str, Any], manifest), token) if isinstance(manifest, Mapping) else None


def metadata_of(client: QdrantClient, collection: str) -> Mapping[str, Any] | None:
    """Return a collection's metadata; None if there is no such collection."""
    found = call_if_found(lambda: client.get_collection(collection))
    return None if found is None else found.config.metadata or {}


def contexts_collection(client: QdrantClient, collection: str) -> str:
    """Name of the collection with the contexts of another one; it is made where it is not there."""
    name = concrete(client, collection) + CONTEXTS
    if call(lambda: client.collection_exists(name)):
        return name
    try:
        call(lambda: client.create_collection(name, vectors_config={}))
    except StoreError:
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


def _of(key: str) -> models.Filter:
    unnamed = models.IsEmptyCondition(is_empty=models.PayloadField(key="key"))  # of before there were keys
    old = models.Filter(must=[_equal("fingerprint", key), unnamed])
    return models.Filter(should=[_equal("key", key), old])


def _belongs(sha256: str) -> list[models.Condition]:
    return [_equal("sha256", sha256), _equal("head", sha256)]


def _equal(key: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def _active(client: QdrantClient, collection: str) -> str | None:
    """Return the key of a store's active generation, or the fingerprint in the collection's metadata."""
    ours = cast(object, (metadata_of(client, collection) or {}).get(METADATA))
    manifest: Mapping[str, Any] = cast(Mapping[str, Any], ours) if isinstance(ours, Mapping) else {}
    if "manifest" in manifest:
        payload, _ = manifest_payload(client, str(manifest["manifest"])) or ({}, "")
        return PointsManifest.from_metadata(payload, collection).serving.key
    fingerprint = manifest.get("fingerprint")
    return fingerprint if isinstance(fingerprint, str) else None


def _only(client: QdrantClient, name: str) -> str:
    heads = models.Filter(must_not=[_EMPTY_HEAD])
    found = call_if_found(lambda: client.scroll(name, heads, limit=_MOST, with_payload=["fingerprint"]))
    fingerprints = list({str((head.payload or {}).get("fingerprint")) for head in (found[0] if found else [])})
    if len(fingerprints) == 1:
        return fingerprints[0]
    if not fingerprints:
        raise ContextMissingError(f"{name}: expected a context, found none. Keep one there with write_context.")
    listed = ", ".join(sorted(fingerprints)[:5])
    raise ContextMissingError(f"{name}: expected one context, found {len(fingerprints)}: {listed}. Name one.")


def _head(client: QdrantClient, name: str, fingerprint: str) -> Mapping[str, Any]:
    """Return the head of a context by its key, or by its fingerprint."""
    found = call_if_found(lambda: client.retrieve(name, [_head_id(fingerprint)], with_payload=True))
    if not found:
        heads = models.Filter(must=[_equal("fingerprint", fingerprint)], must_not=[_EMPTY_HEAD])
        scrolled = call_if_found(lambda: client.scroll(name, heads, limit=1))
        found = scrolled[0] if scrolled else []
    if not found:
        hint = "Keep it there with write_context."
        raise ContextMissingError(f"{name}: expected the context {fingerprint[:16]}…, found none of that name. {hint}")
    return found[0].payload or {}


def _joined(client: QdrantClient, name: str, fingerprint: str, head: Mapping[str, Any]) -> bytes | None:
    """Join a context's chunks; None if some are missing or damaged."""
    sha256, size, chunks, key = (head.get(name) for name in ("head", "bytes", "chunks", "key"))
    if not (isinstance(sha256, str) and isinstance(size, int) and isinstance(chunks, int)):
        return None
    parts: list[bytes] = []
    for number in range(chunks):
        id_ = _chunk_id(key or fingerprint, sha256, number)
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


def _head_id(key: str) -> str:
    return str(uuid.uuid5(_NAMES, f"head {key}"))


def _chunk_id(key: str, sha256: str, number: int) -> str:
    return str(uuid.uuid5(_NAMES, f"chunk {key} {sha256} {number}"))
