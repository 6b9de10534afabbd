"""ProcessPool: worker processes on this machine."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from types import TracebackType
from typing import Final

from cde_rag._validation import check_positive
from cde_rag.embedders.pool import Slice, Space, embed_slice
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import CDEError, PoolError

RESTARTS: Final = 3  # of all workers, while a call makes no progress
TIMEOUT_S: Final = 600.0  # without a finished slice, after which workers count as stuck


class ProcessPool:
    """Worker processes on this machine that embed the passages of long calls. Thread-safe; a context manager.

    Workers are started with the first call and stay until the pool is closed. Each loads the model itself, some 300 MB
    of memory, and uses its share of the cores. A worker that is killed is replaced, and its slice is embedded again.

    Processes are started by `spawn`: a script guards its code by `if __name__ == "__main__":`.

    Args:
        workers: Number of processes; by default one for each core that this process may use.
        device: Device of the workers, such as "cpu" or "cuda"; by default CUDA where there is one.
        timeout_s: Seconds without a finished slice after which a call is ended.

    Raises:
        TypeError: A number of workers that is no int.
        ValueError: Fewer than one worker, or a timeout that is not above 0.

    Example:
        >>> with ProcessPool(4) as pool:
        ...     papers = Collection.open("papers.faiss", options=EmbedderOptions(pool=pool))
        ...     papers.recontextualize()
    """

    def __init__(self, workers: int | None = None, *, device: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        from cde_rag.model.threads import available_cores

        cores = available_cores()
        if workers is not None:
            check_positive(workers, "workers")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s has to be above 0, found {timeout_s!r}")
        self.workers = cores if workers is None else workers
        self._threads = max(1, cores // self.workers)
        self._device = device
        self._timeout_s = timeout_s
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._executor: ProcessPoolExecutor | None = None
        self._pids: SimpleQueue[int] = self._context.SimpleQueue()
        self._started: list[int] = []

    def __repr__(self) -> str:
        return f"ProcessPool({self.workers})"

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; the pool can be used again, with new ones."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)

    def pids(self) -> list[int]:
        """Return the process ids of the workers that were started, ended ones included."""
        with self._lock:
            while not self._pids.empty():
                self._started.append(self._pids.get())
            return list(self._started)

    def embed(self, space: Space, slices: Sequence[Slice]) -> Iterator[tuple[int, Embedded]]:
        """Embed slices; yields the position of each with its vectors, in any order.

        Raises:
            PoolError: Workers ended again and again, none finished a slice in time, or they do not have the model.
        """
        waiting, restarts = dict(enumerate(slices)), 0
        while waiting:
            executor = self._workers()
            try:
                running = {executor.submit(_work, space, part, self._device): place for place, part in waiting.items()}
                for future in self._finished(running):
                    place = running[future]
                    failure, embedded = future.result()
                    if failure is not None:
                        raise failure
                    assert embedded is not None
                    del waiting[place]
                    restarts = 0
                    yield place, embedded
            except BrokenProcessPool as error:
                restarts += 1
                self._discard(executor)
                if restarts > RESTARTS:
                    raise PoolError(
                        f"Workers ended {restarts} times before one finished a slice. Most often memory ran out: give "
                        "fewer workers. In a script, code that starts a pool belongs under "
                        'if __name__ == "__main__".'
                    ) from error
            except BaseException:
                self._discard(executor)
                raise

    def _finished(
        self, running: dict["Future[tuple[PoolError | None, Embedded | None]]", int]
    ) -> Iterator["Future[tuple[PoolError | None, Embedded | None]]"]:
        """Yield futures as they finish; PoolError if none does in time."""
        left = set(running)
        while left:
            done, left = wait(left, timeout=self._timeout_s, return_when=FIRST_COMPLETED)
            if not done:
                raise PoolError(
                    f"No worker finished a slice in {self._timeout_s:.0f} s, so they were ended. What was written "
                    "stays: run it again, with fewer workers or a longer timeout_s."
                )
            yield from done

    def _workers(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    self.workers,
                    mp_context=self._context,
                    initializer=_start,
                    initargs=(self._threads, self._pids, os.getpid()),
                )
            return self._executor

    def _discard(self, executor: ProcessPoolExecutor) -> None:
        """End workers at once, also stuck ones."""
        with self._lock:
            if self._executor is executor:
                self._executor = None
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        executor.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._started.clear()


def _start(threads: int, pids: "SimpleQueue[int]", parent: int) -> None:
    """Prepare a worker: its threads, and its end when the process of the pool is killed."""
    import torch

    torch.set_num_threads(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's
    pids.put(os.getpid())
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(space: Space, part: Slice, device: str | None) -> tuple[PoolError | None, Embedded | None]:
    """Embed a slice; an error of ours comes back as a value with its message, since others cannot be unpickled."""
    try:
        return None, embed_slice(space, part, device)
    except CDEError as error:
        return PoolError(str(error)), None
