"""Creation and removal of generations, atomic with respect to crashes.

The manifest is the source of truth, a file that is replaced by one rename. Its shard is named by the numbers of its
generations. The engine adds and removes named vectors segment by segment, and cannot reopen a shard in which that was
interrupted; therefore it is done in a copy of the shard, which becomes valid with the manifest.
"""

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from cde_rag._files import fsync_folder, read_file
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.base import Damage
from cde_rag.stores.files import MARKERS, copy_durably, replace_durably, write_new
from cde_rag.stores.qdrant_base.manifest import PointsGeneration, PointsManifest
from cde_rag.stores.qdrant_base.point_writes import put_derived
from cde_rag.stores.qdrant_edge.shard import EdgeShard
from cde_rag.stores.qdrant_edge.tables import ShardPoints

MANIFEST: Final = MARKERS["qdrant"]
DERIVED: Final = re.compile(r"shard(-\d+)+(-words)?|context-\d+\.safetensors")  # what the manifest refers to, or did


def load(folder: Path) -> PointsManifest:
    """Read the manifest of a store.

    Raises:
        StoreError: There is no store.
        StoreFormatError: Damaged, or of a newer format.
    """
    path = folder / MANIFEST
    try:
        stored: object = json.loads(read_file(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"{folder}: expected a store, found none. Make one with Collection.create(…).") from error
    except OSError as error:
        raise StoreError(f"{path}: expected to read it, found: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise StoreFormatError(f"{path}: expected a manifest, found no JSON ({error}). Restore a copy.") from error
    if not isinstance(stored, dict):
        raise StoreFormatError(f"{path}: expected a manifest, found other JSON. Restore a copy.")
    return PointsManifest.from_metadata(cast(Mapping[str, Any], stored), str(path))


def save(folder: Path, manifest: PointsManifest) -> None:
    """Replace the manifest."""
    replace_durably(folder / MANIFEST, json.dumps(manifest.to_metadata(), ensure_ascii=False, indent=2).encode())


def first(
    folder: Path, dim: int, fingerprint: str, context: bytes, settings: str, prefix: int | None
) -> PointsManifest:
    """Return the manifest of a store with generation 1 active, whose context is written."""
    state = _written(folder, 1, fingerprint, context)
    return PointsManifest(dim, 1, 1, (state,), settings, words=True, prefix=prefix, native=True)


def new_generation(folder: Path, manifest: PointsManifest, fingerprint: str, context: bytes) -> PointsManifest:
    """Return the manifest with another generation, whose context is written."""
    new = _written(folder, manifest.last + 1, fingerprint, context)
    return dataclasses.replace(manifest, last=new.number, generations=(*manifest.generations, new))


def without(manifest: PointsManifest, number: int) -> PointsManifest:
    """Return the manifest without an inactive generation.

    Raises:
        StoreError: It is active, or does not exist.
    """
    gone = manifest.inactive(number)
    return dataclasses.replace(manifest, generations=tuple(one for one in manifest.generations if one is not gone))


def shard_of(folder: Path, manifest: PointsManifest) -> Path:
    """Return the folder of the shard with the vectors of exactly these generations, and with terms if configured."""
    words = ["words"] if manifest.words else []
    return folder / "-".join(["shard", *(str(state.number) for state in manifest.generations), *words])


def changed_shard(folder: Path, old: PointsManifest, new: PointsManifest) -> EdgeShard:
    """Copy the old manifest's shard, which must not be written to, and give it the new one's named vectors."""
    copy = shard_of(folder, new)
    shutil.rmtree(copy, ignore_errors=True)  # of a call that was interrupted
    copy_durably(shard_of(folder, old), copy)
    fsync_folder(folder)
    engine = EdgeShard.load(copy)
    points = ShardPoints(engine, str(folder))
    had, has = ({state.fingerprint for state in manifest.generations} for manifest in (old, new))
    for fingerprint in has - had:
        for name, size in new.sizes(fingerprint).items():
            points.create_vectors(name, size)
    for fingerprint in had - has:
        for name in old.sizes(fingerprint):
            points.delete_vectors(name)
    if new.words and not old.words:
        points.create_words()
        engine.create_indexes()
        put_derived(points, new, points.in_order())
    if new.prefix is None:
        return engine
    engine.close()
    return EdgeShard.load_with(copy, {name: size for one in has for name, size in new.sizes(one).items()})


def sweep(folder: Path, manifest: PointsManifest) -> None:
    """Remove the shards and contexts that do not belong to the manifest."""
    kept = {shard_of(folder, manifest), *(_context_file(folder, state.number) for state in manifest.generations)}
    for path in folder.iterdir():
        if DERIVED.fullmatch(path.name) and path not in kept:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _context_file(folder: Path, number: int) -> Path:
    """Return the path of a generation's Context."""
    return folder / f"context-{number}.safetensors"


def read_context(folder: Path, state: PointsGeneration) -> bytes:
    """Read the bytes of a generation's Context.

    Raises:
        StoreFormatError: The file is missing or damaged.
    """
    path = _context_file(folder, state.number)
    try:
        data = read_file(path)
    except OSError as error:
        raise StoreFormatError(f"{path}: expected to read it, found: {error}. Restore a copy.") from error
    found = hashlib.sha256(data).hexdigest()
    if found != state.context_sha256:
        wanted = state.context_sha256
        raise StoreFormatError(f"{path}: expected sha256 {wanted[:16]}…, found {found[:16]}…. Restore a copy.")
    return data


def damaged_contexts(folder: Path, manifest: PointsManifest) -> Iterator[Damage]:
    """Yield damage of Contexts."""
    for state in manifest.generations:
        try:
            read_context(folder, state)
        except StoreFormatError as error:  # noqa: PERF203
            yield Damage(_context_file(folder, state.number).name, str(error))


def _written(folder: Path, number: int, fingerprint: str, context: bytes) -> PointsGeneration:
    write_new(_context_file(folder, number), context)
    return PointsGeneration(number, fingerprint, hashlib.sha256(context).hexdigest())
