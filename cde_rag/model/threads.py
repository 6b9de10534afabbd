"""CPU threads of forward passes.

A single query takes one thread: where other work shares the cores, the threads of a parallel region wait for the
slowest of them, and a query of some milliseconds takes up to thirty times as long (`benchmarks/threads.py`). A batch
takes PyTorch's number of threads, at most the cores that this process may use. Nothing here loads PyTorch by itself.
"""

import math
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = CGROUP) -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its control group's quota.

    Args:
        cgroup: Folder of the control group, version 2 (`cpu.max`) or 1 (`cpu/cpu.cfs_quota_us`).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, _quota(cgroup))))


def batch_threads() -> int:
    """Return the threads of a batch, at most the cores.

    They are PyTorch's (`OMP_NUM_THREADS`, `torch.set_num_threads`) where it is loaded, else those of `OMP_NUM_THREADS`.
    """
    if (torch := sys.modules.get("torch")) is not None:
        return min(torch.get_num_threads(), available_cores())
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(int(asked), available_cores()) if asked.isdecimal() and int(asked) else available_cores()


def set_threads(threads: int) -> None:
    """Set the threads of this process's batches, for worker processes."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


@contextmanager
def limited_threads(threads: int) -> Generator[None, None, None]:
    """Set PyTorch's threads in this thread to a number, and reset them afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _quota(cgroup: Path) -> float:
    """Return the quota in cores; infinite if there is none."""
    version_2, version_1 = [cgroup / "cpu.max"], [cgroup / f"cpu/cpu.cfs_{name}_us" for name in ("quota", "period")]
    with suppress(OSError, ValueError):  # no such file, or "max": no quota
        paths = version_2 if version_2[0].exists() else version_1
        quota, period = (int(number) for path in paths for number in path.read_text().split())
        return quota / period if quota > 0 and period > 0 else math.inf
    return math.inf
