"""Threads of forward passes: one for a query, those of the process for a batch, and none left changed."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.model.threads import available_cores, batch_threads, limited_threads

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
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content + "\n")
    assert available_cores(tmp_path) == cores


def test_a_batch_has_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cde_rag.model.threads.available_cores", lambda: 1)
    assert batch_threads() == 1


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
