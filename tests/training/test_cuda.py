"""Training on a GPU, where there is one: the losses of the CPU, in every precision and with layers computed again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub
from tiny_run import MACHINE, config, phase, rows, start_folder

from cde_rag_training.clustering.clusters import paired_kmeans
from cde_rag_training.loop.training import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.05), ("float16", 0.05)])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_run_has_the_losses_of_the_cpu(tmp_path, precision, tolerance, checkpoints):
    prepared, start = prepared_stub(tmp_path / "prepared"), start_folder(tmp_path / "start")
    for device in ("cpu", "cuda"):
        machine = replace(MACHINE, device=device, layer_checkpoints=checkpoints)
        machine = replace(machine, precision="float32" if device == "cpu" else precision)
        train(prepared, config(start, phase(4, batches_per_update=2), machine=machine), tmp_path / device)
    found, expected = ([float(row["loss"]) for row in rows(tmp_path / name)[1:]] for name in ("cuda", "cpu"))
    assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_kmeans_divides_planted_groups():
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("FAISS is built without GPUs")
    drawn, groups = np.random.default_rng(0), np.arange(600) % 3
    sides = [(np.eye(3, 16)[groups] + 0.05 * drawn.normal(size=(600, 16))).astype(np.float32) for _ in range(2)]
    queries, documents = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    found = paired_kmeans(queries, documents, count=3, steps=20, attempts=3, seed=0)
    assert len(set(zip(found.tolist(), groups.tolist(), strict=True))) == 3
