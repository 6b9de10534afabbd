"""Which compiled graphs a runner asks for."""

from collections.abc import Callable
from typing import Any

from cde_rag.models.runtimes.engines import CompiledGraphs


def recording(asked: list[tuple[str, int]]) -> Callable[..., Any]:
    """Return a `CompiledGraphs.get` that appends each stage with its threads to a list, and compiles for one thread."""
    get = CompiledGraphs.get
    return lambda self, stage, threads, *rest: asked.append((stage, threads)) or get(self, stage, 1, *rest)
