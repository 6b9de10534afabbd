"""What engines and the allocator keep is bounded: kernels by number, shapes by rounding, buffers by size."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder
from cde_rag.cli import app
from cde_rag.models.batching import padded
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.runtimes.engines import Inputs, OnnxEngine, OpenVinoEngine

KERNELS = 128  # at most
pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    return tmp_path / "model"


def test_openvino_keeps_few_kernels(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino")
    compiled = list[int]()
    compile_model = openvino.Core.compile_model

    def recorded(core: object, graph: object, device: str, settings: dict[str, object]) -> object:
        compiled.append(int(str(settings["CPU_RUNTIME_CACHE_CAPACITY"])))
        return compile_model(core, graph, device, settings)

    monkeypatch.setattr(openvino.Core, "compile_model", recorded)
    loaded = CDEModel.from_pretrained(model, runtime="openvino")
    ContextualEmbedder(loaded, Context.null(loaded)).embed_documents(["river", "bank"])
    assert compiled
    assert max(compiled) <= KERNELS


@pytest.mark.parametrize("engine", [OpenVinoEngine, OnnxEngine])
def test_texts_of_all_lengths_have_few_shapes(
    model: Path, monkeypatch: pytest.MonkeyPatch, engine: type[OpenVinoEngine | OnnxEngine]
) -> None:
    runtime = "openvino" if engine is OpenVinoEngine else "onnx"
    pytest.importorskip("openvino" if engine is OpenVinoEngine else "onnxruntime")
    shapes, run = set[tuple[int, ...]](), engine.run
    loaded = CDEModel.from_pretrained(model, runtime=runtime)

    def recorded(self: OpenVinoEngine | OnnxEngine, inputs: Inputs) -> np.ndarray:
        shapes.add(inputs["words"].shape[:2])
        return run(self, inputs)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(engine, "run", recorded)
    embedder = ContextualEmbedder(loaded, Context.null(loaded))
    limit = loaded.config.max_length
    lengths = range(1, limit + 3)
    for length in lengths:
        embedder.embed_queries([" ".join(["river"] * length)])
    assert len(shapes) <= -(-limit // 8)
    assert max(width for _, width in shapes) <= loaded.config.max_positions  # pyright: ignore[reportAttributeAccessIssue]


def test_lengths_are_rounded_up_to_the_room() -> None:
    widths = {length: padded([[1] * length, [1]], room=20)[0].shape[1] for length in range(1, 26)}
    assert [widths[length] for length in (1, 8, 9, 16, 17, 20, 21, 25)] == [8, 8, 16, 16, 20, 20, 21, 25]
    assert [padded([[1] * length])[0].shape[1] for length in (1, 9)] == [1, 9]
    ids, mask = padded([[5, 6], [7]], room=8)
    assert ids.tolist() == [[5, 6, *[0] * 6], [7, *[0] * 7]]
    assert mask.sum(axis=1).tolist() == [2, 1]


FREED = """
import ctypes, os, sys
from cde_rag.models.runtimes.native_memory import bound_native_memory

if sys.argv[1] == "bounded":
    bound_native_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]


class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena blocks small mapped mapped_bytes a b c d e".split()]


libc.mallinfo2.restype = Usage
libc.free(libc.malloc(2**24))  # by itself, glibc keeps buffers up to that size from now on
before = libc.mallinfo2().mapped
kept = [libc.malloc(2**20) for _ in range(8)]
print(libc.mallinfo2().mapped - before, os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY"))
"""


def test_large_buffers_go_back_to_the_system() -> None:
    import platform

    if platform.libc_ver() < ("glibc", "2.33"):
        pytest.skip("mallinfo2 is of glibc 2.33")
    bounds = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "MALLOC_MMAP_THRESHOLD_")  # a server in this process sets them
    clean = {name: value for name, value in os.environ.items() if name not in bounds}
    found = [
        subprocess.run(
            [sys.executable, "-c", FREED, how], capture_output=True, text=True, check=True, env=clean
        ).stdout.split()
        for how in ("bounded", "as it is")
    ]
    assert found == [["8", "128"], ["0", "None"]]


def test_a_server_is_bounded(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    Collection.from_texts(
        [f"river {number}" for number in range(70)], store=tmp_path / "docs.faiss", model=model
    ).close()
    bounds = list[str | None]()
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setattr(
        "cde_rag.server.uvicorn_server.run",
        lambda *_: bounds.append(os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY")),
    )
    result = CliRunner().invoke(
        app, ["serve", str(tmp_path / "docs.faiss"), "--model", str(model), "--llm", "none", "--port", "0"]
    )
    assert (result.exit_code, bounds) == (0, ["128"]), result.output
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
