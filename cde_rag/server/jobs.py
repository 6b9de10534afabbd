"""Jobs: runs over a collection that take longer than a request, with progress and cancellation."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from cde_rag.errors import CorpusError
from cde_rag.indexing.upsert import Progress
from cde_rag.server.error_responses import RequestError, as_request_error

OnProgress: TypeAlias = Callable[[Progress], None]
Run: TypeAlias = Callable[[OnProgress], dict[str, Any]]
KEPT: Final = 100  # jobs that have ended
READING: Final = frozenset({"drift"})  # kinds of jobs that write nothing, and cannot be cancelled
_log = logging.getLogger("cde_rag.server")


class FailedRunError(CorpusError):
    """Raised by a run that fails with a report, which is its job's result.

    Args:
        message: The expected, the found and the remedy.
        result: The report.
    """

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        self.result = result
        super().__init__(message)


class _CancelledRunError(Exception):
    """Raised in a run's progress callback; written vectors stay, and the same run resumes."""


@dataclass
class Job:
    """A run over a collection.

    Attributes:
        kind: "recontextualize", "rollback", "embed-pending", "drift", "tune", "upload" or "reindex".
        collection: Name of the collection.
        subject: Name of the file or document; None of the others.
        id: Its id.
        status: State of the run.
        done: Passages done.
        total: Passages to do; None if unknown.
        started: Seconds since 1970.
        ended: Seconds since 1970; None while it runs.
        error: Message of the error that ended it.
        result: Report of the run; of one that failed None, or what a client needs to repeat it.
    """

    kind: str
    collection: str
    subject: str | None = None
    id: str = field(default_factory=lambda: f"job_{secrets.token_hex(8)}")
    status: Literal["running", "succeeded", "failed", "cancelled"] = "running"
    done: int = 0
    total: int | None = None
    started: float = field(default_factory=time.time)
    ended: float | None = None
    error: str | None = None
    result: dict[str, Any] | None = None


class Jobs:
    """Jobs of a server, one at a time for each collection. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def start(self, kind: str, collection: str, run: Run, subject: str | None = None) -> Job:
        """Start a run in a thread; `subject` is the file or document that it is about.

        Raises:
            RequestError: 409, another job of the collection is running.
        """
        job = Job(kind, collection, subject)
        with self._lock:
            for other in self._jobs.values():
                if other.collection == collection and other.status == "running":
                    message = f"{other.id} of the collection is running. Wait until it has ended, or cancel it."
                    raise RequestError(409, message, code="job_running", headers={"x-should-retry": "false"})
            for old in [one.id for one in self._jobs.values() if one.status != "running"][:-KEPT]:
                del self._jobs[old], self._cancelled[old], self._threads[old]
            self._jobs[job.id], self._cancelled[job.id] = job, threading.Event()
            self._threads[job.id] = threading.Thread(target=self._work, args=(job, run), name=job.id, daemon=True)
            self._threads[job.id].start()
        return job

    def all(self) -> list[Job]:
        """Return all jobs, in the order of their begin."""
        with self._lock:
            return list(self._jobs.values())

    def get(self, id_: str) -> Job:
        """Return a job.

        Raises:
            RequestError: 404, there is none of this id.
        """
        with self._lock:
            if id_ in self._jobs:
                return self._jobs[id_]
        raise RequestError(404, f"There is no job {id_!r:.200}.", code="job_not_found", param="id")

    def cancel(self, id_: str) -> Job:
        """Cancel a job at its next write, within some seconds; one that has ended stays as it is.

        Raises:
            RequestError: 404, there is none of this id.
        """
        job = self.get(id_)
        self._cancelled[id_].set()
        return job

    def close(self) -> None:
        """Cancel all jobs, and wait for their last writes; those that only read end with the process."""
        with self._lock:
            running = [job for job in self._jobs.values() if job.status == "running"]
        for job in running:
            self._cancelled[job.id].set()
        for job in running:
            if job.kind not in READING:
                self._threads[job.id].join()

    def _work(self, job: Job, run: Run) -> None:
        cancelled = self._cancelled[job.id]

        def on_progress(progress: Progress) -> None:
            job.done, job.total = progress.done, progress.total
            if cancelled.is_set():
                raise _CancelledRunError

        status: Literal["succeeded", "failed", "cancelled"] = "succeeded"
        try:
            job.result = run(on_progress)
        except _CancelledRunError:
            status = "cancelled"
        except BaseException as error:  # noqa: BLE001 (whoever looks at the job reads it, also a panic)
            job.error, status = str(as_request_error(error)), "failed"
            job.result = error.result if isinstance(error, FailedRunError) else None
        job.ended = time.time()
        job.status = status  # last: a client that reads it reads all else, too
