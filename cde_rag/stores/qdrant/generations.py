"""Making and dropping generations, so that a kill at any instant leaves what counts as it was or as it will be.

What counts is the manifest, which is replaced in one write. What is being made or dropped is first noted there as
leftover; the next call that makes or drops a generation removes what there is of it.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from cde_rag.errors import StoreError
from cde_rag.stores.points.manifest import GenerationState, Manifest, vector_name
from cde_rag.stores.points.text_search import write_words
from cde_rag.stores.qdrant import space
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import METADATA, delete_context, metadata_of, write_context
from cde_rag.stores.qdrant.points import ClientPoints
from cde_rag.stores.qdrant.space import Indexing
from cde_rag.stores.quantization import check_prefix

_NOT_OURS: Final = "Take another name; or make a store of its points, with cde_rag.adoption.adopt(…)."


def is_store(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a collection with this metadata, or None where there is none, is a store of ours."""
    return isinstance(_ours(metadata), Mapping) and "format" in _ours(metadata)


def load(points: ClientPoints) -> Manifest:
    """The manifest of a store.

    Raises:
        StoreError: There is no store.
        StoreFormatError: Damaged, or of a newer format.
    """
    metadata = metadata_of(points.client, points.collection)
    if metadata is None:
        raise StoreError(f"{points.collection}: expected a store, found none. Make one with Collection.create(…).")
    if not is_store(metadata):
        raise StoreError(
            f"{points.collection}: expected a store, found a collection of Qdrant that is none. {_NOT_OURS}"
        )
    return Manifest.from_metadata(_ours(metadata), points.collection)


def save(points: ClientPoints, manifest: Manifest) -> None:
    """Replace the manifest; other keys of the collection's metadata stay."""
    metadata = {METADATA: manifest.to_metadata()}
    call(lambda: points.client.update_collection(points.collection, metadata=metadata))


def first(points: ClientPoints, dim: int, fingerprint: str, context: bytes, settings: str, indexing: Indexing) -> None:
    """Make a store with generation 1 active, in a new collection, in one without points, or of what is in one.

    Raises:
        StoreError: There is a store already, or points that are not to be adopted, or other vectors of that name; or
            the server refused it.
    """
    found = metadata_of(points.client, points.collection)
    if is_store(found):
        raise StoreError(f"{points.collection}: expected no store, found one. Open it with Collection.open(…).")
    if found is not None and not points.adopted:
        count = call(lambda: points.client.count(points.collection)).count
        if count:
            wanted = "expected a new collection, or one without points"
            raise StoreError(f"{points.collection}: {wanted}, found {count} of others'. {_NOT_OURS}")
    check_prefix(indexing.prefix, dim)
    states = (_state(1, fingerprint, context),)
    manifest = Manifest(dim, settings, 1, 1, states, adopted=points.adopted, words=True, prefix=indexing.prefix)
    make = space.create_collection if found is None else space.create_vectors
    make(points.client, points.collection, manifest.sizes(fingerprint), indexing)
    space.create_words(points.client, points.collection)
    points.indexes.create()
    write_context(points.client, points.collection, context, fingerprint=fingerprint)
    save(points, manifest)


def add_words(points: ClientPoints) -> None:
    """Give all records their words; those that another process adds meanwhile get them at the end.

    Raises:
        StoreError: The server refused it.
    """
    manifest = load(points)
    space.create_words(points.client, points.collection)
    write_words(points, manifest.serving.vector)
    if not manifest.words:
        save(points, dataclasses.replace(load(points), words=True))
        write_words(points, manifest.serving.vector)


def begin(points: ClientPoints, fingerprint: str, context: bytes) -> int:
    """Make another generation; returns its number.

    Raises:
        StoreError: There is one of that fingerprint, or the server refused it.
    """
    manifest = _sweep(points, load(points))
    for state in manifest.generations:
        if state.fingerprint == fingerprint:
            hint = "One of the same space needs no other vectors."
            raise StoreError(f"Expected a new fingerprint, found that of generation {state.number}. {hint}")
    params = space.vector_params(points.client, points.collection)
    if vector_name(fingerprint) not in params:
        save(points, dataclasses.replace(manifest, leftover=(fingerprint,)))
    like = Indexing.found(params, list(manifest.sizes(manifest.serving.fingerprint)))
    space.create_vectors(points.client, points.collection, manifest.sizes(fingerprint), like)
    write_context(points.client, points.collection, context, fingerprint=fingerprint)
    new = _state(manifest.last + 1, fingerprint, context)
    save(points, dataclasses.replace(manifest, last=new.number, generations=(*manifest.generations, new)))
    return new.number


def remove(points: ClientPoints, number: int) -> None:
    """Drop an inactive generation.

    Raises:
        StoreError: It is active, or not there.
    """
    manifest = _sweep(points, load(points))
    gone = manifest.inactive(number)
    left = tuple(state for state in manifest.generations if state is not gone)
    manifest = dataclasses.replace(manifest, generations=left, leftover=(gone.fingerprint,))
    save(points, manifest)
    _sweep(points, manifest)


def _sweep(points: ClientPoints, manifest: Manifest) -> Manifest:
    """Remove what there is of leftover generations."""
    if not manifest.leftover:
        return manifest
    for fingerprint in manifest.leftover:
        points.remove_key(vector_name(fingerprint))
        for name in reversed(manifest.sizes(fingerprint)):  # the one that a new generation looks for goes last
            space.delete_vectors(points.client, points.collection, name)
        delete_context(points.client, points.collection, fingerprint)
    manifest = dataclasses.replace(manifest, leftover=())
    save(points, manifest)
    return manifest


def _state(number: int, fingerprint: str, context: bytes) -> GenerationState:
    return GenerationState(number, fingerprint, hashlib.sha256(context).hexdigest())


def _ours(metadata: Mapping[str, Any] | None) -> Any:
    return (metadata or {}).get(METADATA)
