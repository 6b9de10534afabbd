"""Rerankers that an API serves: each gets requests in its own form, and an answer without one score for each text is
an error that says what was found."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rerank_server import Stand, serving

from cde_rag.errors import ModelError
from cde_rag.models import rerank_api
from cde_rag.models.rerank_api import RerankEndpoint
from cde_rag.models.rerankers import named_reranker

PAIRS = [("a river", text) for text in ("bank", "a delta", "the flood of money")]
SCORES = [0.04, 0.07, 0.18]  # a hundredth of a text's characters


@pytest.fixture
def stand() -> Iterator[Stand]:
    with serving() as server:
        yield server


@pytest.fixture
def names(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A name of each form, by the form; the services' own addresses lead to the stand."""
    monkeypatch.setenv("CO_API_KEY", "secret of cohere\n")  # as a file that is read has it
    monkeypatch.setenv("JINA_API_KEY", "secret of jina")
    monkeypatch.delenv("CDE_RAG_RERANK_KEY", raising=False)
    moved = {
        name: rerank_api._Service(f"{stand.url}/{name}", service.key, service.form)
        for name, service in rerank_api.SERVICES.items()
    }
    monkeypatch.setattr(rerank_api, "SERVICES", moved)
    return {
        "cohere": "cohere:rerank-v3.5",
        "jina": "jina:jina-reranker-v2",
        "address": f"{stand.url}/v1/rerank#bge",
        "tei": f"{stand.url}/rerank",
    }


FORMS = ("cohere", "jina", "address", "tei")
TEXTS = [text for _, text in PAIRS]
EXPECTED: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "cohere": ("/cohere", "Bearer secret of cohere", {"model": "rerank-v3.5", "documents": TEXTS}),
    "jina": (
        "/jina",
        "Bearer secret of jina",
        {"model": "jina-reranker-v2", "documents": TEXTS, "return_documents": False},
    ),
    "address": ("/v1/rerank", None, {"model": "bge", "documents": TEXTS}),
    "tei": ("/rerank", None, {"texts": TEXTS, "raw_scores": False, "truncate": True}),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form(stand: Stand, names: dict[str, str], form: str) -> None:
    reranker = named_reranker(names[form])
    assert stand.calls == []
    np.testing.assert_allclose(reranker(PAIRS), SCORES, atol=1e-6)
    path, key, body = EXPECTED[form]
    assert stand.calls == [(path, key, {"query": "a river", **body})]
    assert reranker([]).shape == (0,)
    found = reranker([*PAIRS, ("the bank", "boat")])  # a call for each query
    np.testing.assert_allclose(found, [*SCORES, 0.04], atol=1e-6)
    assert [asked["query"] for _, _, asked in stand.calls[1:]] == ["a river", "the bank"]
    assert "secret" not in repr(reranker)


def test_many_texts_go_in_several_calls(stand: Stand, names: dict[str, str]) -> None:
    many = [("a river", "x" * place) for place in range(1, 71)]
    np.testing.assert_allclose(named_reranker(names["tei"])(many), np.arange(1, 71) / 100, atol=1e-6)
    assert [len(asked["texts"]) for _, _, asked in stand.calls] == [32, 32, 6]


def rows(form: str, *given: tuple[Any, Any]) -> Any:
    score = "score" if form == "tei" else "relevance_score"
    found = [{"index": index, score: value} for index, value in given]
    return found if form == "tei" else {"results": found}


BAD: dict[str, list[tuple[Any, Any]]] = {
    "few": [(0, 0.1), (1, 0.2)],
    "many": [(0, 0.1), (1, 0.2), (2, 0.3), (2, 0.3)],
    "twice": [(0, 0.1), (1, 0.2), (1, 0.3)],
    "beyond": [(0, 0.1), (1, 0.2), (3, 0.3)],
    "no index": [(0, 0.1), (1, 0.2), (None, 0.3)],
    "no number": [(0, 0.1), (1, 0.2), (2, "0.3")],
    "bool": [(0, 0.1), (True, 0.2), (2, 0.3)],
    "NaN": [(0, 0.1), (1, 0.2), (2, float("nan"))],
}


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    for address in ("http://me:secret@localhost:1/rerank", "https://secret@localhost/v1/rerank#bge"):
        with pytest.raises(ModelError, match="without a user's name or password") as refused:
            named_reranker(address)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_bad_answers(stand: Stand, names: dict[str, str], form: str) -> None:
    reranker = named_reranker(names[form])
    bad = [rows(form, *given) for given in BAD.values()]
    for raw in (*bad, {}, [], "scores", [1, 2, 3], {"results": None}, {"error": "unknown model"}):
        stand.raw = raw
        with pytest.raises(ModelError, match="expected one score for each of 3 texts, numbered from 0, found another"):
            reranker(PAIRS)
    stand.raw, stand.status = {"error": "too busy"}, 500
    with pytest.raises(ModelError, match=r"expected scores, found status 500: .*too busy"):
        reranker(PAIRS)


@pytest.mark.parametrize("form", FORMS)
def test_an_address_gets_its_key_and_no_others(
    stand: Stand, names: dict[str, str], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret of openai")
    monkeypatch.setenv("CDE_RAG_RERANK_KEY", " secret of mine\n")
    reranker = named_reranker(names[form])
    np.testing.assert_allclose(reranker(PAIRS), SCORES, atol=1e-6)
    own = form in ("address", "tei")
    assert [key for _, key, _ in stand.calls] == ["Bearer secret of mine" if own else EXPECTED[form][1]]
    assert "secret" not in repr(reranker)
    stand.status = 401
    variable = {"cohere": "CO_API_KEY", "jina": "JINA_API_KEY"}.get(form, "CDE_RAG_RERANK_KEY")
    with pytest.raises(ModelError, match=f"found status 401: .* the key \\(the environment's {variable}\\)") as refused:
        reranker(PAIRS)
    assert "secret" not in str(refused.value)


def test_a_key_of_an_address_is_checked_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDE_RAG_RERANK_KEY", "secret\nX-Header: of another")
    with pytest.raises(ModelError, match="CDE_RAG_RERANK_KEY, found characters that no key has") as found:
        named_reranker("http://localhost:8000/rerank#m")
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_redirect_is_not_followed(stand: Stand, names: dict[str, str], form: str) -> None:
    """It could take the key elsewhere."""
    for status in (301, 302, 303, 307, 308):
        stand.status = status
        with pytest.raises(ModelError, match=f"found status {status}"):
            named_reranker(names[form])(PAIRS)
    assert {path for path, _, _ in stand.calls} == {EXPECTED[form][0]}


def test_no_answer_in_time(stand: Stand) -> None:
    stand.pause_s = 0.5
    with pytest.raises(ModelError, match=r"no answer within 0\.05 s .* Is the server running"):
        RerankEndpoint(f"{stand.url}/rerank", timeout_s=0.05)(PAIRS)
    with pytest.raises(ModelError, match=r"no answer within 30 s .*refused"):
        named_reranker("http://127.0.0.1:1/rerank")(PAIRS)


def test_names_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for service, key in (("cohere", "CO_API_KEY"), ("jina", "JINA_API_KEY")):
        monkeypatch.delenv(key, raising=False)
        with pytest.raises(ModelError, match=f"Expected a key for {service}:m in the environment's {key}"):
            named_reranker(f"{service}:m")
        monkeypatch.setenv(key, "secret")
        with pytest.raises(ModelError, match=f"Expected a model's name, .* found '{service}:'"):
            named_reranker(f"{service}:")
    with pytest.raises(ModelError, match="Expected a model's name"):
        named_reranker("http://localhost:8000/rerank#")
    for key in ("secret\nX-Header: of another", "secr\u20act"):
        monkeypatch.setenv("CO_API_KEY", key)
        with pytest.raises(ModelError, match="found characters that no key has") as found:
            named_reranker("cohere:m")
        assert "secr" not in str(found.value)
    for name in ("http://localhost:1/\u00fc", f"http://{'a' * 70}/rerank"):
        with pytest.raises(ModelError, match="no answer"):
            named_reranker(name)(PAIRS)
    for name in ("http://", "http://:80/rerank", "http://localhost:port/rerank", "https:///rerank#m"):
        with pytest.raises(ModelError, match="Expected an address such as"):
            named_reranker(name)
    with pytest.raises(TypeError, match="runs elsewhere: leave device and runtime out"):
        named_reranker("http://localhost/rerank", runtime="onnx")
