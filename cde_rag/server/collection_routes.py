"""Routes of collections: search, records and neighbours."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Final

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Query
from pydantic import AfterValidator, Field, model_validator

from cde_rag.collection.first_context import is_unfinished
from cde_rag.records import CHUNK, Hit, PartialRecord, Record, check_key, default_id
from cde_rag.search.fusion import Ranking
from cde_rag.search.grouping import Group, ParentHit
from cde_rag.search.retrievers import Rerank
from cde_rag.search.searcher import RERANKED
from cde_rag.server.error_responses import Json, RequestError
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.registry import ServedCollection, check_fingerprint
from cde_rag.server.search_results import as_json, neighbours_of, with_matches, with_warnings
from cde_rag.server.service import RequestBody, Serving
from cde_rag.server.text_limits import DocumentText, QueryText

router = APIRouter(prefix="/v1/collections", route_class=JsonRoute)
MOST_HITS: Final = 1_000
MOST_IDS: Final = 1_000


def _field_name(name: str) -> str:
    check_key(name, "it")
    return name


class SearchRequest(RequestBody):
    """Body of a search."""

    query: QueryText = Field(description="Text that is not blank.")
    k: int = Field(10, ge=1, le=MOST_HITS, description="Maximum number of hits, groups or parents.")
    by: Ranking | None = Field(
        "hybrid",
        description="Ranking; hybrid is vectors alone where there is no text index, and has 200 hits at most. words is "
        "bm25's old name.",
    )
    where: dict[str, Any] | None = Field(None, description="Filter over the metadata.")
    score_threshold: float | None = Field(None, description="Minimum score of a hit.")
    offset: int = Field(0, ge=0, le=1_000_000, description="Number of hits, groups or parents to skip.")
    group_by: Annotated[str, AfterValidator(_field_name)] | None = Field(
        None, description="Metadata field by which hits are grouped."
    )
    group_size: int = Field(3, ge=1, le=MOST_HITS, description="Maximum number of hits per group or parent.")
    parents: bool = Field(default=False, description="True: return the parents of the best hits, complete.")
    fingerprint: str | None = Field(None, description="Expected vector space; another one is refused with 409.")
    matches: bool = Field(
        default=False,
        description="True: each hit also has its `section`, its `place` in the file, and `matches`, those words of its "
        "title and text that match words of the query.",
    )
    rerank: str | None = Field(None, description="Reranker of the best hits: one that the server was started with.")
    rerank_top: int | None = Field(None, ge=1, le=MOST_HITS, description="Number of hits to rerank; 50 by default.")
    rerank_budget_ms: int | None = Field(
        None, ge=0, description="Milliseconds of reranking; hits without a score are left out, but for the first k."
    )

    @model_validator(mode="after")
    def _with_a_reranker(self) -> "SearchRequest":
        if self.rerank is None and (self.rerank_top, self.rerank_budget_ms) != (None, None):
            raise ValueError("rerank_top and rerank_budget_ms are of rerank; name a reranker, or leave them out")
        if self.matches and (self.parents or self.group_by is not None):
            raise ValueError("matches are of hits; leave it out, or group_by and parents")
        return self


class NewRecord(RequestBody):
    """Record to add."""

    id: str | None = Field(None, description="Unique; a digest of title, text and parent by default.")
    text: DocumentText
    title: DocumentText = Field(
        "", description="Embedded in front of the text. Without it a record that is there keeps its own."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="For filters. Without it a record that is there keeps its own."
    )


class AddRequest(RequestBody):
    """Body that adds records."""

    records: list[NewRecord] = Field(min_length=1, max_length=CHUNK)


class DeleteRequest(RequestBody):
    """Body that deletes records, by id or by filter."""

    ids: list[str] | None = None
    where: dict[str, Any] | None = None


Ids = Annotated[list[str], Query(alias="id", max_length=MOST_IDS)]


@router.get("")
async def list_collections(service: Serving) -> Json:
    """List the collections with their metadata."""
    served = list(service.registry.collections.values())
    return Json({"object": "list", "data": [await in_thread(described, each) for each in served]})


@router.get("/{name}")
async def retrieve_collection(name: str, service: Serving) -> Json:
    """Describe a collection."""
    return Json(await in_thread(described, service.registry.collection(name)))


def described(served: ServedCollection) -> dict[str, Any]:
    """Return the name and the metadata of a collection; `has_words` is 0.2's name for `has_bm25`."""
    found = asdict(served.collection.inspect())
    bm25 = served.has_bm25
    return {"name": served.name, "has_bm25": bm25, "has_words": bm25, "disk_bytes": served.disk_bytes, **found}


@router.post("/{name}/search")
async def search_collection(name: str, body: SearchRequest, service: Serving) -> Json:
    """Search by vectors, BM25 or both; hits, groups of hits, or parents with all their passages.

    `pending` is the number of records that wait for their vectors; `unfinished` is true if the first `cde-rag index` of
    the collection has not ended, so that passages may be missing. If nothing is found, `warnings` has a sentence for
    each field of the filter that no record has, and one if the query is in another language than the model reads.
    """
    rerank = None if body.rerank is None else service.reranker(body.rerank, param="rerank")[1]
    return Json(await in_thread(found, service.registry.collection(name), body, rerank))


def found(served: ServedCollection, body: SearchRequest, rerank: Rerank | None = None) -> dict[str, Any]:
    """Search a collection.

    Args:
        served: The collection.
        body: Body of the request.
        rerank: Reranker that it names.

    Raises:
        ContextMismatchError: It is in another vector space than the request expects.
        RequestError: Groups and parents at once, parents of a collection that has none, or BM25 without a text index.
    """
    collection, by = served.collection, served.by(body.by or "hybrid")
    searcher = collection.searcher(by)
    if rerank is not None:
        top = body.rerank_top or RERANKED
        searcher = searcher.reranked(rerank, candidates=top, budget_ms=body.rerank_budget_ms)
    manifest = collection.store.manifest()
    check_fingerprint(body.fingerprint, manifest.fingerprint)
    paged: dict[str, Any] = {
        "where": body.where,
        "score_threshold": body.score_threshold,
        "offset": body.offset,
    }
    sized: dict[str, Any] = {"group_size": body.group_size, **paged}
    search: Callable[[], Sequence[Hit | Group | ParentHit]]
    if body.parents:
        if body.group_by is not None or collection.parent_key is None:
            hint = "Leave group_by out." if collection.parent_key else "Leave parents out: the collection has none."
            raise RequestError(400, f"parents: {hint}", param="parents", code="invalid_value")
        kind, search = "parents", partial(searcher.search_parents, body.query, body.k, **sized)
    elif body.group_by is not None:
        kind, search = "groups", partial(searcher.search_groups, body.query, body.k, group_by=body.group_by, **sized)
    else:
        kind, search = "hits", partial(searcher.search, body.query, body.k, **paged)
    results, warnings = with_warnings(collection, search, body.where, body.query)
    found = [
        with_matches(result, body.query) if body.matches and isinstance(result, Hit) else as_json(result)
        for result in results
    ]
    return {
        "by": by,
        "fingerprint": manifest.fingerprint,
        kind: found,
        "warnings": warnings,
        "pending": collection.pending,
        "unfinished": is_unfinished(manifest.settings),
    }


@router.post("/{name}/records")
async def add_records(name: str, body: AddRequest, service: Serving) -> Json:
    """Add records, or replace those of the same ids; all of them are on disk when the answer comes.

    All vectors are made before the first write: after an error of a field, the queue or the model nothing is written.
    A folder and PostgreSQL write new and changed texts in one transaction, after changes of metadata alone. After an
    error of the store (503, `store_error`) such changes can be there without the texts, and on a Qdrant server a part
    of the texts. Repeating a request completes it, and has no other effect.
    """
    collection = service.registry.collection(name).collection
    records = [_record(new, collection.parent_key) for new in body.records]
    if len({record.id for record in records}) < len(records):
        message = "records: two of them have the same id, or the same text without an id. Send one of them."
        raise RequestError(400, message, param="records", code="repeated_id")
    report = await in_thread(partial(collection.add_records, records, at_once=True))
    return Json({**asdict(report), "ids": [record.id for record in records]})


def _record(new: NewRecord, parent_key: str | None) -> Record:
    kept = frozenset({"title", "metadata"} - new.model_fields_set)
    record = PartialRecord(new.id or "", new.text, new.title, new.metadata, kept)
    return record if new.id is not None else replace(record, id=default_id(record, parent_key))


@router.get("/{name}/records")
async def get_records(name: str, service: Serving, ids: Ids) -> Json:
    """Return the records of some ids (?id=…&id=…) that exist, in the order of the ids."""
    records = await in_thread(service.registry.collection(name).collection.get, ids)
    return Json({"records": [as_json(record) for record in records]})


@router.delete("/{name}/records")
async def delete_records(name: str, service: Serving, ids: Ids) -> Json:
    """Delete records by id (?id=…&id=…); unknown ids are skipped."""
    return Json({"deleted": await in_thread(service.registry.collection(name).collection.delete, ids)})


@router.post("/{name}/records/delete")
async def delete_by(name: str, body: DeleteRequest, service: Serving) -> Json:
    """Delete records by ids or by a filter; `{}` matches, and so deletes, every record.

    After an error some of them can be deleted. Repeating the request deletes the others.
    """
    if (body.ids is None) == (body.where is None):
        raise RequestError(400, "Expected either ids or where, exactly one of them.", code="invalid_value")
    collection = service.registry.collection(name).collection
    return Json({"deleted": await in_thread(partial(collection.delete, body.ids, where=body.where))})


@router.get("/{name}/neighbours")
async def get_neighbours(
    name: str,
    service: Serving,
    id_: Annotated[str, Query(alias="id")],
    around: Annotated[int, Query(ge=0, le=100)] = 2,
) -> Json:
    """Return a record (?id=…) between its neighbours of the same parent, at most `around` on each side."""
    records = await in_thread(neighbours_of, service.registry.collection(name).collection, id_, around)
    if not records:
        raise RequestError(404, f"There is no record {id_!r:.200}.", code="record_not_found", param="id")
    return Json({"records": [as_json(record) for record in records]})
