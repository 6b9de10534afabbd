"""Choice of a runtime by measuring: each one that is installed embeds a fixed sample, and the fastest is taken.

The result is kept in the user's cache folder, for each model, CPU and set of versions:

    $XDG_CACHE_HOME/cde-rag/runtimes/<key>.json      by default in ~/.cache

Times that vary too much, as on a busy machine, are measured again on the next loads, and the smaller ones are kept.

Only runtimes that share the vector space are compared: the cosine of a text's vector to that of the reference in
float32 has to be `SAME_SPACE` at least, for every text of the sample.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._files import read_file, write_durably
from cde_rag._version import __version__
from cde_rag.context.cache import cache_folder
from cde_rag.context.generic_documents import generic_documents
from cde_rag.errors import ContextError, MissingExtraError, ModelError, how_to_install
from cde_rag.models.runtimes.stage_runner import Dtype

_log = logging.getLogger(__name__)
Runtime: TypeAlias = Literal["torch", "openvino", "onnx", "numpy"]
"""Values of `runtime` where a model is loaded; "numpy" is for static tables alone."""

VARIABLE: Final = "CDE_RAG_RUNTIME"  # of the environment: the runtime where none is given
RUNTIMES: Final = {"torch": ("torch",), "openvino": ("openvino", "onnx"), "onnx": ("onnxruntime", "onnx")}
NUMPY: Final = "numpy"  # of static tables alone, which need no engine
WITHOUT_TORCH: Final = ("openvino", "onnx", NUMPY)
SAME_SPACE: Final = 0.9999  # cosine to the reference, at least
DOCUMENTS: Final = 16  # of the sample
SECONDS: Final = 0.4  # of measuring, for each runtime and dtype
CALLS: Final = 3  # of each kind, at least: fewer have no spread
SLOW: Final = 1.0  # seconds of a call, as of a two-way model, that is made twice
STEADY: Final = 1.5  # largest spread of times that decide for good
TRIES: Final = 3  # of measuring, until times are taken as they are
_Result = TypeVar("_Result")
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
        spread: Median time of a call over the smallest one, or time over processor time where calls waited for a core;
            the largest of documents and query.
    """

    runtime: str
    dtype: Dtype
    document_ms: float
    query_ms: float
    cosine: float
    spread: float

    @property
    def shares_space(self) -> bool:
        """True if the vectors differ from the reference's by rounding only."""
        return self.cosine >= SAME_SPACE

    @property
    def is_steady(self) -> bool:
        """True if the calls took nearly equal times, as on a quiet machine."""
        return self.spread <= STEADY

    def or_less(self, other: "Timing") -> "Timing":
        """Return the smaller times, spread and cosine of two measurements of one runtime and dtype."""
        pairs = zip(astuple(self)[2:], astuple(other)[2:], strict=True)
        return Timing(self.runtime, self.dtype, *map(min, pairs))


@dataclass(frozen=True)
class Measurement:
    """Times of a model's runtimes on this machine.

    Attributes:
        name: Name of the model, for people.
        tries: Number of times that all were measured.
        timings: Smallest times, references first.
    """

    name: str
    tries: int
    timings: Sequence[Timing]

    @property
    def is_settled(self) -> bool:
        """True if the times need no further measuring."""
        return self.tries >= TRIES or all(row.is_steady for row in self.timings)

    def repeated(self, later: Sequence[Timing]) -> "Measurement":
        """Return the smaller times of these and later ones; runtimes that were not measured again are left out."""
        before = {(row.runtime, row.dtype): row for row in self.timings}
        rows = [row.or_less(before.get((row.runtime, row.dtype), row)) for row in later]
        return Measurement(self.name, self.tries + 1, rows)


@dataclass(frozen=True)
class Trial:
    """A model in a runtime that embeds the sample.

    Attributes:
        runtime: "torch", "openvino" or "onnx".
        dtype: Dtype of the layers.
        documents: Embeds the sample's documents as a batch; unit norm.
        query: Embeds the sample's query.
    """

    runtime: str
    dtype: Dtype
    documents: Callable[[], Float32[np.ndarray, "batch dim"]]
    query: Callable[[], object]


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


def asked(runtime: Runtime | None) -> Runtime | None:
    """Return the runtime that is given, or that of the environment; None to measure.

    Raises:
        ModelError: There is no such runtime.
    """
    chosen = (os.environ.get(VARIABLE) or None) if runtime is None else runtime
    if chosen not in (None, *RUNTIMES, NUMPY):
        where = "" if runtime is not None else f" in the environment's {VARIABLE}"
        raise ModelError(f"Expected the runtime {', '.join(RUNTIMES)}, found {chosen!r}{where}.")
    return cast("Runtime | None", chosen)


def native_bfloat16() -> bool:
    """Return True if the CPU computes in bfloat16 natively; on Linux alone, where its flags can be read."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_flags()))


def default_dtype(runtime: str) -> Dtype:
    """Return the dtype of a runtime without torch where none is given."""
    return "bfloat16" if runtime == "openvino" and native_bfloat16() else "float32"


def choose(
    runtime: Runtime | None, timings: Callable[[], Sequence[Timing]], *, device: str | None, dtype: Dtype | None
) -> tuple[str, Dtype | None]:
    """Choose the runtime and dtype of a model: those that are given, or the fastest ones on this machine.

    Args:
        runtime: Result of `asked`.
        timings: Returns the times of the model's runtimes on this machine.
        device: Such as "cpu"; anything else runs in torch.
        dtype: Dtype of the layers; None: torch's own choice, or the fastest.

    Returns:
        The runtime, and its dtype; None for torch's own choice.

    Raises:
        MissingExtraError: No runtime is installed.
        ModelError: The runtime does not run on the device.
    """
    if runtime == "torch":
        return "torch", dtype
    if runtime == NUMPY:
        raise ModelError(f"The runtime {NUMPY!r} runs static tables alone; this model is none. Leave runtime out.")
    if runtime is not None:
        if device not in (None, "cpu"):
            raise ModelError(
                f"The runtime {runtime!r} runs on the CPU, not on {device!r}. Leave device or runtime out."
            )
        return runtime, dtype or default_dtype(runtime)
    here = installed()
    if not here:
        raise MissingExtraError(f"No runtime for models is installed. {how_to_install('openvino')}, or 'torch'.")
    if device not in (None, "cpu") or dtype == "float16" or list(here) == ["torch"] or (device is None and _gpu()):
        return "torch", dtype
    if len(only := candidates()) == 1 and dtype in (None, only[0][1]):
        return only[0]
    best = fastest(timings(), dtype)
    return ("torch", dtype) if best is None else (best.runtime, best.dtype)


def candidates() -> list[tuple[str, Dtype]]:
    """Return the runtimes and dtypes that can be measured here, references first."""
    dtypes: list[Dtype] = ["float32", "bfloat16"] if native_bfloat16() else ["float32"]
    return [(runtime, dtype) for dtype in dtypes for runtime in installed() if (runtime, dtype) != ("onnx", "bfloat16")]


def timings(digest: str, name: str, load: Callable[[str, Dtype], Trial], *, again: bool = False) -> Sequence[Timing]:
    """Return the times of a model's runtimes on this machine, measured if the user's cache has no steady ones.

    The first measuring is logged with level INFO: it may take up to a minute. It is repeated, without a word, until
    times are steady.

    Args:
        digest: Digest of the model.
        name: Its name, for people.
        load: Loads the model in a runtime and a dtype.
        again: Measure anew in any case.
    """
    before = None if again else _read(digest)
    if before is not None and before.is_settled:
        return before.timings
    if before is None:
        _log.info("Measuring which runtime is fastest for %s on this machine; the result is kept.", name)
    found = measure(load)
    measurement = Measurement(name, 1, found) if before is None else before.repeated(found)
    _keep(digest, measurement)
    return measurement.timings


def kept() -> list[Measurement]:
    """Read the measurements of all models on this machine with these versions, by name."""
    with suppress(OSError, ContextError):
        found = [_parsed(path) for path in (cache_folder() / "runtimes").glob("*.json")]
        return sorted((each for each in found if each is not None), key=lambda each: each.name)
    return []


def _read(digest: str) -> Measurement | None:
    with suppress(ContextError):
        return _parsed(_path(digest))
    return None


def _parsed(path: Path) -> Measurement | None:
    """Read a measurement; None if there is none, or a damaged one, or one of another machine or other versions."""
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        value: Any = json.loads(read_file(path))
        if value["key"] == _key(value["key"]["model"]):
            rows = [Timing(**row) for row in value["timings"]]
            numbers = [number for row in rows for number in astuple(row)[2:]]
            known = {(row.runtime, row.dtype) for row in rows} <= set(candidates())
            if rows and known and all(isinstance(number, float) for number in numbers):
                return Measurement(str(value["name"]), int(value["tries"]), rows)
    return None


def _keep(digest: str, measurement: Measurement) -> None:
    """Write a measurement atomically, if the cache is writable."""
    with suppress(OSError, ContextError):
        path = _path(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"key": _key(digest), **asdict(measurement)}
        write_durably(path, f"{json.dumps(content, indent=2)}\n".encode())


def sample() -> tuple[list[str], str]:
    """Return the documents and the query that runtimes are measured with."""
    texts = [text for text in generic_documents(None) if len(text) > 100][:DOCUMENTS] or generic_documents(DOCUMENTS)
    return texts, " ".join(texts[0].split()[:10])


def measure(load: Callable[[str, Dtype], Trial]) -> list[Timing]:
    """Measure all runtimes that are installed, for some tenths of a second each.

    Args:
        load: Loads the model in a runtime and a dtype.

    Returns:
        The times, references first; a runtime that cannot be imported, or is too old for the graphs, is left out.

    Raises:
        MissingExtraError: All of them had to be left out.
    """
    found: list[Timing] = []
    missing: ImportError | None = None
    reference: Float32[np.ndarray, "batch dim"] | None = None
    for runtime, dtype in candidates():
        try:
            trial = load(runtime, dtype)
        except ImportError as error:
            missing = error
            continue
        document, of_documents, vectors = _seconds(trial.documents)
        query, of_query, _ = _seconds(trial.query)
        reference = vectors if reference is None else reference
        cosines = (vectors * reference).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        times = 1e3 * document / len(vectors), 1e3 * query
        spread = max(of_documents, of_query)
        found.append(Timing(trial.runtime, trial.dtype, *times, float(cosines.min()), spread))
        del trial  # one model at a time is in memory
    if missing is not None and not found:
        raise MissingExtraError(f"No runtime works here: {missing}") from missing
    return found


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


def _seconds(work: Callable[[], _Result]) -> tuple[float, float, _Result]:
    """Return the smallest time of a call, the spread of the times, and a call's result.

    The first call is counted only if it is slow; then there is one more.
    """
    seconds, processor, result = _timed(work)
    is_slow = seconds > SLOW
    calls = [(seconds, processor)] if is_slow else []
    end = time.perf_counter() + SECONDS / 2
    while len(calls) < (2 if is_slow else CALLS) or time.perf_counter() < end:
        calls.append(_timed(work)[:2])
    times, of_processor = zip(*calls, strict=True)
    waited = sum(times) / (sum(of_processor) or sum(times))  # another process that never rests leaves times alike
    return min(times), max(median(times) / min(times), waited), result


def _timed(work: Callable[[], _Result]) -> tuple[float, float, _Result]:
    """Return the time of a call, that of the processor, and the call's result."""
    start, processor = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - start, time.process_time() - processor, result


def _gpu() -> bool:
    """Return True if torch would compute on a GPU; torch is imported only on machines that may have one."""
    torch_version = installed().get("torch", {}).get("torch", "+cpu")
    if torch_version.endswith("+cpu") or not (sys.platform == "win32" or Path("/dev/nvidiactl").exists()):
        return False
    import torch

    return torch.cuda.is_available()


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
