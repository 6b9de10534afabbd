"""RayPool: worker processes of a Ray cluster."""

import importlib
import os
import re
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from cde_rag._validation import check_positive
from cde_rag.embedders.pool import EmbedderSpec, Slice
from cde_rag.embedders.process_pool import TIMEOUT_S, embed_slice
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import CDEError, CorpusError, PoolError, StoreError, require
from cde_rag.models.runtimes.threads import set_threads

EXTRA: Final = "ray"
_ERRORS: Final = {"CorpusError": CorpusError, "PoolError": PoolError, "StoreError": StoreError}


def connect(address: str | None) -> Any:
    """Connect this process to a Ray cluster, unless it is connected; returns the module `ray`.

    A cluster that is started reaches nothing but this machine: its node has the loopback address instead of one that is
    found by a socket to 8.8.8.8, its processes need a token, and the process of Ray's usage statistics, which asks the
    cloud's metadata service even where they are off, is not started.

    Args:
        address: Such as "auto", "10.0.0.5:6379" or "ray://10.0.0.5:10001"; None: a cluster on this machine, which
            is started.

    Raises:
        MissingExtraError: Ray is not installed.
        PoolError: There is no cluster at the address.
    """
    here = address in (None, "local")
    if here and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported; its own default since 2.60
    ray = require("ray", EXTRA)
    if not ray.is_initialized():
        try:
            with _only_this_machine() if here else nullcontext():
                ray.init(address=address or "local", include_dashboard=False if here else None)
        except (OSError, RuntimeError, ValueError) as error:
            raise PoolError(
                f"Expected a Ray cluster at {address!r}, found none ({error}). Start one with: ray start --head"
            ) from error
    return ray


@contextmanager
def _only_this_machine() -> Generator[None, None, None]:
    """Start Ray's processes so that they reach nothing else; the user's own settings stay."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    several = os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # of all systems: more than loopback
    constants: Any = importlib.import_module("ray._private.ray_constants")
    services: Any = importlib.import_module("ray._private.services")
    before = constants.ENABLE_RAY_CLUSTER, services.start_api_server
    constants.ENABLE_RAY_CLUSTER = several == "1"
    services.start_api_server = _no_api_server
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER, services.start_api_server = before


def _no_api_server(*_: object, **__: object) -> tuple[str, None]:
    """Start no process for the dashboard, which is off; it would hold the usage statistics alone."""
    return "", None


def library_error(error: BaseException) -> CDEError | None:
    """Return the error of ours that a Ray task raised; None if it is another.

    Ray hands on the causes of an error as text only, each in a line with its class.
    """
    found = re.findall(r"^(?:.*\.)?errors\.(CorpusError|PoolError|StoreError): (.*)$", str(error), re.MULTILINE)
    return _ERRORS[found[-1][0]](found[-1][1]) if found else None


class _EmbeddingActor:
    """A Ray actor that embeds slices.

    Args:
        threads: CPU threads.
        device: Such as "cpu" or "cuda"; None: CUDA where there is one.
    """

    def __init__(self, threads: int, device: str | None) -> None:
        set_threads(threads)
        self._device = device

    def embed(self, spec: EmbedderSpec, part: Slice) -> Embedded:
        """Embed a slice; every error of ours is raised as a PoolError, which can be unpickled."""
        try:
            return embed_slice(spec, part, self._device)
        except CDEError as error:
            raise PoolError(str(error)) from None


class RayPool:
    """Worker processes of a Ray cluster that embed the passages of long calls. Thread-safe; a context manager.

    Ray restarts an actor that ends, and runs its slice again.

    Args:
        workers: Number of actors; by default one for each CPU, or GPU, of the cluster that a worker takes.
        address: Address of the cluster; see `connect`.
        num_cpus: CPUs of each worker, which are its threads.
        num_gpus: GPUs of each worker; a fraction shares one.
        timeout_s: Seconds without a finished slice after which a call is ended.

    Raises:
        MissingExtraError: Ray is not installed.
        PoolError: There is no cluster at the address.
        TypeError: A number of workers that is no int.
        ValueError: Fewer than one worker.

    Examples:
        with RayPool(8, address="auto") as pool:
            Collection.open(address, options=EmbedderOptions(pool=pool)).recontextualize()
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        address: str | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if workers is not None:
            check_positive(workers, "workers")
        self._ray = connect(address)
        self.workers = workers or workers_of(self._ray, num_cpus, num_gpus)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        actor = self._ray.remote(_EmbeddingActor).options(
            num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=-1, max_task_retries=-1
        )
        device = None if num_gpus else "cpu"
        self._actors = [actor.remote(max(1, int(num_cpus)), device) for _ in range(self.workers)]

    def __repr__(self) -> str:
        return f"RayPool({self.workers})"

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            actors, self._actors = self._actors, []
        for actor in actors:
            self._ray.kill(actor)

    def embed(self, spec: EmbedderSpec, slices: Sequence[Slice]) -> Iterator[tuple[int, Embedded]]:
        """Embed slices; yields the position of each with its vectors, in any order.

        Raises:
            PoolError: No worker finished a slice in time, they do not have the model, or the pool is closed.
        """
        with self._lock:
            idle = list(self._actors)
        if not idle:
            raise PoolError("The pool is closed. Make a new one.")
        artifact, waiting = self._ray.put(spec), list(range(len(slices)))
        running: dict[Any, tuple[int, Any]] = {}
        while waiting or running:
            while waiting and idle:
                place, actor = waiting.pop(0), idle.pop()
                running[actor.embed.remote(artifact, slices[place])] = place, actor
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=self._timeout_s)
            if not done:
                raise PoolError(
                    f"No worker finished a slice in {self._timeout_s:.0f} s: the cluster may lack the resources that "
                    "the workers need. Written records stay: look at `ray status`, and run it again."
                )
            place, actor = running.pop(done[0])
            idle.append(actor)
            try:
                embedded = self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                raise library_error(error) or PoolError(f"A worker failed: {error}") from error
            yield place, embedded


def workers_of(ray: Any, num_cpus: float, num_gpus: float) -> int:
    """Return the number of workers that the cluster's resources suffice for, at least one."""
    there = ray.cluster_resources()
    shares = [there.get(kind, 0) / each for kind, each in (("CPU", num_cpus), ("GPU", num_gpus)) if each]
    return max(1, int(min(shares, default=1)))
