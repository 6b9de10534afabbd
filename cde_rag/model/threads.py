"""CPU threads of forward passes.

A single query takes one thread: where other work shares the cores, the threads of a parallel region wait for the
slowest of them, and a query of some milliseconds takes up to thirty times as long (`lab/benchmarks/threads.py`). A
batch takes PyTorch's number of threads, at most the cores that this process may use. Nothing here loads PyTorch by
itself.
"""

import math
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def available_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its control groups' quotas.

    Args:
        cgroups: Folder of all control groups, version 2 (`cpu.max`) or 1 (`cpu/cpu.cfs_quota_us`); in a container
            mostly that of its own one.
        own: File that names the groups of this process, such as that of its systemd service.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, *map(_quota, _groups(cgroups, own)))))


def batch_threads() -> int:
    """Return the threads of a batch, at most the cores.

    They are PyTorch's (`OMP_NUM_THREADS`, `torch.set_num_threads`) where it is loaded, else those of `OMP_NUM_THREADS`.
    """
    if (of_torch := getattr(sys.modules.get("torch"), "get_num_threads", None)) is not None:  # imported completely
        return min(of_torch(), available_cores())
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


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups of the CPU, those around them included."""
    versions = {"": cgroups, "cpu": cgroups / "cpu"}  # 2, and 1, which has a tree for each controller
    yield from versions.values()
    with suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in versions.keys() & set(controllers.split(",")):
                group = Path(path).relative_to("/")
                yield from (versions[controller] / each for each in (group, *group.parents))


def _quota(group: Path) -> float:
    """Return the quota of a control group in cores; infinite if it has none."""
    version_2, version_1 = [group / "cpu.max"], [group / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    with suppress(OSError, ValueError):  # no such file, or "max": no quota
        paths = version_2 if version_2[0].exists() else version_1
        quota, period = (int(number) for path in paths for number in path.read_text().split())
        return quota / period if quota > 0 and period > 0 else math.inf
    return math.inf
