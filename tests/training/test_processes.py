"""Two processes with half a batch each get the gradients of one process with the whole batch."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

from cde_rag_training.loop.gradcache import CachedStage, second_stage_step
from cde_rag_training.losses.loss import contrastive_loss, improved_contrastive_loss
from cde_rag_training.processes import average_gradients, own_first

PAIRS, DIM, TEMPERATURE = 6, 5, 0.1


def embedder():
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"queries": torch.nn.Linear(4, DIM), "documents": torch.nn.Linear(4, DIM)}).double()


def data():
    random = torch.Generator().manual_seed(1)
    inputs = {side: torch.randn(PAIRS, 4, generator=random, dtype=torch.double) for side in ("queries", "documents")}
    mask = (torch.rand(PAIRS, PAIRS, generator=random) < 0.3) & ~torch.eye(PAIRS, dtype=torch.bool)
    return inputs, mask


def vectors(model, side, rows):
    return F.normalize(model[side](rows), dim=1)


def whole(kind):
    model, (inputs, mask) = embedder(), data()
    sides = [vectors(model, side, inputs[side]) for side in ("queries", "documents")]
    loss = (improved_contrastive_loss if kind == "improved" else contrastive_loss)(*sides, mask, TEMPERATURE)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


def work(rank, port, queue, kind):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, (inputs, mask) = embedder(), data()
    mine, order = slice(3 * rank, 3 * rank + 3), [(row + 3 * rank) % PAIRS for row in range(PAIRS)]
    halves = {side: inputs[side][mine] for side in ("queries", "documents")}
    queries, documents = (vectors(model, side, half) for side, half in halves.items())

    def loss_of(embeddings):
        own, others = embeddings.chunk(2)
        everything = own_first(others)
        if kind == "improved":  # its partition function needs all queries: each process computes the whole loss
            return improved_contrastive_loss(own_first(own), everything, mask[order][:, order], TEMPERATURE)
        return contrastive_loss(own, everything, mask[order][:3, order], TEMPERATURE)

    if kind == "cached":
        stage = CachedStage(lambda part, given: vectors(model, *part))
        parts = [(side, part) for side, half in halves.items() for part in half.split(2)]
        loss = second_stage_step(stage, (), parts, loss_of)
    else:
        loss = loss_of(torch.cat([queries, documents]))
        loss.backward()
    average_gradients(model.parameters())
    refused = ""
    try:
        own_first(documents[: 2 + rank])
    except ValueError as error:
        refused = str(error)
    queue.put((rank, float(loss.detach()), [parameter.grad.tolist() for parameter in model.parameters()], refused))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.long) for kind in ("plain", "improved")), "cached"]
)
def test_two_processes_have_the_gradients_of_one(kind):
    context = multiprocessing.get_context("spawn")
    queue, port = context.SimpleQueue(), free_port()
    workers = [context.Process(target=work, args=(rank, port, queue, kind)) for rank in range(2)]
    for worker in workers:
        worker.start()
    results = sorted(queue.get() for _ in workers)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    loss, gradients = whole(kind)
    assert sum(result[1] for result in results) / 2 == pytest.approx(float(loss), abs=1e-12)
    for _, _, found, refused in results:
        for mine, expected in zip(found, gradients, strict=True):
            assert expected.norm() > 1e-4
            torch.testing.assert_close(torch.tensor(mine, dtype=torch.double), expected, atol=1e-13, rtol=1e-12)
        assert "Expected equally many rows in every process, found [2, 3]" in refused


def test_one_process_needs_no_group():
    rows = torch.randn(3, 2)
    assert own_first(rows) is rows
    average_gradients([rows])
