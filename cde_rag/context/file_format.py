"""File format of a Context: one safetensors file with one JSON manifest and an integrity check.

The manifest's `integrity` is the sha256 of the complete file with 64 zeros in its place: any change is detected.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import safetensors.numpy

from cde_rag.errors import ContextFormatError

MAX_BYTES = 1 << 28  # of a file: 256 MiB, 40 times what 4096 documents of 384 dims need
MAX_HEADER = 1 << 20  # bytes of a safetensors header; ours has about 2 kB

_INTEGRITY = re.compile(rb'\\"integrity\\":\\"([0-9a-f]{64})\\"')  # JSON inside JSON: the quotes are escaped once


def pack(tensors: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> bytes:
    """Serialise tensors and manifest; equal arguments give equal bytes."""
    text = canonical_json({**manifest, "integrity": "0" * 64})
    blank = safetensors.numpy.save(dict(tensors), metadata={"manifest": text})
    start = _integrity(blank, where="manifest").start(1)
    return blank[:start] + hashlib.sha256(blank).hexdigest().encode() + blank[start + 64 :]


def unpack(data: bytes, *, newest: int, where: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Parse the output of `pack`, and verify every byte of it.

    Args:
        data: The file's content.
        newest: The highest manifest format that the caller reads.
        where: Name of the file in error messages.

    Raises:
        ContextFormatError: Too large, truncated, changed, or of a newer format.
    """
    if len(data) > MAX_BYTES:
        raise unreadable(where, f"more than the {MAX_BYTES} bytes it may have")
    manifest = _read_manifest(data, where=where)
    if manifest["format"] > newest:
        raise ContextFormatError(
            f"{where}: expected format {newest} or older, found format {manifest['format']}. Update cde-rag to read it."
        )
    stated = _integrity(data, where=where)
    found = hashlib.sha256(data[: stated.start(1)] + b"0" * 64 + data[stated.end(1) :]).hexdigest()
    if found.encode() != stated.group(1):
        raise unreadable(
            where, f"sha256 {found[:16]}… where it says {manifest['integrity'][:16]}…: truncated or changed"
        )
    del manifest["integrity"]
    return safetensors.numpy.load(data), manifest


def canonical_json(value: Mapping[str, Any]) -> str:
    """Serialise to canonical JSON: equal values give equal strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def unreadable(where: str, found: str) -> ContextFormatError:
    """Return the error for a damaged context file."""
    return ContextFormatError(
        f"{where}: expected an intact context file, found {found}. Restore it from a copy, or make the context again."
    )


def _read_manifest(data: bytes, *, where: str) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(len(data) - 8, MAX_HEADER):
        raise unreadable(where, f"{len(data)} bytes with a header of {length}")
    try:
        manifest = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["manifest"])
        if not (isinstance(manifest["format"], int) and isinstance(manifest["integrity"], str)):
            raise TypeError("format or integrity")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise unreadable(where, f"no manifest in its header ({type(error).__name__})") from error
    return cast(dict[str, Any], manifest)


def _integrity(data: bytes, *, where: str) -> "re.Match[bytes]":
    found = _INTEGRITY.search(data, 8, 8 + MAX_HEADER)
    if found is None:
        raise unreadable(where, "no integrity digest in its manifest")
    return found
