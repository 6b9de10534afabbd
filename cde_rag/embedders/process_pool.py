"""ProcessPool: worker processes on this machine."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, TypeAlias

from cde_rag._validation import check_positive
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.pool import EmbedderSpec, Slice
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import CDEError, PoolError
from cde_rag.models.runtimes.native_memory import bound_native_memory
from cde_rag.models.runtimes.threads import available_cores, set_threads

KEPT: Final = 2  # embedders: of the active generation, and of the one that is filled


def embed_slice(spec: EmbedderSpec, part: Slice, device: str | None) -> Embedded:
    """Embed a slice; the embedder is kept for the next slice.

    Raises:
        CDEError: As `ContextualEmbedder.from_spec` and `embed_passages`.
    """
    return _kept(spec, device).embed_passages(part.texts, part.siblings)


_kept = lru_cache(KEPT)(ContextualEmbedder.from_spec)


ENDED: Final = 3  # workers that may end one after another while none finishes a slice
GRACE_S: Final = 5.0  # for an idle worker to end
TIMEOUT_S: Final = 600.0  # without a finished slice, after which workers count as stuck
Answer: TypeAlias = Embedded | str | None
"""What a worker sends: vectors, the message of an error, or None once it has started."""


class ProcessPool:
    """Worker processes on this machine that embed the passages of long calls; a context manager.

    Workers are started with the first call and stay until the pool is closed. Each loads the model itself, some 300 MB
    of memory, and uses its share of the cores. A worker that is killed is replaced, and its slice is embedded again.
    Calls of several threads take turns.

    Processes are started by `spawn`: a script guards its code by `if __name__ == "__main__":`.

    Args:
        workers: Number of processes; by default one for each of `devices`, or for each core that this process may use.
        device: Device of all workers, such as "cpu" or "cuda"; by default CUDA where there is one.
        devices: Devices that workers take in turn, such as `["cuda:0", "cuda:1"]`; instead of `device`.
        timeout_s: Seconds without a finished slice after which a call is ended.

    Raises:
        TypeError: A number of workers that is no int, a single str as `devices`, or both `device` and `devices`.
        ValueError: Fewer than one worker, no device in `devices`, or a timeout that is not above 0.

    Examples:
        with ProcessPool(4) as pool:
            papers = Collection.open("papers.faiss", options=EmbedderOptions(pool=pool))
            papers.recontextualize()
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        device: str | None = None,
        devices: Sequence[str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if workers is not None:
            check_positive(workers, "workers")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s has to be above 0, found {timeout_s!r}")
        if isinstance(devices, str) or (device is not None and devices is not None):
            raise TypeError(
                f"Expected device='cuda' or devices=['cuda:0', 'cuda:1'], found {device!r} and {devices!r}."
            )
        if devices is not None and not devices:
            raise ValueError("Expected at least one device in devices, found none.")
        cores = available_cores()
        self.workers = workers or (cores if devices is None else len(devices))
        self._threads = max(1, cores // self.workers)
        self._devices: list[str | None] = [device] if devices is None else [*devices]
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running: list[_Worker] = []

    def __repr__(self) -> str:
        return f"ProcessPool({self.workers})"

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; the next call starts new ones."""
        with self._lock:
            self._end()

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.process.pid or 0 for worker in self._running]

    def embed(self, spec: EmbedderSpec, slices: Sequence[Slice]) -> Iterator[tuple[int, Embedded]]:
        """Embed slices; yields the position of each with its vectors, in any order.

        Raises:
            PoolError: Workers ended again and again, none finished a slice in time, or they do not have the model.
        """
        with self._lock:
            try:
                yield from self._embed(spec, slices)
            except BaseException:  # workers may be at slices of this call
                self._end()
                raise

    def _embed(self, spec: EmbedderSpec, slices: Sequence[Slice]) -> Iterator[tuple[int, Embedded]]:
        waiting, left, ended = deque(range(len(slices))), len(slices), 0
        while left:
            while len(self._running) < min(self.workers, left):
                used = [worker.device for worker in self._running]
                self._running.append(_Worker(self._threads, min(self._devices, key=used.count)))
            for worker in self._running:
                if waiting and worker.idle:
                    worker.give(spec, waiting[0], slices[waiting[0]])
                    waiting.popleft()
            for worker in self._answering():
                place = worker.place
                try:
                    answer = worker.answer()
                except (EOFError, OSError) as error:
                    ended += 1
                    self._running.remove(worker)
                    worker.end()
                    waiting.extendleft(() if place is None else (place,))
                    if ended > ENDED:
                        raise _ended(ended) from error
                    continue
                if answer is not None and place is not None:
                    left, ended = left - 1, 0
                    yield place, answer

    def _answering(self) -> "list[_Worker]":
        """Return the workers that have answered or ended, as soon as there is one."""
        busy = {worker.connection: worker for worker in self._running if not worker.idle}
        ready = wait(list(busy), timeout=self._timeout_s)
        if not ready:
            raise PoolError(
                f"No worker finished a slice in {self._timeout_s:.0f} s, so they were ended. Written records stay: "
                "run it again, with fewer workers or a longer timeout_s."
            )
        return [worker for connection, worker in busy.items() if connection in ready]

    def _end(self) -> None:
        for worker in self._running:
            worker.connection.close()  # idle ones end, all at once
        for worker in self._running:
            worker.end()
        self._running.clear()


def _ended(workers: int) -> PoolError:
    return PoolError(
        f"{workers} workers ended before one finished a slice. Most often memory ran out: give fewer workers. In a "
        'script, code that starts a pool belongs under if __name__ == "__main__".'
    )


class _Worker:
    """One worker process, as the pool sees it.

    Attributes:
        device: Its device; None for CUDA where there is one.
        process: The process.
        connection: To it.
        place: Position of the slice that it embeds.
        idle: True if it has started and embeds nothing.
    """

    def __init__(self, threads: int, device: str | None) -> None:
        self.device = device
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(there, threads, device), daemon=True)
        self.process.start()
        there.close()
        self.place: int | None = None
        self.idle = False
        self._spec: EmbedderSpec | None = None

    def give(self, spec: EmbedderSpec, place: int, part: Slice) -> None:
        """Send a slice; the spec goes with the first one only."""
        self.idle, self.place = False, place
        try:
            self.connection.send((None if self._spec == spec else spec, part))
        except OSError:  # it ended: that is seen when its answer is read
            return
        self._spec = spec

    def answer(self) -> Embedded | None:
        """Read an answer, after which the worker is idle."""
        found: Answer = self.connection.recv()
        self.idle, self.place = True, None
        if isinstance(found, str):
            raise PoolError(found)
        return found

    def end(self) -> None:
        """End the process; an idle one ends by itself, which frees its semaphores."""
        self.connection.close()
        self.process.join(GRACE_S if self.idle else 0)
        self.process.kill()
        self.process.join()


def _work(connection: Connection, threads: int, device: str | None) -> None:
    """Embed slices until the pool ends; then the connection is closed."""
    bound_native_memory()
    set_threads(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's
    spec: EmbedderSpec | None = None
    try:
        connection.send(None)
        while True:
            new, part = connection.recv()
            spec = new or spec
            assert spec is not None
            try:
                connection.send(embed_slice(spec, part, device))
            except CDEError as error:
                connection.send(str(error))
    except (EOFError, OSError):
        return
