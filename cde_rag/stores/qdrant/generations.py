"""Creation, activation and removal of generations, atomic with respect to crashes.

The manifest is the source of truth, compared and swapped in one write (manifest.py): a run that was suspended
while another took over changes nothing more. Its late writes and deletes affect only its own data: vectors and Context
of a generation have a name that no other run uses. A generation is recorded as leftover before it is created or
dropped; the next call that creates or drops a generation removes its remains.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.stores.manifests import PENDING
from cde_rag.stores.qdrant import index
from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import delete_context, metadata_of, write_context
from cde_rag.stores.qdrant.index import QdrantIndexConfig
from cde_rag.stores.qdrant.manifest import NOT_OURS, ChangedMeanwhileError, is_store, load, place, swap
from cde_rag.stores.qdrant.tables import ClientPoints
from cde_rag.stores.qdrant_base.manifest import PointsGeneration, PointsManifest, full_name, vector_name
from cde_rag.stores.qdrant_base.point_writes import put_derived, records_of
from cde_rag.stores.quantization import check_prefix

_TRIES: Final = 8  # to swap a manifest that writers change meanwhile
_LEASED: Final = ("run", "generations", "leftover", "active", "last")  # in the manifest, changed with the lease alone


def first(
    points: ClientPoints, dim: int, fingerprint: str, context: bytes, settings: str, indexing: QdrantIndexConfig
) -> None:
    """Create a store with generation 1 active, in a new or an empty collection, or from the points of an existing one.

    Raises:
        StoreError: There is a store already, or points that are not to be adopted, or other vectors of that name; or
            the server refused a request.
    """
    found = metadata_of(points.client, points.collection)
    if is_store(found):
        raise StoreError(f"{points.collection}: expected no store, found one. Open it with Collection.open(…).")
    if found is not None and not points.adopted:
        count = call(lambda: points.client.count(points.collection)).count
        if count:
            wanted = "expected a new collection, or one without points"
            raise StoreError(f"{points.collection}: {wanted}, found {count} of others'. {NOT_OURS}")
    check_prefix(indexing.prefix, dim)
    run = new_run() if found is None else _run_of(index.vector_params(points.client, points.collection), fingerprint)
    state = _state(1, fingerprint, context, run)
    manifest = PointsManifest(
        dim, 1, 1, (state,), settings, adopted=points.adopted, words=True, prefix=indexing.prefix, native=True
    )
    make = index.create_collection if found is None else index.create_vectors
    make(points.client, points.collection, manifest.sizes(state.key), indexing)
    index.create_words(points.client, points.collection)
    points.create_indexes()
    write_context(points.client, points.collection, context, fingerprint=fingerprint, key=state.key)
    place(points.client, points.collection, manifest)


def derive(points: ClientPoints) -> PointsManifest:
    """Give all records their words, and metadata for filters; those that another process adds meanwhile at the end.

    The newest analyzer is in the manifest first, so that others write its terms from then on. Until all records have
    them, a search finds at least what it found before: they contain those of the older one.

    Returns:
        The manifest as it is then.

    Raises:
        StoreError: The server refused it.
    """
    manifest = _changed(points, lambda now: replace(now, settings=now.renewed_settings()))
    index.create_words(points.client, points.collection)
    points.create_indexes()
    put_derived(points, manifest, points.in_order())
    if not (manifest.words and manifest.native):
        manifest = _changed(points, lambda now: replace(now, words=True, native=True))
        put_derived(points, manifest, points.in_order())
    points.remove_former()
    return manifest


def replace_settings(points: ClientPoints, manifest: PointsManifest, settings: str) -> PointsManifest:
    """Replace the settings, in JSON; return the manifest as it is then.

    Raises:
        ChangedMeanwhileError: The manifest is another than was read; nothing was changed.
    """
    return _swapped(points, manifest, settings=settings)


def begin(points: ClientPoints, manifest: PointsManifest, fingerprint: str, context: bytes) -> PointsManifest:
    """Make another generation, the last of the manifest that is returned.

    Args:
        points: Points of the store.
        manifest: As it was read.
        fingerprint: Fingerprint of the new space.
        context: Bytes of its Context.

    Raises:
        ChangedMeanwhileError: Another run changed the manifest.
        StoreError: The server refused it.
    """
    manifest = _sweep(points, manifest)
    new = _state(manifest.last + 1, fingerprint, context, new_run())
    manifest = _advanced(points, manifest, leftover=(new.key,))
    params = index.vector_params(points.client, points.collection)
    like = QdrantIndexConfig.from_params(params, list(manifest.sizes(manifest.serving.key)))
    index.create_vectors(points.client, points.collection, manifest.sizes(new.key), like)
    write_context(points.client, points.collection, context, fingerprint=fingerprint, key=new.key)
    return _advanced(points, manifest, last=new.number, generations=(*manifest.generations, new), leftover=())


def remove(points: ClientPoints, manifest: PointsManifest, number: int) -> PointsManifest:
    """Drop an inactive generation; returns the manifest without it.

    Raises:
        ChangedMeanwhileError: Another run changed the manifest since it was read.
        StoreError: It is active, or not there.
    """
    manifest = _sweep(points, manifest)
    gone = manifest.inactive(number)
    left = tuple(state for state in manifest.generations if state is not gone)
    return _sweep(points, _advanced(points, manifest, generations=left, leftover=(gone.key,)))


def take_over(points: ClientPoints) -> str:
    """Note a new run, which has the lease, in the manifest; returns its token.

    Raises:
        ChangedMeanwhileError: Others change the manifest all the time.
    """
    run = uuid.uuid4().hex
    _changed(points, lambda now: replace(now, run=run))
    return run


def activate(
    points: ClientPoints, manifest: PointsManifest, generation: int, check_complete: Callable[[PointsGeneration], None]
) -> PointsManifest:
    """Activate a generation that has a vector for every record; returns the manifest that says so.

    It is first recorded as `activating`. A writer that finds this in the manifest after its write resets it, and the
    missing vectors are counted again: so no record without its vector is written between the count and the switch.

    Raises:
        ChangedMeanwhileError: Another run changed the manifest, or writers wrote during every attempt.
        StoreError: Records lack their vector in it.
    """
    for last_try in (False,) * (_TRIES - 1) + (True,):
        about = _advanced(points, manifest, activating=generation)
        check_complete(about.inactive(generation))
        try:
            return _swapped(points, about, active=generation, activating=None)
        except ChangedMeanwhileError:
            manifest = load(points.client, points.collection)
            if last_try or manifest.run != about.run:
                raise
    raise AssertionError("the last try returns or raises")


def check_written(points: ClientPoints, manifest: PointsManifest, ids: Sequence[str]) -> None:
    """Ensure that a concurrent switch does not lose rows just written, and that they have the collection's terms.

    Args:
        points: The points.
        manifest: The manifest by which the rows were written, to its active generation.
        ids: Ids of the rows.

    Raises:
        ContextMismatchError: Another generation was activated meanwhile: the rows must be written again, to that one.
        ChangedMeanwhileError: Other writers and runs changed the manifest during every attempt.
    """
    for last_try in (False,) * (_TRIES - 1) + (True,):
        now = load(points.client, points.collection)
        if now.serving.key != manifest.serving.key:
            raise ContextMismatchError(expected=now.serving.fingerprint, found=manifest.serving.fingerprint)
        if (now.analyzer, now.words) != (manifest.analyzer, manifest.words):
            put_derived(points, now, (point for point in records_of(points, ids) if point is not None))
        settings = now.settings
        if manifest.may_wait and not now.may_wait:  # another process filled what waited before these rows came
            settings = json.dumps({**json.loads(settings), PENDING: True}, ensure_ascii=False)
        if now.activating is None and settings == now.settings:
            return
        try:
            _swapped(points, now, activating=None, settings=settings)
            return
        except ChangedMeanwhileError:
            if last_try:
                raise


def _sweep(points: ClientPoints, manifest: PointsManifest) -> PointsManifest:
    """Remove the remains of leftover generations."""
    if not manifest.leftover:
        return manifest
    for key in manifest.leftover:
        points.remove_key(vector_name(key))
        for name in reversed(manifest.sizes(key)):  # the one that a new generation looks for goes last
            index.delete_vectors(points.client, points.collection, name)
        delete_context(points.client, points.collection, key)
    return _advanced(points, manifest, leftover=())


def _changed(points: ClientPoints, change: Callable[[PointsManifest], PointsManifest]) -> PointsManifest:
    """Apply a change to the manifest as others left it; returns the result."""
    for last_try in (False,) * (_TRIES - 1) + (True,):
        try:
            manifest = load(points.client, points.collection)
            return swap(points.client, points.collection, manifest, change(manifest))
        except ChangedMeanwhileError:  # noqa: PERF203
            if last_try:
                raise
    raise AssertionError("the last try returns or raises")


def _advanced(points: ClientPoints, manifest: PointsManifest, **changes: Any) -> PointsManifest:
    """Change fields that only the run with the lease changes, or `activating`; settings changed meanwhile stay.

    Raises:
        ChangedMeanwhileError: Another run changed the manifest, or others change it all the time.
    """
    for last_try in (False,) * (_TRIES - 1) + (True,):
        try:
            return _swapped(points, manifest, **changes)
        except ChangedMeanwhileError:  # noqa: PERF203
            now = load(points.client, points.collection)
            if last_try or any(getattr(now, name) != getattr(manifest, name) for name in _LEASED):
                raise
            manifest = now
    raise AssertionError("the last try returns or raises")


def _swapped(points: ClientPoints, manifest: PointsManifest, **changes: Any) -> PointsManifest:
    return swap(points.client, points.collection, manifest, replace(manifest, **changes))


def new_run() -> str:
    """Return the token of a new generation."""
    return uuid.uuid4().hex[:8]


def _run_of(names: Iterable[str], fingerprint: str) -> str:
    """Return the token in the vectors that an interrupted creation left in a collection; a new one if there are none.

    Servers before 1.18 would not make others there.
    """
    ours = vector_name(fingerprint)
    found = (name.removeprefix(ours)[1:] for name in names if name.startswith(ours) and full_name(name) == name)
    return next(found, new_run())


def _state(number: int, fingerprint: str, context: bytes, run: str) -> PointsGeneration:
    return PointsGeneration(number, fingerprint, hashlib.sha256(context).hexdigest(), run)
