"""Judgments of people on hits: as a retrieval set in the layout of BEIR, and to choose the weight of hybrid search."""

import csv
import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from typing import IO, Annotated, Any

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from cde_rag._validation import utf8
from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import HYBRID_WEIGHT
from cde_rag.errors import CorpusError
from cde_rag.evaluation.hybrid_weight import tuned_weight
from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.evaluation.own_questions import find_answers, known_records
from cde_rag.records import parent_of
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.service import RequestBody, Serving

router = APIRouter(prefix="/v1/collections", route_class=JsonRoute)


class Judgment(RequestBody):
    """Hits of a query that somebody judged."""

    query: str
    right: list[str] = Field(default_factory=list, description="Ids of passages that answer it.")
    wrong: list[str] = Field(default_factory=list, description="Ids of passages that do not.")


class JudgmentsRequest(RequestBody):
    """Body with all judgments."""

    judgments: Annotated[list[Judgment], Field(min_length=1, max_length=10_000)]


@router.post("/{name}/judgments")
async def make_retrieval_set(name: str, body: JudgmentsRequest, service: Serving) -> Response:
    """Return a zip of a retrieval set in the layout of BEIR, for `cde-rag evaluate`: all documents, these queries."""
    collection = service.registry.collection(name).collection
    content = await in_thread(retrieval_set, collection, body.judgments)
    return FileResponse(
        content.name,
        media_type="application/zip",
        filename=f"{name}-judged.zip",
        background=BackgroundTask(content.close),
    )


def retrieval_set(collection: Collection, judgments: Sequence[Judgment]) -> IO[bytes]:
    """Write a retrieval set into a temporary file, as a zip.

    Args:
        collection: Its records are the corpus; a record's parent is the field `parent`.
        judgments: Grades are 1 for right and 0 for wrong; queries without a right one are left out.

    Raises:
        CorpusError: No query has a passage that is right, or a text holds a lone surrogate.
    """
    asked = _with_answers(judgments)
    rows = io.StringIO()
    table = csv.writer(rows, delimiter="\t", lineterminator="\n")
    table.writerow(["query-id", "corpus-id", "score"])
    for number, judgment in enumerate(asked):
        wrong = [id_ for id_ in judgment.wrong if id_ not in judgment.right]
        table.writerows([[f"q{number}", id_, 1] for id_ in judgment.right] + [[f"q{number}", id_, 0] for id_ in wrong])
    queries = [json.dumps({"_id": f"q{number}", "text": one.query}) for number, one in enumerate(asked)]
    file = tempfile.NamedTemporaryFile(suffix=".zip")  # noqa: SIM115 (closed once it has been sent)
    key = collection.parent_key
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("corpus.jsonl", "w", force_zip64=True) as corpus:
            for record in collection.scroll():
                row = {"_id": record.id, "title": record.title, "text": record.text}
                parent = parent_of(record, key)
                corpus.write((json.dumps(row if parent is None else {**row, "parent": parent}) + "\n").encode())
        archive.writestr("queries.jsonl", "".join(f"{query}\n" for query in queries))
        archive.writestr("qrels/test.tsv", rows.getvalue())
    file.flush()
    return file


def tuned(collection: Collection, judgments: Sequence[Judgment]) -> dict[str, Any]:
    """Choose the weight of vectors in hybrid search, and store it if the gain is sure.

    Args:
        collection: Collection of the passages.
        judgments: Queries without a passage that is right are left out.

    Returns:
        `weight` and `current_weight` (0 to 1), `queries`, `gain` (NDCG@10 on queries that did not choose the weight,
        less that of the current one, a fraction, with the 95 % interval `low` to `high`), `current` (NDCG@10) and
        `written`.

    Raises:
        CorpusError: Fewer than 20 queries have a right passage in the collection, or a text holds a lone surrogate.
    """
    questions = [
        JudgedQuestion("", one.query, "", grades=dict.fromkeys(one.right, 1)) for one in _with_answers(judgments)
    ]
    found = find_answers(questions, known_records(collection, questions), source="The judgments", name="collection")
    choice = tuned_weight(collection.searcher, found.queries, current=collection.inspect().hybrid_weight)
    if choice.is_worth_storing:
        collection.store.update_settings({HYBRID_WEIGHT: choice.weight})
    low, high = choice.gain.queries
    return {
        "weight": choice.weight,
        "current_weight": choice.current_weight,
        "queries": choice.queries,
        "current": choice.current,
        "gain": {"mean": choice.gain.mean, "low": low, "high": high},
        "written": choice.is_worth_storing,
    }


def _with_answers(judgments: Sequence[Judgment]) -> list[Judgment]:
    """Return the judgments of queries with a passage that is right."""
    for judgment in judgments:
        for text in (judgment.query, *judgment.right, *judgment.wrong):
            utf8(text, where="A text of the judgments")
    asked = [judgment for judgment in judgments if judgment.query.strip() and judgment.right]
    if not asked:
        raise CorpusError("Expected a query with a passage that is right, found none. Mark one first.")
    return asked
