"""Routes of documents: a collection by document and by metadata field, and files that are read again."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Query
from pydantic import Field

from cde_rag.collection.contents import Contents, StoredDocument, StoredField, Value, document_records
from cde_rag.readers.passages import document_of, file_of
from cde_rag.server.error_responses import Json, RequestError
from cde_rag.server.job_routes import accepted
from cde_rag.server.jobs import OnProgress
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.service import RequestBody, Service, Serving
from cde_rag.server.uploads import accepted_suffixes, reindexed

router = APIRouter(prefix="/v1/collections", route_class=JsonRoute)


class ReindexRequest(RequestBody):
    """Body that reads a document again."""

    document: str = Field(description="Name of the document, as in the list of documents.")


@router.get("/{name}/overview")
async def describe_contents(name: str, service: Serving) -> Json:
    """Count documents, passages and the values of metadata fields, and return headings that read like queries.

    `fields` has strings, numbers and booleans: at most 12 values with their number of passages in `values`, else null,
    and of numbers `least` and `most`. `complete` is false if the collection has more than the 100 000 passages that are
    read. `suffixes` are those of the files that can be sent.
    """
    collection = service.registry.collection(name).collection
    found = await in_thread(Contents.of, collection)
    return Json(
        {
            "documents": len(found.documents),
            "passages": await in_thread(collection.count),
            "complete": found.complete,
            "fields": [_described_field(each) for each in found.fields.values()],
            "examples": list(found.examples),
            "suffixes": accepted_suffixes(),
        }
    )


@router.get("/{name}/documents")
async def list_documents(
    name: str,
    service: Serving,
    q: Annotated[str, Query(max_length=200, description="Part of a name, label or place, in any case.")] = "",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Json:
    """List the documents of a collection by name: files, parents, and records without parent.

    `label` is the title, else the first words of a record without parent, else the name; `place` the file and row of a
    row of a table, else null, by which rows are ordered. `has_digest` is true where the name is an id that nobody gave,
    `is_file` where it names a file, by the folder that was indexed, else by its path on the server. `where` is the
    filter of a document's passages, null for a record without parent, whose id is the name. `uploaded` and `modified`
    are dates (ISO 8601) or null; `modified`, of the file, is known where the server was started with --files FOLDER,
    and then `can_reindex` is true. `complete` as in the overview.
    """
    found = await in_thread(Contents.of, service.registry.collection(name).collection)
    wanted = q.casefold()
    named = ((each, f"{each.name}\n{each.label}\n{each.place}") for each in found.documents.values())
    chosen = [each for each, names in named if wanted in names.casefold()]
    chosen.sort(key=lambda each: each.order)
    page = [await in_thread(_described, each, service) for each in chosen[offset : offset + limit]]
    return Json({"object": "list", "data": page, "total": len(chosen), "complete": found.complete})


@router.post("/{name}/documents/reindex", status_code=202)
async def start_reindex(name: str, body: ReindexRequest, service: Serving) -> Json:
    """Start to read the file of a document again; its passages are replaced.

    The file is in a folder that the server was started with (--files FOLDER).
    """
    served = service.registry.collection(name)
    records = await in_thread(document_records, served.collection.store, body.document)
    if not records:
        message = f"There is no document {body.document!r:.200}. GET …/documents lists them."
        raise RequestError(404, message, code="document_not_found", param="document")
    path = None if document_of(records[0]) is None else file_of(records[0].metadata)
    if path is None or not await in_thread(_may_read, path, service):
        message = (
            f"The server may not read the file of {body.document!r:.200}, or it is gone. Start the server with --files "
            "FOLDER, the folder that the file is in; or send the file."
        )
        raise RequestError(400, message, code="not_readable", param="document")

    def run(on_progress: OnProgress) -> dict[str, Any]:
        return reindexed(served.collection, path, on_progress)

    return accepted(await in_thread(service.jobs.start, "reindex", name, run, body.document))


def _may_read(path: Path, service: Service) -> bool:
    """Return True for a file in a folder that the server was started with; hidden ones are left out.

    A client can name any path in a record's metadata, so only these folders are read.
    """
    try:
        there = path.resolve()
        inside = (there.relative_to(each) for each in service.options.files if there.is_relative_to(each))
        return any(not any(part.startswith(".") for part in below.parts) for below in inside) and there.is_file()
    except (OSError, RuntimeError, ValueError):  # a path that no file system has, or a loop of links
        return False


def _described(document: StoredDocument, service: Service) -> dict[str, Any]:
    path = document.file
    can_read = path is not None and _may_read(path, service)
    modified = None
    if path is not None and can_read:
        with suppress(OSError):  # of a file that is written anew at this moment
            modified = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    return {
        "object": "document",
        "name": document.name,
        "title": document.title,
        "label": document.label,
        "place": document.place,
        "has_digest": document.is_digest,
        "is_file": document.file is not None,
        "passages": document.passages,
        "where": document.where,
        "uploaded": document.uploaded or None,
        "modified": modified,
        "can_reindex": can_read,
    }


def _ordered(values: Mapping[Value, int]) -> list[tuple[Value, int]]:
    """Return numbers ascending, as people look for years and sizes; other values by their passages, most first."""
    if all(not is_boolean and isinstance(value, int | float) for is_boolean, value in values):
        return sorted(values.items(), key=lambda each: float(each[0][1]))
    return sorted(values.items(), key=lambda each: (-each[1], str(each[0][1])))


def _described_field(field: StoredField) -> dict[str, Any]:
    values = None
    if field.values is not None:
        values = [{"value": value, "passages": count} for (_, value), count in _ordered(field.values)]
    return {
        "name": field.name,
        "passages": field.records,
        "values": values,
        "least": field.least,
        "most": field.most,
    }
