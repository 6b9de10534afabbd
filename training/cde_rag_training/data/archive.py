"""A prepared folder as one compressed file, for the way to another machine."""

import secrets
import shutil
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

from cde_rag._files import replacing
from cde_rag_training.data.array_folder import (
    MANIFEST,
    MAX_MANIFEST,
    PreparedError,
    StatedFile,
    check_files,
    damaged,
    manifest_of,
    read_manifest,
)

MAX_BYTES = 1 << 36  # of a file once unpacked: 64 GiB
BLOCK = 1 << 20  # bytes read at a time


def pack(folder: Path, path: Path) -> None:
    """Write a finished folder into one archive file; equal folders give equal bytes.

    Args:
        folder: Finished, so that it has a manifest; files that the manifest does not list are left out.
        path: Path of the file, such as `pairs.zip`; written atomically.

    Raises:
        PreparedError: The folder is not ready.
    """
    names = [MANIFEST, *sorted(manifest_of(folder).files)]
    with (
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with (folder / name).open("rb") as file, archive.open(entry, "w", force_zip64=True) as packed:
                shutil.copyfileobj(file, packed, BLOCK)


def unpacked(path: Path, *, known: Collection[str]) -> Path:
    """Unpack an archive next to itself, unless that has been done: `pairs.zip` into the folder `pairs`.

    The folder appears once it is complete. Only known names are written, each limited to the size in the manifest, so
    that no file can be written elsewhere or grow without bound.

    Args:
        path: Made by `pack`.
        known: Names of files that a prepared folder may hold.

    Raises:
        PreparedError: The file is damaged or not made by `pack`, would be too large, or another folder is in the way.
    """
    folder = path.with_suffix("")
    if folder == path:
        raise PreparedError(f"{path}: expected a name with a suffix, such as .zip, found none. Rename the file.")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _bounded(archive, MANIFEST, MAX_MANIFEST)
            files = read_manifest(manifest, where=f"{path}: {MANIFEST}").files
            _check(path, archive.namelist(), files, known)
            if folder.exists():
                return _same(folder, manifest, path)
            temporary = path.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
            try:
                temporary.mkdir()
                for name, stated in files.items():
                    _extract(archive, name, temporary / name, stated.bytes)
                check_files(temporary, files)
                (temporary / MANIFEST).write_bytes(manifest)
                try:
                    temporary.rename(folder)
                except OSError:  # another process was faster
                    return _same(folder, manifest, path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise damaged(str(path), f"data that cannot be unpacked ({error})") from error
    return folder


def _check(path: Path, names: Collection[str], files: Mapping[str, StatedFile], known: Collection[str]) -> None:
    """Refuse names that are no file of ours, and sizes that do not fit."""
    if sorted(names) != sorted([MANIFEST, *files]) or not set(files) <= set(known):
        foreign = sorted({*names, *files} - {MANIFEST, *known}) or "missing or repeated ones"
        raise damaged(str(path), f"files that do not belong there: {foreign}")
    total, free = sum(file.bytes for file in files.values()), shutil.disk_usage(path.parent).free
    if any(not 0 <= file.bytes <= MAX_BYTES for file in files.values()) or total > free:
        raise PreparedError(
            f"{path}: expected files that fit into {free} free bytes, none above {MAX_BYTES}, found {total} bytes in "
            "all. Make room, or unpack where there is some."
        )


def _bounded(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read a small file of the archive; refuse more than `most` bytes."""
    with archive.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise damaged(name, f"more than the {most} bytes it may have")
    return data


def _extract(archive: zipfile.ZipFile, name: str, target: Path, size: int) -> None:
    """Write exactly `size` bytes of a file of the archive."""
    with archive.open(name) as file, target.open("xb") as copy:
        while size and (block := file.read(min(size, BLOCK))):
            copy.write(block)
            size -= len(block)


def _same(folder: Path, manifest: bytes, path: Path) -> Path:
    """Return the folder of an earlier unpacking, if its manifest is this archive's."""
    found = folder / MANIFEST
    if not found.is_file() or found.read_bytes() != manifest:
        raise PreparedError(
            f"{path}: expected to unpack into {folder}, found another folder there. Move one of the two."
        )
    return folder
