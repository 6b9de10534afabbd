"""Two processes, each with its half of a batch, train as one process with the whole of it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from prepared_stub import prepared_stub, stub_pairs
from tiny_run import config, phase, rows, start_folder

from cde_rag_training.config import LossConfig
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.training import train

KINDS = {
    "hard negatives": {"siblings": False},
    "siblings": {"siblings": True, "hard_negatives": False},
    "null": {"siblings": False, "context": False},
    "improved": {"siblings": False, "loss": LossConfig(kind="improved", temperature=0.1, dims=(16, 8))},
    "teacher": {"siblings": False, "loss": LossConfig(teacher="start", temperature=0.1)},
}


def gradients(folder):
    """Of every kind of update, averaged over all processes there are."""
    from test_gradients import batch_of, gradients_of

    from cde_rag_training.processes import average_gradients

    prepared, found = Prepared.load(folder), {}
    for kind, options in KINDS.items():
        options = dict(options)
        loss = options.pop("loss", LossConfig(temperature=0.1))
        _, given = gradients_of(prepared, batch_of(prepared, **options), loss=loss, averaged=average_gradients)
        found[kind] = {name: value for name, value in given.items() if value is not None}
    return found


def work(rank, folder, store, queue):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = gradients(folder)
    queue.put((rank, {kind: {name: each.numpy() for name, each in some.items()} for kind, some in found.items()}))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.long
def test_two_processes_have_the_gradients_of_one(tmp_path):
    pairs = [replace(pair, hard_negatives=(f"{pair.document} bank", f"{pair.query} loan")) for pair in stub_pairs(96)]
    folder = prepared_stub(tmp_path / "prepared", pairs).folder
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=work, args=(rank, folder, tmp_path / "store", queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get() for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    for kind, expected in gradients(folder).items():
        reached = {name: value for name, value in expected.items() if value.any()}
        assert len(reached) > 30
        for _, found in results:
            for name, value in reached.items():
                difference = (torch.from_numpy(found[kind][name]) - value).norm()
                assert difference <= 1e-5 * value.norm().clamp(min=1e-2), (kind, name)


@pytest.mark.slow
def test_torchrun_trains_as_one_process(tmp_path):
    start_folder(tmp_path / "start")
    prepared_stub(tmp_path / "prepared")
    prepared_stub(tmp_path / "held_out", stub_pairs(130)[96:])
    run = config(tmp_path / "start", phase(4))
    train(tmp_path / "prepared", run, tmp_path / "one", held_out=tmp_path / "held_out")
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from pathlib import Path
from tiny_run import config, phase
from cde_rag_training.loop.training import train
work = Path({str(tmp_path)!r})
train(work / "prepared", config(work / "start", phase(4)), work / "two", held_out=work / "held_out")
"""
    )
    path = os.pathsep.join(str(Path(__file__).parents[level]) for level in (0, 1))
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
        check=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    for found, expected in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        for name, value in expected.items():
            if name in ("phase", "corpus"):
                assert found[name] == value
            elif value:
                assert float(found[name]) == pytest.approx(float(value), rel=2e-3, abs=2e-4), name
    assert (tmp_path / "two" / "model" / "README.md").exists()
