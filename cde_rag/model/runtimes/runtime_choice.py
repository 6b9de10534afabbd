"""Choice of a runtime by measuring: each one that is installed embeds a fixed sample, and the fastest is taken.

The result is kept in the user's cache folder, for each model, CPU and set of versions:

    $XDG_CACHE_HOME/cde-rag/runtimes/<key>.json      by default in ~/.cache

Only runtimes that share the vector space are compared: the cosine of a text's vector to that of the reference in
float32 has to be `SAME_SPACE` at least, for every text of the sample.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._version import __version__
from cde_rag.context.cache import cache_folder
from cde_rag.context.generic_documents import generic_documents
from cde_rag.errors import ContextError, MissingExtraError, ModelError
from cde_rag.model.roles import DOCUMENT, QUERY
from cde_rag.model.stage_runner import StageRunner
from cde_rag.model.tokenizer import TextTokenizer

VARIABLE: Final = "CDE_RAG_RUNTIME"  # of the environment: the runtime where none is given
RUNTIMES: Final = {"torch": ("torch",), "openvino": ("openvino", "onnx"), "onnx": ("onnxruntime", "onnx")}
SAME_SPACE: Final = 0.9999  # cosine to the reference, at least
DOCUMENTS: Final = 16  # of the sample
SECONDS: Final = 0.4  # of measuring, for each runtime and dtype
FLAGS: Final = ("avx", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class Timing:
    """Times of a runtime in a dtype.

    Attributes:
        runtime: "torch", "openvino" or "onnx".
        dtype: Dtype of the second stage's layers.
        document_ms: Milliseconds per document of a batch.
        query_ms: Milliseconds of a single query, on one thread.
        cosine: Smallest cosine of a vector of the sample to that of the reference.
    """

    runtime: str
    dtype: str
    document_ms: float
    query_ms: float
    cosine: float

    @property
    def shares_space(self) -> bool:
        """True if the vectors differ from the reference's by rounding only."""
        return self.cosine >= SAME_SPACE


def installed() -> dict[str, dict[str, str]]:
    """Return the runtimes that are installed, with the versions of their packages."""
    found: dict[str, dict[str, str]] = {}
    for runtime, packages in RUNTIMES.items():
        with suppress(importlib.metadata.PackageNotFoundError):
            found[runtime] = {package: importlib.metadata.version(package) for package in packages}
    return found


def cpu_flags() -> list[str]:
    """Return the flags of the CPU that matter to speed, as Linux names them; none on other systems."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                here = set(line.partition(":")[2].split())
                return [flag for flag in FLAGS if flag in here]
    return []


def cpu_name() -> str:
    """Return the name of the CPU."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def asked(runtime: str | None) -> str | None:
    """Return the runtime that is given, or that of the environment; None to measure.

    Raises:
        ModelError: There is no such runtime.
    """
    chosen = runtime or os.environ.get(VARIABLE) or None
    if chosen not in (None, *RUNTIMES):
        raise ModelError(f"Expected the runtime {', '.join(RUNTIMES)}, found {chosen!r}.")
    return chosen


def native_bfloat16() -> bool:
    """Return True if the CPU computes in bfloat16 natively; on Linux alone, where its flags can be read."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_flags()))


def default_dtype(runtime: str) -> str:
    """Return the dtype of a runtime without torch where none is given."""
    return "bfloat16" if runtime == "openvino" and native_bfloat16() else "float32"


def candidates() -> list[tuple[str, str]]:
    """Return the runtimes and dtypes that can be measured here, references first."""
    here, dtypes = installed(), ["float32", *(["bfloat16"] if native_bfloat16() else [])]
    return [(runtime, dtype) for dtype in dtypes for runtime in here if (runtime, dtype) != ("onnx", "bfloat16")]


def kept(digest: str) -> list[Timing] | None:
    """Read the times of a model on this machine; None if it was not measured, or not with these versions."""
    with suppress(OSError, ValueError, TypeError, LookupError, ContextError):
        value: Any = json.loads(_path(digest).read_text(encoding="utf-8"))
        if value["key"] == _key(digest):
            return [Timing(**row) for row in value["timings"]]
    return None


def keep(digest: str, timings: Sequence[Timing]) -> bool:
    """Write the times of a model, atomically; returns False if the cache is not writable."""
    try:
        path = _path(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        content = {"key": _key(digest), "timings": [asdict(row) for row in timings]}
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except (OSError, ContextError):
        return False
    return True


def measure(load: Callable[[str, str], StageRunner], tokenizer: TextTokenizer, max_length: int) -> list[Timing]:
    """Measure all runtimes that are installed, for some tenths of a second each.

    Args:
        load: Loads the stages in a runtime and a dtype.
        tokenizer: Tokenizer of the model.
        max_length: Maximum tokens of a text.

    Returns:
        The times, references first; a runtime whose packages cannot be imported is left out.
    """
    texts = [text for text in generic_documents(None) if len(text) > 100][:DOCUMENTS] or generic_documents(DOCUMENTS)
    rows = [tokens.ids for tokens in tokenizer(texts, max_length)]
    query = [tokenizer([" ".join(texts[0].split()[:10])], max_length)[0].ids]
    timings: list[Timing] = []
    reference: Float32[np.ndarray, "batch dim"] | None = None
    for runtime, dtype in candidates():
        try:
            stages = load(runtime, dtype)
        except (MissingExtraError, ImportError):
            continue
        row, vectors = _timing(stages, rows, query)
        reference = vectors if reference is None else reference
        cosines = (vectors * reference).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        timings.append(replace(row, cosine=float(cosines.min())))
    return timings


def _timing(
    stages: StageRunner, rows: Sequence[Sequence[int]], query: Sequence[Sequence[int]]
) -> tuple[Timing, Float32[np.ndarray, "batch dim"]]:
    """Return the times of a runtime, without its cosine, and its vectors of the sample."""
    empty = np.zeros((0, stages.read(query).shape[1]), dtype=np.float32)
    prepared = stages.prepare(empty, np.zeros(0, dtype=np.int64))
    document = _seconds(lambda: stages.embed(rows, DOCUMENT, prepared, None, None)) / len(rows)
    single = _seconds(lambda: stages.embed(query, QUERY, prepared, None, None))
    vectors = stages.embed(rows, DOCUMENT, prepared, None, None)
    return Timing(stages.runtime, stages.dtype, 1e3 * document, 1e3 * single, 1.0), vectors


def fastest(timings: Sequence[Timing], dtype: str | None = None, runtime: str | None = None) -> Timing | None:
    """Return the fastest row that shares the space, by the geometric mean of both times; None if there is none.

    Args:
        timings: Rows of `measure`.
        dtype: The only dtype, if one is given.
        runtime: The only runtime, if one is given.
    """
    rows = [row for row in timings if row.shares_space and dtype in (None, row.dtype)]
    rows = [row for row in rows if runtime in (None, row.runtime)]
    return min(rows, key=lambda row: row.document_ms * row.query_ms, default=None)


def _seconds(work: Callable[[], object]) -> float:
    """Return the smallest time of a call, after one that is not counted."""
    work()
    best, end = float("inf"), time.perf_counter() + SECONDS / 2
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _key(digest: str) -> dict[str, Any]:
    return {
        "cde_rag": __version__,
        "model": digest,
        "cpu": cpu_name(),
        "flags": cpu_flags(),
        "machine": platform.machine(),
        "runtimes": installed(),
    }


def _path(digest: str) -> Path:
    name = hashlib.sha256(json.dumps(_key(digest), sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "runtimes" / f"{name}.json"
