"""Threads of forward passes: one for a query, those of the process for a batch, and none left changed."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.models.one_way.graph import Graph
from cde_rag.models.runtimes.engines import ENGINES
from cde_rag.models.runtimes.threads import available_cores, batch_threads, limited_threads

CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({"cpu.max": "max 100000"}, CORES),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "20000 100000"}, 1),
        ({"cpu.max": "no numbers"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, CORES),
    ],
)
def test_cores_are_those_of_affinity_and_quota(files: dict[str, str], cores: int, tmp_path: Path):
    write(tmp_path, files)
    assert available_cores(tmp_path, tmp_path / "none") == cores


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"system.slice/cde-rag.service/cpu.max": "{0}0000 10000"}, "0::/system.slice/cde-rag.service"),
        ({"system.slice/cpu.max": "{0}0000 10000", "system.slice/a/cpu.max": "max 10000"}, "0::/system.slice/a"),
        (
            {"cpu/a/b/cpu.cfs_quota_us": "{0}0000", "cpu/a/b/cpu.cfs_period_us": "10000", "cpu.max": "max 10000"},
            "3:memory:/c\n2:cpu,cpuacct:/a/b\n0::/d",
        ),
        ({"cpu.max": "{0}0000 10000"}, "0::/docker/which/is/not/there"),
        ({"cpu.max": "{0}0000 10000"}, "0::/../.."),
        ({"cpu.max": "{0}0000 10000"}, "no groups"),
        ({"cpu.max": "{0}0000 10000"}, "1:cpu:relative"),
    ],
)
def test_the_quota_of_a_systemd_service_counts(
    files: dict[str, str], own: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its group is not the root of the tree, as that of a container is."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    write(tmp_path, {name: content.format(number) for name, content in files.items()} | {"own": own})
    assert available_cores(tmp_path, tmp_path / "own") == number


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


def test_a_batch_has_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cde_rag.models.runtimes.threads.available_cores", lambda: 1)
    assert batch_threads() == 1


def test_the_environment_gives_the_threads_of_a_batch(monkeypatch: pytest.MonkeyPatch):
    """Before torch is imported, or while another thread imports it."""
    monkeypatch.setattr("cde_rag.models.runtimes.threads.available_cores", lambda: 4)
    for module in (None, ModuleType("torch")):
        monkeypatch.setitem(sys.modules, "torch", module)
        for value, threads in {"3": 3, " 2,1": 2, "9": 4, "0": 4, "-1": 4, "many": 4, "": 4}.items():
            monkeypatch.setenv("OMP_NUM_THREADS", value)
            assert batch_threads() == threads
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert batch_threads() == 4


@pytest.mark.parametrize("threads", [1, min(2, CORES)])
@pytest.mark.parametrize("runtime", ["openvino", "onnx"])
def test_engines_take_the_threads_that_are_asked_for(runtime: str, threads: int):
    graph = Graph()
    content = graph.finish(graph.unit(graph.input("x", ("batch", 2))), "batch", 2)
    engine: Any = ENGINES[runtime](content, threads=threads, dtype="float32")
    if runtime == "openvino":
        assert engine._compiled.get_property("INFERENCE_NUM_THREADS") == threads
    else:
        assert engine._session.get_session_options().intra_op_num_threads == threads


def test_threads_are_reset_after_an_error():
    def fail() -> None:
        with limited_threads(1):
            raise ValueError(f"stopped with {torch.get_num_threads()}")

    with pytest.raises(ValueError, match="stopped with 1"):
        fail()
    assert torch.get_num_threads() == 2


def test_a_query_takes_one_thread_and_a_batch_those_of_the_process(tiny_model: CDEModel):
    model = CDEModel(tiny_model.network, tiny_model.tokenizer, "0" * 64, dtype="float32")
    embedder, seen = ContextualEmbedder(model, Context.null(model)), list[int]()
    hook = model.network.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    embedder.embed_queries(["river"])
    embedder.embed_queries(["river", "bank"])
    embedder.embed_documents(["river"])
    hook.remove()
    assert seen == [1, model.threads, model.threads]
    assert torch.get_num_threads() == 2


def test_searches_side_by_side_leave_the_threads_as_they_were(tiny_model: CDEModel):
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    expected = embedder.embed_queries(["river"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: embedder.embed_queries(["river"]), range(64)))
    assert all((each == expected).all() for each in found)
    assert torch.get_num_threads() == 2
