"""Damage of a folder, and checksums of the shard's files while no process has them open: the engine verifies none.

The checksums are written when the last object of a process closes the store, and removed before it is opened, so that
there are none after a crash.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from cde_rag._files import open_file, read_file
from cde_rag.errors import StoreError
from cde_rag.stores.base import Damage
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.files import pieces, replace_durably
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.verify import damaged_points
from cde_rag.stores.qdrant_edge.shard_generations import damaged_contexts, shard_of
from cde_rag.stores.qdrant_edge.tables import ShardPoints


def write_checksums(folder: Path, checksums: Path) -> None:
    """Write the checksums of a folder's files, for `changed_files`, to the file `checksums`."""
    sums = {str(path.relative_to(folder)): [path.stat().st_size, _checksum(path)] for path in _files(folder)}
    replace_durably(checksums, json.dumps({"files": sums, "checksum": _over(sums)}, sort_keys=True).encode())


def changed_files(folder: Path, checksums: Path, *, most: int | None = None) -> Iterator[Damage]:
    """Yield damage of files that changed since their checksums were written; none without checksums.

    Args:
        folder: Folder of the shard.
        checksums: The file with the checksums.
        most: Maximum size in bytes of files whose content is compared; of larger ones only the size is.

    Raises:
        OSError: A file cannot be read.
    """
    if not checksums.exists():
        return
    sums = _sums(read_file(checksums)) if checksums.is_file() else None
    if sums is None:
        yield Damage(checksums.name, "Expected a list of files with its checksum, found another.")
        return
    found = {str(path.relative_to(folder)): path for path in _files(folder)}
    for name in sorted(sums.keys() ^ found.keys()):
        what = "found none" if name in sums else "found one that was not there"
        yield Damage(f"{folder.name}/{name}", f"Expected the files of a closed store, {what}.")
    for name in sorted(sums.keys() & found.keys()):
        (wanted, checksum), size = sums[name], found[name].stat().st_size
        if size != wanted:
            yield Damage(f"{folder.name}/{name}", f"Expected {wanted} bytes, found {size}.")
        elif (most is None or size <= most) and _checksum(found[name]) != checksum:
            yield Damage(f"{folder.name}/{name}", f"Expected checksum {checksum:08x}, found another.")


def find_damage(folder: Path, manifest: PointsManifest, opened: Callable[[], ShardPoints]) -> Iterator[Damage]:
    """Yield the damage of Contexts and points.

    Args:
        folder: Folder of the store.
        manifest: Its manifest.
        opened: Opens the shard, and returns its points.
    """
    yield from damaged_contexts(folder, manifest)
    try:
        points = opened()
        found, count = sum(1 for _ in points.in_order()), points.count()
    except StoreError as error:
        yield Damage(shard_of(folder, manifest).name, str(error))
        return
    if found != count:
        where = shard_of(folder, manifest).name
        yield Damage(where, f"Expected a place in the order for each of {count} records, found {found}.")
    yield from damaged_points(points, manifest)


def _sums(data: bytes) -> dict[str, list[int]] | None:
    try:
        content: Any = json.loads(data)
        sums = cast(dict[str, list[int]], content["files"])
        return sums if content["checksum"] == _over(sums) else None
    except (ValueError, KeyError, TypeError):
        return None


def _over(sums: dict[str, list[int]]) -> str:
    return checksum_of(json.dumps(sums, sort_keys=True)).hex()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _checksum(path: Path) -> int:
    """Compute the CRC-32 over a file's pieces that are not zeros, and their positions."""
    checksum = 0
    with open_file(path) as file:
        for start, piece in pieces(file):
            checksum = zlib.crc32(piece, zlib.crc32(b"%d" % start, checksum))
    return checksum
