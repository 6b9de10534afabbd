"""Routes of jobs: moves of a collection, vectors, files, drift and tuning, with their progress and cancellation."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Query, Request
from pydantic import Field

from cde_rag.collection.collection import Collection
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.protocol import unwrapped
from cde_rag.indexing.canary import Canary
from cde_rag.server.error_responses import Json
from cde_rag.server.jobs import Job, OnProgress
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.judgments import JudgmentsRequest, tuned
from cde_rag.server.registry import ServedCollection
from cde_rag.server.service import RequestBody, Serving
from cde_rag.server.text_limits import QueryText
from cde_rag.server.uploads import check_upload, named_columns, uploaded

router = APIRouter(prefix="/v1", route_class=JsonRoute)


Columns = Annotated[
    Sequence[str],
    Query(
        max_length=3,
        description="Columns of a table, as `cde-rag index --fields` names them: text=COLUMN, title=COLUMN and "
        "id=COLUMN, or some of them, each a parameter of its own (?fields=text=body&fields=title=subject).",
    ),
]


class CanaryQuery(RequestBody):
    """Query that must still find one of its documents."""

    query: QueryText
    ids: list[str] = Field(min_length=1)


class NoFields(RequestBody):
    """Body without fields; it may be left out."""


class RecontextualizeRequest(RequestBody):
    """Body that starts a move to a new context."""

    seed: int = Field(0, description="Random seed of the new context's sample.")
    context_size: int | None = Field(None, ge=1, description="Passages of the new context.")
    strategy: Strategy = "random"
    canary: list[CanaryQuery] | None = Field(
        None, min_length=1, description="Queries that must pass before the switch."
    )
    may_lose: int = Field(0, ge=0, description="Maximum number of canary queries that may fail.")


@router.post("/collections/{name}/recontextualize", status_code=202)
async def start_recontextualize(name: str, body: RecontextualizeRequest, service: Serving) -> Json:
    """Start the move of a collection to a new context; it is searched and written in its old one until the switch."""
    served = service.registry.collection(name)

    def run(on_progress: OnProgress) -> dict[str, Any]:
        known = body.canary
        report = _unbatched(served).recontextualize(
            seed=body.seed,
            context_size=body.context_size,
            strategy=body.strategy,
            canary=None if known is None else Canary({one.query: one.ids for one in known}, may_lose=body.may_lose),
            on_progress=on_progress,
        )
        return asdict(report)

    return accepted(await in_thread(service.jobs.start, "recontextualize", name, run))


@router.post("/collections/{name}/rollback", status_code=202)
async def start_rollback(name: str, service: Serving, _: NoFields | None = None) -> Json:
    """Start the return of a collection to the context before."""
    served = service.registry.collection(name)

    def run(on_progress: OnProgress) -> dict[str, Any]:
        return asdict(_unbatched(served).rollback(on_progress=on_progress))

    return accepted(await in_thread(service.jobs.start, "rollback", name, run))


@router.post("/collections/{name}/embed-pending", status_code=202)
async def start_embed_pending(name: str, service: Serving, _: NoFields | None = None) -> Json:
    """Start to make the vectors that records wait for, such as those of an interrupted `cde-rag index`."""
    served = service.registry.collection(name)

    def run(on_progress: OnProgress) -> dict[str, Any]:
        return asdict(_unbatched(served).embed_pending(on_progress=on_progress))

    return accepted(await in_thread(service.jobs.start, "embed-pending", name, run))


@router.post("/collections/{name}/drift", status_code=202)
async def start_drift(name: str, service: Serving, _: NoFields | None = None) -> Json:
    """Start an estimate of the gain of a new context; it changes nothing, and cannot be cancelled."""
    served = service.registry.collection(name)

    def run(_: OnProgress) -> dict[str, Any]:
        found = _unbatched(served).drift()
        return {**found.to_json(), "pays": found.pays()}

    return accepted(await in_thread(service.jobs.start, "drift", name, run))


@router.post("/collections/{name}/files", status_code=202)
async def upload_file(
    name: str,
    request: Request,
    service: Serving,
    filename: Annotated[str, Query(min_length=1, max_length=200, description="Name of the file, without folders.")],
    fields: Columns = (),
) -> Json:
    """Start to index a file, which is the body, in any format that `cde-rag index` reads; it replaces that of its name.

    A document that was indexed from a folder is replaced, too, if no other has the name; else `doubles` names them.
    Passages are written every few seconds, and those that the file no longer has are deleted at the end. A job that
    failed or was cancelled leaves old and new passages; the same request completes it. Rows of a table (JSONL, CSV,
    Parquet) are upserted by their ids; `skipped` counts those that are left out. If a table has no column of texts, the
    job fails, and its result has the `columns`, each with its `name` and an `example`: name one in `fields`.
    """
    served = service.registry.collection(name)
    check_upload(filename)
    named = named_columns(filename, fields)
    content = await request.body()

    def run(on_progress: OnProgress) -> dict[str, Any]:
        return uploaded(served.collection, filename, content, on_progress, named)

    return accepted(await in_thread(service.jobs.start, "upload", name, run, filename))


@router.post("/collections/{name}/tune", status_code=202)
async def start_tune(name: str, body: JudgmentsRequest, service: Serving) -> Json:
    """Start the choice of the weight of vectors in hybrid search, by at least 20 judged queries, as `cde-rag tune`.

    The weight is stored, and used by this server at once, if the 95 % interval of the gain on queries that did not
    choose it is above zero: then `written` is true. It cannot be cancelled.
    """
    served = service.registry.collection(name)

    def run(_: OnProgress) -> dict[str, Any]:
        report = tuned(_unbatched(served), body.judgments)
        if report["written"]:
            service.registry.reopen(name)
        return report

    return accepted(await in_thread(service.jobs.start, "tune", name, run))


def _unbatched(served: ServedCollection) -> Collection:
    """Return the collection with an embedder that does not wait for the batches of requests."""
    return Collection(served.collection.store, unwrapped(served.collection.embedder))


@router.get("/jobs")
async def list_jobs(service: Serving) -> Json:
    """List the jobs, the oldest first."""
    return Json({"object": "list", "data": [_described(job) for job in service.jobs.all()]})


@router.get("/jobs/{id_}")
async def retrieve_job(id_: str, service: Serving) -> Json:
    """Describe a job with its progress."""
    return Json(_described(service.jobs.get(id_)))


@router.post("/jobs/{id_}/cancel")
async def cancel_job(id_: str, service: Serving) -> Json:
    """Cancel a job at its next write, within some seconds; the same request resumes it later."""
    return Json(_described(await in_thread(partial(service.jobs.cancel, id_))))


def _described(job: Job) -> dict[str, object]:
    return {"object": "job", **asdict(job)}


def accepted(job: Job) -> Json:
    """Return the answer to a request that starts a job."""
    return Json(_described(job), status_code=202)
