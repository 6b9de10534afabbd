"""Reranking over HTTP: requests name a reranker that the server was started with, and load none."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from served import Running, make, running

from cde_rag.cli.serve import rerankers_of
from cde_rag.errors import CDEError, ModelError

QUERY = "a river"
TEXTS = ["bank", "a delta of the river", "fish"]


def by_length(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Scores to check by eye: long texts first."""
    return [float(len(text)) for _, text in pairs]


def failing(_: Sequence[tuple[str, str]]) -> list[float]:
    raise ModelError("http://inner.host: secret of the operator")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    service, embedder = make(tmp_path_factory.mktemp("served"), rerankers={"length": by_length, "acme/fails": failing})
    with running(service) as url:
        yield Running(url, service, embedder)


def test_documents_are_scored_in_coheres_form(server: Running) -> None:
    found = server.post("/v1/rerank", {"model": "length", "query": QUERY, "documents": TEXTS})
    assert found["model"] == "length"
    assert found["results"] == [
        {"index": 1, "relevance_score": 20.0},
        {"index": 0, "relevance_score": 4.0},
        {"index": 2, "relevance_score": 4.0},
    ]
    body = {"model": "length", "query": QUERY, "documents": [{"text": text} for text in TEXTS], "top_n": 2}
    found = server.post("/v1/rerank", {**body, "return_documents": True})
    assert [(row["index"], row["document"]) for row in found["results"]] == [
        (1, {"text": TEXTS[1]}),
        (0, {"text": "bank"}),
    ]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            {"model": "cross-encoder/ms-marco-MiniLM-L6-v2"},
            404,
            "one of the rerankers of this server, length, acme/fails",
        ),
        ({"model": None}, 404, "found none"),
        ({"query": " "}, 400, "blank"),
        ({"documents": []}, 400, "documents"),
        ({"documents": ["river", " "]}, 400, "Text 1 is empty or blank"),
        ({"documents": [3]}, 400, "documents"),
        ({"documents": ["x"] * 1_001}, 400, "documents"),
        ({"top_n": 0}, 400, "top_n"),
        ({"rank_fields": ["title"]}, 400, "rank_fields"),
        ({"model": "acme/fails"}, 502, "The reranker gave no scores"),
    ],
)
def test_bad_fields(server: Running, change: Any, code: int, message: str) -> None:
    body = {"model": "length", "query": QUERY, "documents": TEXTS} | change
    error = server.post("/v1/rerank", body, code)["error"]
    assert message in error["message"]
    assert "secret" not in error["message"]


def test_a_search_names_a_reranker(server: Running) -> None:
    path, asked = "/v1/collections/papers/search", {"query": QUERY, "k": 5}
    papers = server.service.registry.collection("papers").collection
    for body, options in (
        ({"rerank": "length"}, {}),
        ({"rerank": "length", "rerank_top": 7}, {"candidates": 7}),
        ({"rerank": "length", "rerank_budget_ms": 0}, {"budget_ms": 0}),
    ):
        expected = papers.searcher("hybrid").reranked(by_length, **options).search(QUERY, 5)
        assert [hit["id"] for hit in server.post(path, asked | body)["hits"]] == [hit.id for hit in expected]
    groups = server.post(path, {**asked, "rerank": "length", "group_by": "book"})["groups"]
    best = [group["hits"][0]["score"] for group in groups]
    assert best == sorted(best, reverse=True)
    assert best[0] > 1
    error = server.post(path, {**asked, "rerank": str(Path.cwd())}, 404)["error"]
    assert (error["param"], error["code"]) == ("rerank", "model_not_found")
    assert "rerank_top" in server.post(path, {**asked, "rerank_top": 3}, 400)["error"]["message"]
    assert server.post(path, {**asked, "rerank": "acme/fails"}, 502)["error"]["code"] == "reranker"


def test_a_short_name_hides_an_address() -> None:
    """Clients are told the names of rerankers, and an address may be of an inner host."""
    found = rerankers_of(["bge=http://inner:1/v1/rerank#bge-reranker", "http://inner:1/rerank?a=b"])
    assert list(found) == ["bge", "http://inner:1/rerank?a=b"]
    assert repr(found["bge"]) == "RerankEndpoint(http://inner:1/v1/rerank#bge-reranker)"
    with pytest.raises(CDEError, match="Two rerankers are named 'a'"):
        rerankers_of(["a=http://inner:1/rerank", "a=http://inner:2/rerank"])


def test_the_only_reranker_needs_no_name(tmp_path: Path) -> None:
    service, embedder = make(tmp_path, rerankers={"length": by_length})
    with running(service) as url:
        only = Running(url, service, embedder)
        assert only.post("/v1/rerank", {"query": QUERY, "documents": TEXTS})["model"] == "length"
    service, embedder = make(tmp_path / "none")
    with running(service) as url:
        none = Running(url, service, embedder)
        message = none.post("/v1/rerank", {"query": QUERY, "documents": TEXTS}, 404)["error"]["message"]
        assert "which has none" in message
        assert "serve --rerank NAME" in message
