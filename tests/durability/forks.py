"""A process that leads lives on a disk that dies, fails or takes notes: `disk.c`, which is loaded before libc.

It reads one order after the other, as JSON lines, and forks for each. The fork opens the store, does the operations,
and is killed, or told of an error, at the step that the order names.
"""

import contextlib
import ctypes
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lives import BY_NAME, small_parts, store_at

from cde_rag.errors import CDEError
from cde_rag.indexing.upsert import Progress


@dataclass(frozen=True)
class Order:
    """What a fork is to do.

    Attributes:
        store: Kind of store.
        folder: Its folder.
        operations: Names.
        do: What happens at step `at` of each operation: 0 nothing, 1 a kill before it, 2 in its middle, 3 after it,
            4 a failure, 5 half of it and then a failure.
        at: From 1 on.
        error: Number of the error that a failure tells.
        lasting: Whether all later steps fail too.
        again: Whether an operation that failed is done once more by the same object, on a disk that works.
        journal: File that all steps are written down in.
        limit: A limit of the process while it works: "FSIZE", no file grows beyond so many bytes; or "AS", it gets no
            more than so many bytes of memory on top of what it has.
    """

    store: str
    folder: str
    operations: Sequence[str]
    do: int = 0
    at: int = 0
    error: int = 0
    lasting: bool = False
    again: bool = False
    journal: str | None = None
    limit: tuple[str, int] | None = None


@contextlib.contextmanager
def limited(limit: Sequence[Any] | None) -> Iterator[None]:
    """Hold a limit of the operating system over the process, until the block ends."""
    if limit is None:
        yield
        return
    name, size = limit
    which = getattr(resource, f"RLIMIT_{name}")
    _, most = resource.getrlimit(which)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if name == "AS" else 0
    resource.setrlimit(which, (used + size, most))
    try:
        yield
    finally:
        resource.setrlimit(which, (most, most))


def live(order: Order, tell: Callable[[Any], None]) -> None:
    disk = ctypes.CDLL(None)
    disk.disk_watch(os.fsencode(Path(order.folder).parent))
    if order.journal is not None:
        disk.disk_record(order.journal.encode())
    for name in order.operations:

        def progressed(progress: Progress, name: str = name) -> None:
            tell(["progress", progress.done])
            disk.disk_mark(f"{name} {progress.done}".encode())

        store = store_at(order.store, Path(order.folder))
        disk.disk_arm(order.do, order.at, order.error, int(order.lasting))
        try:
            with limited(order.limit):
                BY_NAME[name].do(store, progressed)
            disk.disk_mark(name.encode())
        except (CDEError, MemoryError) as error:
            tell(["error", f"{type(error).__name__}: {error}"])
            if order.again:
                disk.disk_arm(0, 0, 0, 0)
                BY_NAME[name].do(store, progressed)
        with contextlib.suppress(CDEError):
            store.close()
        tell(["steps", disk.disk_steps()])
        disk.disk_arm(0, 0, 0, 0)


def serve() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiver)
            with small_parts(), os.fdopen(sender, "w", buffering=1) as telling:
                try:
                    live(order, lambda told, to=telling: print(json.dumps(told), file=to))
                except BaseException:  # noqa: BLE001
                    print(json.dumps(["error", traceback.format_exc()]), file=telling)
                    os._exit(1)
            os._exit(0)
        os.close(sender)
        with os.fdopen(receiver) as told:
            lines = [json.loads(one) for one in told]
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), lines]), flush=True)


if __name__ == "__main__":
    serve()
