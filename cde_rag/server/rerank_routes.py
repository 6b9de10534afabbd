"""Route of rerankers: `/v1/rerank` in the form of Cohere's and Jina's APIs."""

from typing import Annotated, Final

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter
from pydantic import Field

from cde_rag._validation import check_texts
from cde_rag.search.retrievers import Rerank, reranker_scores
from cde_rag.server.error_responses import Json
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.service import RequestBody, Serving
from cde_rag.server.text_limits import DocumentText, QueryText

router = APIRouter(prefix="/v1", route_class=JsonRoute)
MOST_DOCUMENTS: Final = 1_000  # Cohere's bound


class RerankDocument(RequestBody):
    """Document as an object."""

    text: DocumentText


class RerankRequest(RequestBody):
    """Body of `/v1/rerank`."""

    model: str | None = Field(None, description="Reranker that the server was started with; the only one by default.")
    query: QueryText = Field(description="Text that is not blank.")
    documents: Annotated[
        list[DocumentText | RerankDocument],
        Field(min_length=1, max_length=MOST_DOCUMENTS, description="Texts that are not blank."),
    ]
    top_n: int | None = Field(None, ge=1, description="Maximum number of results; all by default.")
    return_documents: bool = Field(default=False, description="True: each result has its document.")


@router.post("/rerank")
async def rerank_documents(body: RerankRequest, service: Serving) -> Json:
    """Score documents by a query; each result has a `relevance_score` and the document's `index`, best ones first."""
    model, rerank = service.reranker(body.model, param="model")
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    check_texts([body.query])
    check_texts(texts)
    scores = await in_thread(_scores, rerank, body.query, texts, limiter=service.one_at_a_time)
    order = sorted(range(len(texts)), key=lambda place: -scores[place])[: body.top_n]
    results = [
        {
            "index": place,
            "relevance_score": scores[place],
            **({"document": {"text": texts[place]}} if body.return_documents else {}),
        }
        for place in order
    ]
    return Json({"object": "list", "model": model, "results": results})


def _scores(rerank: Rerank, query: str, texts: list[str]) -> list[float]:
    return reranker_scores(rerank, [(query, text) for text in texts])
