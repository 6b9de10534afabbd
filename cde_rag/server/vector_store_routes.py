"""Routes of OpenAI's vector stores: each served collection is one."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal, cast

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter
from pydantic import Field, field_validator

from cde_rag.field_names import field_name
from cde_rag.records import Hit
from cde_rag.server.error_responses import Json, RequestError
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.registry import ServedCollection, seconds_of
from cde_rag.server.search_results import public_metadata, with_warnings
from cde_rag.server.service import RequestBody, Serving
from cde_rag.server.text_limits import QUERY_CHARACTERS, check_length

router = APIRouter(prefix="/v1/vector_stores", route_class=JsonRoute)
MAX_RESULTS: Final = 50  # OpenAI's bound
MAX_LEVELS: Final = 32  # of filters in each other
COMPARISONS: Final = frozenset({"eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"})


class RankingOptions(RequestBody):
    """Ranking of OpenAI's search."""

    ranker: Literal["auto", "none", "default-2024-11-15"] = "auto"
    score_threshold: float | None = None


class StoreSearchRequest(RequestBody):
    """Body of OpenAI's search."""

    query: str | list[str]
    max_num_results: int = Field(10, ge=1, le=MAX_RESULTS)
    filters: dict[str, Any] | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: bool = False

    @field_validator("query")
    @classmethod
    def _is_short(cls, query: str | list[str]) -> str | list[str]:
        for text in [query] if isinstance(query, str) else query:
            check_length(text, QUERY_CHARACTERS, where="a text")
        return query


@router.get("")
async def list_vector_stores(
    service: Serving, limit: int = 20, after: str | None = None, order: Literal["asc", "desc"] = "desc"
) -> Json:
    """List the collections as vector stores."""
    found = [await in_thread(_described, served) for served in service.registry.collections.values()]
    found.sort(key=lambda each: (each["created_at"], each["id"]), reverse=order == "desc")
    ids = [each["id"] for each in found]
    if after is not None and after not in ids:
        raise RequestError(400, f"after: there is no vector store {after!r:.200}.", param="after", code="invalid_value")
    start = 0 if after is None else ids.index(after) + 1
    page = found[start : start + max(1, limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = start + len(page) < len(found)
    return Json({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more})


@router.get("/{name}")
async def retrieve_vector_store(name: str, service: Serving) -> Json:
    """Describe a collection as a vector store."""
    return Json(await in_thread(_described, service.registry.collection(name)))


def _described(served: ServedCollection) -> dict[str, Any]:
    found = served.collection.inspect()
    created = seconds_of(found.context_created)
    return {
        "id": served.name,
        "object": "vector_store",
        "name": served.name,
        "created_at": created,
        "last_active_at": created,
        "status": "completed",
        "usage_bytes": found.documents * found.dim * 4,
        "file_counts": {
            "in_progress": 0,
            "completed": found.documents,
            "failed": 0,
            "cancelled": 0,
            "total": found.documents,
        },
        "metadata": {"fingerprint": found.fingerprint, "model": found.model},
    }


@router.post("/{name}/search")
async def search_vector_store(name: str, body: StoreSearchRequest, service: Serving) -> Json:
    """Search a collection as OpenAI's clients do; by vectors and BM25 where it has a text index."""
    served = service.registry.collection(name)
    queries = [body.query] if isinstance(body.query, str) else body.query
    if len(queries) != 1:
        message = f"query: expected one text, found {len(queries)}. Send a request for each."
        raise RequestError(400, message, param="query", code="invalid_value")
    if body.rewrite_query:
        message = "rewrite_query: queries are searched as they are. Leave it out."
        raise RequestError(400, message, param="rewrite_query", code="unsupported_value")
    where = None if body.filters is None else where_of(body.filters)
    options = body.ranking_options or RankingOptions()
    searcher = served.collection.searcher(served.by("hybrid"))
    most, least = body.max_num_results + 1, options.score_threshold
    search = partial(searcher.search, queries[0], most, where=where, score_threshold=least)
    hits, warnings = await in_thread(with_warnings, served.collection, search, where, queries[0])
    data = [_result(hit) for hit in hits[: body.max_num_results]]
    more = len(hits) > len(data)
    kind = "vector_store.search_results.page"
    page = {"object": kind, "search_query": queries, "data": data, "has_more": more, "next_page": None}
    return Json({**page, "warnings": warnings})


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "file_id": hit.id,
        "filename": hit.title or hit.id,
        "score": hit.score,
        "attributes": public_metadata(hit.metadata),
        "content": [{"type": "text", "text": hit.text}],
    }


def where_of(filters: Mapping[str, Any], level: int = 0) -> dict[str, Any]:
    """Translate OpenAI's filters into those of the library.

    Args:
        filters: `{"type": "eq", "key": …, "value": …}`, or `{"type": "and", "filters": […]}`.
        level: Filters around this one.

    Raises:
        RequestError: Another form.
    """
    match filters:
        case {"type": "and" | "or" as kind, "filters": list()} if len(filters) == 2 and level < MAX_LEVELS:
            parts = cast(list[object], filters["filters"])
            return {kind: [where_of(cast(dict[str, Any], part), level + 1) for part in parts]}
        case {"type": str(kind), "key": str(key), "value": value} if len(filters) == 3 and kind in COMPARISONS:
            return {field_name(key): {kind: value}}
        case _:
            kinds = ", ".join(sorted(COMPARISONS))
            message = (
                'filters: expected {"type": "eq", "key": "year", "value": 2020} or {"type": "and", "filters": […]}; '
                f"types are {kinds}, and, or."
            )
            raise RequestError(400, message, param="filters", code="invalid_value")
