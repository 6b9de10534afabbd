"""Manifest of a store: a point that is compared and swapped.

It is stored with the contexts, in `papers__cde_contexts`, referenced by the metadata of `papers`: Qdrant can compare a
point's payload with a filter in the request that replaces it, but not metadata. A store of an older version has its
manifest in the metadata until its first change.
"""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any, Final, cast

from qdrant_client import QdrantClient, models

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.qdrant.calls import call, call_if_found
from cde_rag.stores.qdrant.contexts import (
    MANIFEST_ID,
    METADATA,
    contexts_collection,
    manifest_payload,
    metadata_of,
)
from cde_rag.stores.qdrant_base.manifest import FENCED, PointsManifest

NOT_OURS: Final = "Take another name; or make a store of its points, with cde_rag.adoption.adopt(…)."


class ChangedMeanwhileError(StoreError):
    """Another run changed the manifest since this one read it; nothing was changed."""

    def __init__(self, collection: str) -> None:
        super().__init__(
            f"{collection}: expected the manifest that this run read, found one that another run changed meanwhile. "
            "This run was suspended, or cut off from Qdrant, for longer than its lease, and has changed nothing since. "
            "Start it again."
        )


def is_store(metadata: Mapping[str, Any] | None) -> bool:
    """Return True if the metadata (None for no collection) is that of one of our stores."""
    return "format" in _ours(metadata)


def load(client: QdrantClient, collection: str) -> PointsManifest:
    """Read the manifest of a store.

    Raises:
        StoreError: There is no store.
        StoreFormatError: Damaged, or of a newer format.
    """
    return find(client, collection)[1]


def find(client: QdrantClient, collection: str) -> tuple[str | None, PointsManifest]:
    """Read the manifest of a store as `load`; also return the collection of its point, None if it is in no point."""
    metadata = metadata_of(client, collection)
    if metadata is None:
        raise StoreError(f"{collection}: expected a store, found none. Make one with Collection.create(…).")
    if not is_store(metadata):
        raise StoreError(f"{collection}: expected a store, found a collection of Qdrant that is none. {NOT_OURS}")
    name = _home(metadata)
    if name is None:
        return None, PointsManifest.from_metadata(_ours(metadata), collection)
    manifest = load_from(client, name, collection)
    if manifest is None:
        raise StoreFormatError(f"{name:.80}: expected the manifest of a store, found none. Restore a copy.")
    return name, manifest


def home_of(client: QdrantClient, collection: str) -> str | None:
    """Return the collection that has the point with the manifest; None if there is none, or no store."""
    return _home(metadata_of(client, collection))


def load_from(client: QdrantClient, name: str, collection: str) -> PointsManifest | None:
    """Read the manifest in the point of a collection; None if there is none."""
    found = manifest_payload(client, name)
    if found is None:
        return None
    payload, token = found
    return dataclasses.replace(PointsManifest.from_metadata(payload, collection), token=token)


def swap(client: QdrantClient, collection: str, before: PointsManifest, after: PointsManifest) -> PointsManifest:
    """Replace the manifest, if it is still the one that was read; returns it as it is then.

    Raises:
        ChangedMeanwhileError: It is another one.
    """
    if not before.version:
        before = place(client, collection, before)
    name = contexts_collection(client, collection)
    after = dataclasses.replace(after, version=before.version + 1, token=uuid.uuid4().hex)
    if not _replaced(client, name, (before.version, before.token), after):
        raise ChangedMeanwhileError(collection)
    return after


def place(client: QdrantClient, collection: str, manifest: PointsManifest) -> PointsManifest:
    """Make the point for a manifest that is not in one: of a new store, or of one with its manifest in the metadata.

    Raises:
        ChangedMeanwhileError: Another run did that meanwhile.
    """
    name = contexts_collection(client, collection)
    version, token = _version(client, name)  # before the metadata: who makes the point after this read raises it
    ours = _ours(metadata_of(client, collection))
    if "manifest" in ours or ("format" in ours and ours != manifest.to_metadata()):
        raise ChangedMeanwhileError(collection)
    manifest = dataclasses.replace(manifest, version=version + 1, token=uuid.uuid4().hex)
    if not _replaced(client, name, (version, token), manifest):
        raise ChangedMeanwhileError(collection)
    metadata = {METADATA: {"format": FENCED, "manifest": name}}
    call(lambda: client.update_collection(collection, metadata=metadata))
    return manifest


def _replaced(client: QdrantClient, name: str, before: tuple[int, str], manifest: PointsManifest) -> bool:
    """Write a manifest, if the point has that version and token, or is not there and the version is 0."""
    version, token = before
    payload = {"manifest": manifest.to_metadata(), "version": manifest.version, "token": manifest.token}
    point = models.PointStruct(id=MANIFEST_ID, vector={}, payload=payload)
    wanted = {"version": version, **({"token": token} if token else {})}
    same = models.Filter(
        must=[models.FieldCondition(key=key, match=models.MatchValue(value=value)) for key, value in wanted.items()]
    )
    mode = models.UpdateMode.UPDATE_ONLY if version else None
    call(lambda: client.upsert(name, [point], wait=True, update_filter=same, update_mode=mode))
    found = call(lambda: client.retrieve(name, [MANIFEST_ID], with_payload=["token"]))
    return bool(found) and (found[0].payload or {}).get("token") == manifest.token


def _version(client: QdrantClient, name: str) -> tuple[int, str]:
    """Return version and token of the point; 0 and "" where there is none."""
    found = call_if_found(lambda: client.retrieve(name, [MANIFEST_ID], with_payload=["version", "token"]))
    payload = (found[0].payload or {}) if found else {}
    version = payload.get("version")
    return (version, str(payload.get("token", ""))) if isinstance(version, int) else (0, "")


def _home(metadata: Mapping[str, Any] | None) -> str | None:
    found = _ours(metadata).get("manifest")
    return None if found is None else str(found)


def _ours(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found = (metadata or {}).get(METADATA)
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}
