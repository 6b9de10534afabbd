"""Folder of plain arrays with one JSON manifest, which is written last: without it the folder is not ready.

The manifest holds the length and sha256 of each file, and a sha256 of its own, so that any corruption is detected.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from cde_rag._files import file_sha256, write_durably
from cde_rag.context.file_format import canonical_json
from cde_rag.errors import CDEError

MANIFEST = "manifest.json"
LOCK = "run.lock"  # of the run that writes a folder
FORMAT = 1
MAX_MANIFEST = 1 << 26  # bytes: 64 MiB, some hundred thousand names of domains
REMEDY = "Copy it again from an intact copy, or run prepare again, which repairs what is damaged."


class PreparedError(CDEError):
    """A prepared folder, or a packed one, that is not ready, damaged or newer."""


class StatedFile(NamedTuple):
    """Length and checksum of a file in the manifest.

    Attributes:
        bytes: Length in bytes.
        sha256: Checksum of its content, in hex.
    """

    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """Manifest of a finished folder.

    Attributes:
        files: Length and checksum by file name.
        facts: Metadata of the arrays; JSON.
    """

    files: Mapping[str, StatedFile]
    facts: Mapping[str, Any]


def write_array(path: Path, array: np.ndarray) -> None:
    """Write one `.npy` file atomically and durably: complete or not at all, also on a crash or a full disk."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_durably(path, buffer.getvalue())


def stated(path: Path) -> StatedFile:
    """Compute the length and checksum of a file."""
    return StatedFile(path.stat().st_size, file_sha256(path))


def seal(folder: Path, files: Iterable[str], facts: Mapping[str, Any]) -> None:
    """Write the manifest of files that are complete: from now on the folder is ready.

    Args:
        folder: Holds the files.
        files: Their names.
        facts: Metadata of the arrays; JSON.
    """
    manifest = {
        "format": FORMAT,
        "files": {name: stated(folder / name)._asdict() for name in sorted(files)},
        "facts": facts,
    }
    manifest["integrity"] = _integrity(manifest)
    write_durably(folder / MANIFEST, canonical_json(manifest).encode())


def read_manifest(data: bytes, *, where: str) -> Manifest:
    """Parse a manifest and verify its checksum.

    Args:
        data: Its JSON.
        where: Name of the manifest in error messages.

    Raises:
        PreparedError: Damaged, or of a newer format.
    """
    try:
        manifest = cast("dict[str, Any]", json.loads(data))
        integrity = manifest.pop("integrity")
        newer = manifest["format"] > FORMAT
        files = {name: StatedFile(int(file["bytes"]), str(file["sha256"])) for name, file in manifest["files"].items()}
        facts = manifest["facts"]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise damaged(where, f"no manifest of one ({type(error).__name__})") from error
    if newer:
        raise PreparedError(
            f"{where}: expected format {FORMAT} or older, found {manifest['format']}. Update cde-rag to read it."
        )
    if _integrity(manifest) != integrity:
        raise damaged(where, "a manifest whose sha256 is not the one that it states")
    return Manifest(files, facts)


def manifest_of(folder: Path) -> Manifest:
    """Read the manifest of a folder.

    Raises:
        PreparedError: There is none, so that the folder is not ready; or it is damaged or newer.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST:
            raise damaged(str(path), f"{path.stat().st_size} bytes, more than the {MAX_MANIFEST} it may have")
        return read_manifest(path.read_bytes(), where=str(path))
    except FileNotFoundError as error:
        found = "no manifest.json in it: it is not ready" if folder.is_dir() else "no such folder"
        raise PreparedError(
            f"{folder}: expected a prepared folder, found {found}. Run prepare (again): it goes on where it stopped."
        ) from error


def check_files(folder: Path, files: Mapping[str, StatedFile]) -> None:
    """Verify length and checksum of every file against the manifest.

    Raises:
        PreparedError: A file is missing, truncated or changed.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(str(path), "no such file")
        if (size := path.stat().st_size) != expected.bytes:
            raise damaged(str(path), f"{size} bytes where there should be {expected.bytes}")
        if (found := stated(path)) != expected:
            raise damaged(str(path), f"sha256 {found.sha256[:16]}… where the manifest says {expected.sha256[:16]}…")


def open_array(path: Path) -> np.ndarray:
    """Open an array as a memory map.

    Raises:
        PreparedError: It is no array of plain numbers.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (ValueError, EOFError) as error:
        raise damaged(str(path), f"no array of numbers ({error})") from error


def damaged(where: str, found: str) -> PreparedError:
    """Return the error for a damaged file."""
    return PreparedError(f"{where}: expected an intact file of a prepared folder, found {found}. {REMEDY}")


def _integrity(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(manifest).encode()).hexdigest()
