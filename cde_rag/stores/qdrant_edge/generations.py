"""Making and dropping generations, so that a kill at any instant leaves what counts as it was or as it will be.

What counts is the manifest, a file that is replaced in one rename. What is being made or dropped is first noted there
as leftover; the next call that makes or drops a generation removes what there is of it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.base import Damage
from cde_rag.stores.folder import replace_durably, write_durably
from cde_rag.stores.points.manifest import GenerationState, Manifest, vector_name
from cde_rag.stores.qdrant_edge.place import MANIFEST
from cde_rag.stores.qdrant_edge.points import ShardPoints


def load(folder: Path) -> Manifest:
    """The manifest of a store.

    Raises:
        StoreError: There is no store.
        StoreFormatError: Damaged, or of a newer format.
    """
    path = folder / MANIFEST
    try:
        stored: object = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"{folder}: expected a store, found none. Make one with Collection.create(…).") from error
    except OSError as error:
        raise StoreError(f"{path}: expected to read it, found: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise StoreFormatError(f"{path}: expected a manifest, found no JSON ({error}). Restore a copy.") from error
    if not isinstance(stored, dict):
        raise StoreFormatError(f"{path}: expected a manifest, found other JSON. Restore a copy.")
    return Manifest.from_metadata(cast(Mapping[str, Any], stored), str(path))


def save(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest."""
    replace_durably(folder / MANIFEST, json.dumps(manifest.to_metadata(), ensure_ascii=False, indent=2).encode())


def first(folder: Path, dim: int, fingerprint: str, context: bytes, settings: str) -> None:
    """Make a store with generation 1 active, of a shard that is there."""
    state = _written(folder, 1, fingerprint, context)
    save(folder, Manifest(dim, settings, active=1, last=1, generations=(state,)))


def begin(folder: Path, points: ShardPoints, fingerprint: str, context: bytes) -> int:
    """Make another generation; returns its number.

    Raises:
        StoreError: There is one of that fingerprint.
    """
    manifest = _sweep(folder, points, load(folder))
    for state in manifest.generations:
        if state.fingerprint == fingerprint:
            hint = "One of the same space needs no other vectors."
            raise StoreError(f"Expected a new fingerprint, found that of generation {state.number}. {hint}")
    save(folder, dataclasses.replace(manifest, leftover=(fingerprint,)))
    points.create_vectors(vector_name(fingerprint), manifest.dim)
    new = _written(folder, manifest.last + 1, fingerprint, context)
    save(folder, dataclasses.replace(manifest, last=new.number, generations=(*manifest.generations, new)))
    return new.number


def remove(folder: Path, points: ShardPoints, number: int) -> None:
    """Drop an inactive generation.

    Raises:
        StoreError: It is active, or not there.
    """
    manifest = _sweep(folder, points, load(folder))
    gone = manifest.inactive(number)
    left = tuple(state for state in manifest.generations if state is not gone)
    manifest = dataclasses.replace(manifest, generations=left, leftover=(gone.fingerprint,))
    save(folder, manifest)
    _sweep(folder, points, manifest)


def context_file(folder: Path, number: int) -> Path:
    """The file with the bytes of a generation's Context."""
    return folder / f"context-{number}.safetensors"


def read_context(folder: Path, state: GenerationState) -> bytes:
    """The bytes of a generation's Context.

    Raises:
        StoreFormatError: The file is not there, or not as it was written.
    """
    path = context_file(folder, state.number)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreFormatError(f"{path}: expected to read it, found: {error}. Restore a copy.") from error
    found = hashlib.sha256(data).hexdigest()
    if found != state.context_sha256:
        wanted = state.context_sha256
        raise StoreFormatError(f"{path}: expected sha256 {wanted[:16]}…, found {found[:16]}…. Restore a copy.")
    return data


def damaged_contexts(folder: Path, manifest: Manifest) -> Iterator[Damage]:
    """Contexts that are not as they were written."""
    for state in manifest.generations:
        try:
            read_context(folder, state)
        except StoreFormatError as error:  # noqa: PERF203
            yield Damage(context_file(folder, state.number).name, str(error))


def _sweep(folder: Path, points: ShardPoints, manifest: Manifest) -> Manifest:
    """Remove what there is of leftover generations."""
    if manifest.leftover:
        for fingerprint in manifest.leftover:
            points.delete_vectors(vector_name(fingerprint))
        manifest = dataclasses.replace(manifest, leftover=())
        save(folder, manifest)
    kept = {context_file(folder, state.number) for state in manifest.generations}
    for path in folder.glob(context_file(folder, 0).name.replace("0", "*")):
        if path not in kept:
            path.unlink()
    return manifest


def _written(folder: Path, number: int, fingerprint: str, context: bytes) -> GenerationState:
    write_durably(context_file(folder, number), context)
    return GenerationState(number, fingerprint, hashlib.sha256(context).hexdigest())
