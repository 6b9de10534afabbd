"""User's cache of ONNX graphs: for each stage of a model a graph, and the file of its weights.

    $XDG_CACHE_HOME/cde-rag/graphs/<model>-<stage>-<format>.<sha256>.<sha256 of the weights>.onnx
    $XDG_CACHE_HOME/cde-rag/graphs/<model>-<stage>-<format>.<sha256>.weights         by default in ~/.cache

Weights have a file of their own, which runtimes map into memory, so that processes share its pages. A file appears
complete or not at all. One whose content is not that of its name is built again. Files can be deleted at any time.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cde_rag._files import file_sha256, replacing, write_durably
from cde_rag.context.cache import cache_folder
from cde_rag.errors import ContextError, require

EXTRA: Final = "onnx"
FORMAT: Final = 3  # of the files and graphs; raised when this module or `stage_graphs` changes them
_LARGE: Final = 1024  # bytes of a weight that goes into the file of weights
_PAGE: Final = 4096  # bytes; where weights begin, so that they can be mapped
_ABANDONED_S: Final = 600.0  # seconds since a file was written to, after which whoever wrote it has ended


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
        build: Builds the graph, with its weights.
    """
    start = f"{digest[:32]}-{stage}-{FORMAT}"
    try:
        folder = graphs_folder()
        found_paths = sorted(folder.glob(f"{start}.*.onnx"))
    except (ContextError, OSError):  # no home, or one that may not be entered, as that of a systemd unit
        return build()
    for path in found_paths:
        if _is_intact(path, start):
            return path
    content = build()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _write(folder, start, content)
    except OSError:  # not writable, or full
        return content


def _write(folder: Path, start: str, content: bytes) -> Path:
    """Write the files of a graph, the weights first; those of earlier formats, and of killed writers, are removed."""
    onnx: Any = require("onnx", EXTRA)
    model = onnx.load_model_from_string(content)
    large = [tensor for tensor in model.graph.initializer if len(tensor.raw_data) >= _LARGE]
    digest = hashlib.sha256()
    for tensor in large:
        digest.update(_padded(tensor.raw_data))
    weights = folder / f"{start}.{digest.hexdigest()}.weights"
    with replacing(weights) as temporary, temporary.open("xb") as file:
        for tensor in large:
            length, offset = len(tensor.raw_data), file.tell()
            file.write(_padded(tensor.raw_data))
            onnx.external_data_helper.set_external_data(tensor, weights.name, offset=offset, length=length)
            tensor.ClearField("raw_data")
    graph = model.SerializeToString(deterministic=True)
    path = folder / f"{start}.{hashlib.sha256(graph).hexdigest()}.{digest.hexdigest()}.onnx"
    write_durably(path, graph)
    model_and_stage = start.rpartition("-")[0]
    for old in folder.glob(f"{model_and_stage}-*"):
        if not old.name.startswith(f"{start}."):
            old.unlink(missing_ok=True)
    for unfinished in folder.glob(f".{model_and_stage}-*"):
        with suppress(FileNotFoundError):
            if time.time() - unfinished.stat().st_mtime > _ABANDONED_S:
                unfinished.unlink()
    return path


def _padded(weight: bytes) -> bytes:
    """Return a weight with zeros up to the next page."""
    return weight + bytes(-len(weight) % _PAGE)


def _is_intact(path: Path, start: str) -> bool:
    """Return True if the files of a graph have the content that their names say."""
    try:
        _, graph, weights = path.stem.rsplit(".", 2)
        return file_sha256(path) == graph and file_sha256(path.with_name(f"{start}.{weights}.weights")) == weights
    except (OSError, ValueError):  # cannot be read, or another name
        return False
