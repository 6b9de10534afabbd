"""User's cache of ONNX graphs: one file for each stage of a model, whose name has the sha256 of its content.

    $XDG_CACHE_HOME/cde-rag/graphs/<model>-<stage>-<format>.<sha256>.onnx      by default in ~/.cache

A file appears complete or not at all. One whose content is not that of its name is built again. Files can be deleted at
any time.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cde_rag._files import file_sha256
from cde_rag.context.cache import cache_folder
from cde_rag.errors import ContextError

FORMAT: Final = 1  # of the graphs; raised when `stage_graphs` changes them


def graphs_folder() -> Path:
    """Return the folder of graphs.

    Raises:
        ContextError: The user has no home folder, and `XDG_CACHE_HOME` is not set.
    """
    return cache_folder() / "graphs"


def kept_graph(digest: str, stage: str, build: Callable[[], bytes]) -> Path | bytes:
    """Return the verified file of a graph, built on first use; its content where there is no writable cache.

    Args:
        digest: Digest of the model.
        stage: Name of the stage.
        build: Builds the graph.
    """
    start = f"{digest[:32]}-{stage}-{FORMAT}"
    try:
        folder = graphs_folder()
        found_paths = sorted(folder.glob(f"{start}.*.onnx"))
    except (ContextError, OSError):  # no home, or one that may not be entered, as that of a systemd unit
        return build()
    for path in found_paths:
        if (found := _sha256(path)) is not None and path.name == f"{start}.{found}.onnx":
            return path
    content = build()
    path = folder / f"{start}.{hashlib.sha256(content).hexdigest()}.onnx"
    return path if _write(path, content) else content


def _write(path: Path, content: bytes) -> bool:
    """Write a file atomically; returns False if the folder is not writable, or full."""
    temporary = ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True


def _sha256(path: Path) -> str | None:
    """Return the sha256 of a file in hex; None if it cannot be read."""
    try:
        return file_sha256(path)
    except OSError:
        return None
