"""Data-parallel training: all processes' documents are negatives, with the gradients of a single process.

A process computes the loss of its own queries. `average_gradients` then makes the gradients those of the mean of all
processes' losses, which is the loss of the whole batch, since all have equally many queries.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import FunctionCtx

from cde_rag_training.recipe import RecipeError

PATIENCE = timedelta(hours=6)  # that processes wait for the first one, which prepares and evaluates


class _Gather(torch.autograd.Function):
    """All-gather of rows, in order of rank. A row's gradient is the sum of its gradients from all processes' losses."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor) -> Tensor:  # noqa: ARG004
        return _gathered(rows)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def _gathered(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def own_first(rows: Float[Tensor, "own dim"]) -> Float[Tensor, "all dim"]:
    """Gather the rows of all processes: this process's first, then the others' in order of rank. Differentiable.

    Without a process group, return the rows unchanged.

    Args:
        rows: Equally many in every process.

    Raises:
        ValueError: The processes hold different numbers of rows.

    Source: ours; large batches across devices as in GTE §3.4.
    """
    if not dist.is_initialized():
        return rows
    _expect_equal(rows)
    count, start = len(rows), len(rows) * dist.get_rank()
    everything = _Gather.apply(rows)
    assert isinstance(everything, Tensor)
    return torch.cat([everything[start : start + count], everything[:start], everything[start + count :]])


def _expect_equal(rows: Shaped[Tensor, "own dim"]) -> None:
    counts = _gathered(torch.tensor([len(rows)], device=rows.device)).tolist()
    if len(set(counts)) > 1:
        raise ValueError(
            f"Expected equally many rows in every process, found {counts}. Give each process a full batch of its own."
        )


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over all processes, in place; nothing without a process group.

    A parameter without a gradient counts as zero, since another process may have one.
    """
    if not dist.is_initialized():
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def count() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def averages(values: Sequence[float], *, device: torch.device) -> list[float]:
    """Average each figure over all processes."""
    if not dist.is_initialized():
        return list(values)
    figures = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(figures)
    return (figures / dist.get_world_size()).tolist()


def of_first(value: float, *, device: torch.device) -> float:
    """Return the first process's figure, such as its clock's."""
    if not dist.is_initialized():
        return value
    figure = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(figure, 0)
    return float(figure)


@contextmanager
def first_one_first() -> Iterator[None]:
    """Run the block in the first process, then in the others, which can use the files it wrote."""
    if rank() > 0:
        dist.barrier()
    yield
    if dist.is_initialized() and rank() == 0:
        dist.barrier()


def check_device(device: str) -> None:
    """Check that torch can compute on a device.

    Args:
        device: Such as "cpu" or "cuda:0".

    Raises:
        RecipeError: It cannot, such as where no GPU is found.
    """
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RecipeError(
            f"Expected a device of this machine, found {device!r}, which torch cannot use: {reason}. Use cpu."
        ) from error


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the process group set up by torchrun, if any and if not joined yet, and leave it at the end.

    Args:
        device: "cpu" or "cuda".

    Yields:
        The device of this process.
    """
    if dist.is_initialized() or "WORLD_SIZE" not in os.environ:
        yield device
        return
    on_gpu = device.startswith("cuda")
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else device
    finally:
        dist.destroy_process_group()
