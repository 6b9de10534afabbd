"""Engines that run ONNX graphs on the CPU: OpenVINO and ONNX Runtime; each is imported without its telemetry."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from jaxtyping import Float32, Shaped

from cde_rag.errors import CDEError, MissingExtraError, ModelError, how_to_install, require

Inputs: TypeAlias = Mapping[str, Shaped[np.ndarray, "..."]]
_PRECISIONS: Final = {"float32": "f32", "bfloat16": "bf16"}
_KERNELS: Final = 128  # that OpenVINO keeps; one that was compiled for a shape is of a megabyte
_TELEMETRY: Final = "openvino_telemetry"


@runtime_checkable
class CompiledGraph(Protocol):
    """A compiled graph. Thread-safe."""

    def run(self, inputs: Inputs) -> Float32[np.ndarray, "..."]:
        """Compute the graph's output."""
        ...


class OpenVinoEngine:
    """A graph compiled by OpenVINO.

    Args:
        graph: A serialised ONNX model, or its file.
        threads: CPU threads.
        dtype: "float32", or "bfloat16" where the CPU has it.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """

    def __init__(self, graph: Path | bytes, *, threads: int, dtype: str) -> None:
        openvino = _openvino()
        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # the cores may be shared
            "CPU_RUNTIME_CACHE_CAPACITY": _KERNELS,  # the default, 5 000, takes gigabytes
        }
        model = core.read_model(str(graph) if isinstance(graph, Path) else graph)
        self._compiled: Any = core.compile_model(model, "CPU", settings)
        self._idle: deque[Any] = deque()  # requests of this graph; one is used by one thread at a time

    def run(self, inputs: Inputs) -> Float32[np.ndarray, "..."]:
        """Compute the graph's output."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        request.infer(dict(inputs), share_inputs=True)
        found = np.array(request.get_output_tensor(0).data, dtype=np.float32)
        self._idle.append(request)
        return found


def _openvino() -> Any:
    """Import OpenVINO without its telemetry, which OpenVINO leaves out if the package cannot be imported.

    It would send each import to Google Analytics, in a process forked from this one, unless the user had opted out.
    """
    if _TELEMETRY in sys.modules:
        return require("openvino", "openvino")
    cast("dict[str, ModuleType | None]", sys.modules)[_TELEMETRY] = None
    try:
        return require("openvino", "openvino")
    finally:
        sys.modules.pop(_TELEMETRY, None)


class OnnxEngine:
    """A graph in a session of ONNX Runtime.

    Args:
        graph: A serialised ONNX model, or its file.
        threads: CPU threads.
        dtype: "float32".

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
        ModelError: Another dtype.
    """

    def __init__(self, graph: Path | bytes, *, threads: int, dtype: str) -> None:
        if dtype != "float32":
            raise ModelError(f"The runtime 'onnx' computes in float32, not in {dtype}. Leave dtype out.")
        runtime = _onnx_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores may be shared
        source = str(graph) if isinstance(graph, Path) else graph
        self._session: Any = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def run(self, inputs: Inputs) -> Float32[np.ndarray, "..."]:
        """Compute the graph's output."""
        found: Float32[np.ndarray, ...] = self._session.run(None, dict(inputs))[0]
        return found


def _onnx_runtime() -> Any:
    """Import ONNX Runtime without its telemetry, which sends events to Microsoft and keeps an id in the cache."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return require("onnxruntime", "onnx")


ENGINES: Final = {"openvino": OpenVinoEngine, "onnx": OnnxEngine}


class CompiledGraphs:
    """Compiled graphs of one model in one runtime; each is compiled on first use. Thread-safe.

    Args:
        runtime: "openvino" or "onnx".
        dtype: "float32"; with OpenVINO also "bfloat16".

    Raises:
        ModelError: The runtime has no such dtype.
    """

    def __init__(self, runtime: str, dtype: str) -> None:
        if dtype not in _PRECISIONS:
            raise ModelError(f"Expected dtype float32 or bfloat16 with the runtime {runtime!r}, found {dtype!r}.")
        self.runtime, self.dtype = runtime, dtype
        self._compiling = threading.Lock()
        self._compiled: dict[tuple[str, int], CompiledGraph] = {}

    def get(
        self, stage: str, threads: int, graph: Callable[[], Path | bytes], dtype: str | None = None
    ) -> CompiledGraph:
        """Return a compiled graph.

        Args:
            stage: Name of the graph.
            threads: CPU threads.
            graph: Returns the graph or its file, for the first use.
            dtype: Another dtype than that of the model.

        Raises:
            MissingExtraError: The runtime is not installed, or cannot compile the graph, as an old version.
            ModelError: The runtime has no such dtype.
        """
        key = (stage, threads)
        if (found := self._compiled.get(key)) is not None:
            return found
        with self._compiling:
            if key not in self._compiled:
                self._compiled[key] = self._compile(graph(), threads, dtype or self.dtype)
            return self._compiled[key]

    def _compile(self, graph: Path | bytes, threads: int, dtype: str) -> CompiledGraph:
        try:
            return ENGINES[self.runtime](graph, threads=threads, dtype=dtype)
        except (CDEError, MemoryError):
            raise
        except Exception as error:  # ONNX Runtime's errors have no other base
            raise MissingExtraError(
                f"The runtime {self.runtime!r} that is installed does not compile this model: {error!s:.300}. It may "
                f"be too old. {how_to_install(self.runtime)}"
            ) from error
