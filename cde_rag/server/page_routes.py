"""Routes of the page at `/`, and of its comparison of rankings."""

from pathlib import Path
from typing import Any, Final

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cde_rag.server.comparison import compared
from cde_rag.server.error_responses import Json
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.service import RequestBody, Serving
from cde_rag.server.text_limits import QueryText

router = APIRouter(route_class=JsonRoute)
FOLDER: Final = Path(__file__).parent / "page"
SCRIPTS: Final = ("page.js", "common.js", "text.js", "search.js", "judged.js", "chat.js", "library.js", "table.js")
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class CompareRequest(RequestBody):
    """Body of a comparison."""

    query: QueryText = Field(description="Text that is not blank.")
    k: int = Field(10, ge=1, le=50, description="Maximum number of hits per column.")
    where: dict[str, Any] | None = Field(None, description="Filter over the metadata.")


async def page() -> Response:
    """Return the page."""
    return await _file("page.html", "text/html")


async def style() -> Response:
    """Return the page's style."""
    return await _file("page.css", "text/css")


async def script(request: Request) -> Response:
    """Return one of the page's scripts."""
    return await _file(request.url.path.rpartition("/")[2], "text/javascript")


router.add_api_route("/", page, methods=["GET"], include_in_schema=False)
router.add_api_route("/page.css", style, methods=["GET"], include_in_schema=False)
for _name in SCRIPTS:
    router.add_api_route(f"/{_name}", script, methods=["GET"], include_in_schema=False)


async def _file(name: str, media_type: str) -> Response:
    content = await in_thread((FOLDER / name).read_bytes)
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=HEADERS)


@router.post("/v1/collections/{name}/compare")
async def compare(name: str, body: CompareRequest, service: Serving) -> Json:
    """Search a collection under its own context, the null context, BM25 and hybrid; the null context ranks candidates.

    Its column has the best passages of the others, embedded without a corpus.
    """
    served = service.registry.collection(name)
    return Json(await in_thread(compared, served, body.query, body.k, body.where, service.null_ranker))
