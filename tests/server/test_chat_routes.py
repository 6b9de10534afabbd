"""`/v1/chat/completions`: the passages are those of a search, the language model gets them numbered, its answer is
streamed as it comes, and without one the answer is the passages and the reason."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fake_llm import FakeLLM, fake_llm
from langchain_openai import ChatOpenAI
from served import Running, make, running

from cde_rag import CDEError
from cde_rag.server.chat_routes import ChatRequest
from cde_rag.server.citations import prompt
from cde_rag.server.error_responses import RequestError
from cde_rag.server.language_model import Delta, RemoteModel, complete
from cde_rag.server.text_limits import QUERY_CHARACTERS, TEXT_CHARACTERS

ASKED: Any = [{"role": "user", "content": "Where does a river have a bank?"}]


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    with fake_llm() as fake:
        yield fake


@pytest.fixture
def chatting(tmp_path: Path, llm: FakeLLM) -> Iterator[Running]:
    service, embedder = make(tmp_path, language_model=RemoteModel(llm.url, api_key="secret"))
    with running(service) as url:
        yield Running(url, service, embedder)


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def expected(server: Running, k: int = 6, **options: Any) -> list[Any]:
    collection = server.service.registry.collection("papers").collection
    return collection.searcher("hybrid").search(ASKED[0]["content"], k, **options)


def test_an_answer_cites_the_passages_that_the_model_was_given(chatting: Running, llm: FakeLLM) -> None:
    with client_of(chatting) as client:
        answer = client.chat.completions.create(model="papers", messages=ASKED, temperature=0, max_tokens=50)
    assert answer.choices[0].message.content == "Rivers have banks [1]."
    assert (answer.choices[0].finish_reason, answer.model) == ("stop", "tiny@papers")
    citations = answer.model_dump()["citations"]
    hits = expected(chatting)
    assert [(one["number"], one["id"], one["text"]) for one in citations] == [
        (number, hit.id, hit.text) for number, hit in enumerate(hits, 1)
    ]
    (body,) = llm.asked
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("fake-1", 0, 50)
    assert llm.keys == ["Bearer secret"]
    given = body["messages"][0]["content"]
    assert body["messages"][1:] == ASKED
    for number, hit in enumerate(hits, 1):
        assert f"[{number}] {hit.title}\n{hit.text}" in given


def test_a_streamed_answer_comes_piece_by_piece(chatting: Running, llm: FakeLLM) -> None:
    llm.gate.clear()
    with client_of(chatting) as client:
        chunks = client.chat.completions.create(
            model="tiny@papers", messages=ASKED, stream=True, extra_body={"k": 2, "where": {"year": {"gte": 2020}}}
        )
        first = next(chunks)
        assert [one["id"] for one in first.model_dump()["citations"]] == [
            hit.id for hit in expected(chatting, 2, where={"year": {"gte": 2020}})
        ]
        assert next(chunks).choices[0].delta.content == "Rivers "  # while the model still writes
        llm.gate.set()
        rest = [chunk.choices[0] for chunk in chunks]
    assert "".join(one.delta.content or "" for one in rest) == "have banks [1]."
    assert rest[-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_a_field_that_no_record_has_is_warned_of(chatting: Running, stream: bool) -> None:
    body = {"model": "papers", "messages": ASKED, "where": {"yaer": 2020}, "stream": stream}
    with chatting.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    first = json.loads(response.text.split("\n")[0].removeprefix("data: "))
    assert first["warnings"] == ["No record has the field 'yaer' of the filter. The commonest fields: 'book', 'year'."]
    assert "matches the question" in first["no_answer"]


def test_a_client_that_leaves_stops_the_language_model(chatting: Running, llm: FakeLLM) -> None:
    llm.gate.clear()
    body = {"model": "papers", "messages": ASKED, "stream": True}
    with chatting.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if "Rivers" in line:
                break
    assert llm.cut.wait(60)
    llm.gate.set()
    assert chatting.post("/v1/chat/completions", {"model": "papers", "messages": ASKED})["no_answer"] is None


def test_a_client_that_leaves_without_stream_stops_the_language_model(chatting: Running, llm: FakeLLM) -> None:
    llm.gate.clear()
    body = {"model": "papers", "messages": ASKED}
    with chatting.client() as client, suppress(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=body, timeout=1)
    assert llm.cut.wait(60)  # the model would write until its gate opens
    llm.gate.set()
    assert chatting.post("/v1/chat/completions", body)["no_answer"] is None


def test_the_tokens_of_an_answer_are_those_that_the_model_counted(chatting: Running, llm: FakeLLM) -> None:
    llm.usage = {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}
    asked: Any = {"model": "papers", "messages": ASKED, "stream": True}
    with client_of(chatting) as client:
        *pieces, last = client.chat.completions.create(**asked, stream_options={"include_usage": True})
        assert (last.choices, last.usage and last.usage.model_dump(exclude_unset=True)) == ([], llm.usage)
        assert pieces[-1].choices[0].finish_reason == "stop"
        for options in (None, {"include_usage": False, "include_obfuscation": False}):
            assert all(each.choices for each in client.chat.completions.create(**asked, stream_options=options))
    assert [body.get("stream_options") for body in llm.asked] == [{"include_usage": True}, None, None]
    llm.usage = None  # a server that counts none
    with client_of(chatting) as client:
        *_, last = client.chat.completions.create(**asked, stream_options={"include_usage": True})
    assert (last.choices, last.usage) == ([], None)


NEUTRAL: list[dict[str, Any]] = [
    {"frequency_penalty": 0, "presence_penalty": 0.0, "n": 1, "logit_bias": {}, "logprobs": False, "top_logprobs": 0},
    {"tools": [], "tool_choice": "none", "functions": [], "function_call": "auto", "parallel_tool_calls": False},
    {"response_format": {"type": "text"}, "modalities": ["text"], "store": False, "service_tier": "auto"},
    {"reasoning_effort": "low", "verbosity": "medium", "prediction": {"type": "content", "content": "A river."}},
    {"user": "me", "safety_identifier": "me", "prompt_cache_key": "x", "metadata": {"chat": "1"}, "stop": []},
    {"temperature": 1, "top_p": 1, "stream_options": {}},
]


def test_values_without_an_effect_are_taken(chatting: Running, llm: FakeLLM) -> None:
    for fields in NEUTRAL:
        chatting.post("/v1/chat/completions", {"model": "papers", "messages": ASKED, **fields})
        assert llm.asked[-1].keys() <= {"model", "messages", "stream", "temperature", "top_p"}


def test_null_is_a_field_left_out(chatting: Running, llm: FakeLLM) -> None:
    body = {"model": "papers", "messages": ASKED}
    names = [*ChatRequest.model_fields, "of_another_program"]
    nulls = {name: None for name in names if name not in body}
    answer = chatting.post("/v1/chat/completions", {**body, **nulls})
    assert answer["choices"] == chatting.post("/v1/chat/completions", body)["choices"]
    assert llm.asked[0] == llm.asked[1]
    assert "model" in chatting.post("/v1/chat/completions", {**body, "model": None}, 400)["error"]["message"]


def test_turns_without_a_text_are_left_out(chatting: Running, llm: FakeLLM) -> None:
    talk: Any = [
        {"role": "user", "content": "Is a loan a bank?", "name": None},
        {"role": "assistant", "content": None, "tool_calls": [], "annotations": [], "audio": None},
        {"role": "assistant", "content": "No.", "reasoning_content": "Hm.", "refusal": None},
        *ASKED,
    ]
    chatting.post("/v1/chat/completions", {"model": "papers", "messages": talk})
    assert [turn["content"] for turn in llm.asked[0]["messages"][1:]] == [
        "Is a loan a bank?",
        "No.",
        ASKED[0]["content"],
    ]


def test_the_conversation_goes_with_the_question(chatting: Running, llm: FakeLLM) -> None:
    talk: Any = [
        {"role": "developer", "content": "Answer in French."},
        {"role": "user", "content": [{"type": "text", "text": "Is a loan a bank?"}]},
        {"role": "assistant", "content": "No [1].", "refusal": None},
        *ASKED,
    ]
    chatting.post("/v1/chat/completions", {"model": "papers:query", "messages": talk})
    system, *turns = llm.asked[0]["messages"]
    assert "Answer in French." in system["content"]
    assert [turn["content"] for turn in turns] == ["Is a loan a bank?", "No [1].", ASKED[0]["content"]]


def test_a_prompt_keeps_to_its_bound_and_begins_with_a_question() -> None:
    citations: Any = [
        {"number": number, "id": str(number), "title": "T", "section": "S", "place": f"line {number}", "text": "x" * 60}
        for number in (1, 2, 3)
    ]
    talk = [{"role": role, "content": text * 40} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    system, *turns = prompt(talk, citations, 100)
    assert system["content"].count("x" * 60) == 1
    assert "[2] T · S · line 2\n" + "x" * 40 in system["content"]
    assert "[3]" not in system["content"].partition("quoted material")[2]
    assert turns == talk
    assert prompt(talk, citations, 79)[1:] == talk[-1:]  # the answer alone would fit, without its question


def test_langchain_chats(chatting: Running) -> None:
    chat = ChatOpenAI(model="papers", base_url=f"{chatting.url}/v1", api_key="none", max_retries=0)  # pyright: ignore[reportArgumentType]
    assert chat.invoke("Where does a river have a bank?").content == "Rivers have banks [1]."
    assert "".join(str(part.content) for part in chat.stream("river")) == "Rivers have banks [1]."


@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_language_model_is_named(chatting: Running, llm: FakeLLM, stream: bool) -> None:
    llm.status = 400
    with client_of(chatting) as client:
        if stream:
            chunks = iter(client.chat.completions.create(model="papers", messages=ASKED, stream=True))
            assert next(chunks).model_dump()["citations"]  # the passages come all the same
            with pytest.raises(openai.APIError, match=r"fake-1.*answered 400.*no room"):
                list(chunks)
        else:
            with pytest.raises(openai.InternalServerError, match=r"fake-1.*answered 400.*no room") as caught:
                client.chat.completions.create(model="papers", messages=ASKED)
            assert caught.value.status_code == 502
            assert "secret" not in str(caught.value)
            assert "127.0.0.1" not in str(caught.value)
    assert chatting.get("/v1/chat")["language_model"] == "fake-1"


def test_an_answer_that_breaks_off_is_an_error(chatting: Running, llm: FakeLLM) -> None:
    """The connection ends in good order, or amid what its head promised; what was sent is no complete answer."""
    body = {"model": "papers", "messages": ASKED}
    llm.finish = None
    for llm.pieces, llm.promised in itertools.product(([], ["Rivers "], ["Never mix ", "the "]), (None, 100_000)):
        with chatting.client() as client:
            response = client.post("/v1/chat/completions", json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (502, "language_model")
            response = client.post("/v1/chat/completions", json={**body, "stream": True})
        events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]  # no [DONE]
        choices = [event["choices"][0] for event in events[:-1]]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "".join(llm.pieces)
        assert [choice["finish_reason"] for choice in choices] == [None] * len(choices)
        assert events[-1]["error"]["code"] == "language_model"
        with client_of(chatting) as openais, pytest.raises(openai.APIError):
            list(openais.chat.completions.create(model="papers", messages=ASKED, stream=True))


async def pieces_of(*deltas: Delta, waiting_s: float = 0) -> AsyncGenerator[Delta, None]:
    for delta in deltas:
        await asyncio.sleep(waiting_s)
        yield delta


async def test_an_answer_is_complete_or_an_error() -> None:
    whole = [Delta("a"), Delta("b"), Delta("", "stop")]
    assert [delta async for delta in complete(pieces_of(*whole, Delta("more")))] == whole
    for broken in (whole[:2], []):
        with pytest.raises(RequestError, match=r"broke off .* incomplete") as caught:
            async for _ in complete(pieces_of(*broken)):
                pass
        assert caught.value.status == 502


async def test_an_answer_has_bounds_of_size_and_time() -> None:
    closed = list[str]()

    async def endless() -> AsyncGenerator[Delta, None]:
        try:
            while True:
                yield Delta("word ")
                await asyncio.sleep(0.001)
        finally:
            closed.append("closed")

    found = [delta async for delta in complete(endless(), characters=12)]
    assert ("".join(delta.text for delta in found), found[-1].finish) == ("word word wo", "length")
    with pytest.raises(RequestError, match=r"not finished after 0.05 s .* incomplete") as caught:
        async for _ in complete(endless(), seconds=0.05):
            pass
    assert caught.value.status == 504
    with pytest.raises(RequestError, match="not finished"):
        async for _ in complete(pieces_of(Delta("", "stop"), waiting_s=60), seconds=0.05):
            pass
    assert closed == ["closed", "closed"]  # the model was stopped


@pytest.mark.parametrize("wait", [None, "120", "Thu, 26 Nov 2026 12:00:00 GMT"])
def test_a_busy_language_model_says_when_to_try_again(chatting: Running, llm: FakeLLM, wait: str | None) -> None:
    llm.status, llm.retry_after = 429, wait
    with chatting.client() as client:
        response = client.post("/v1/chat/completions", json={"model": "papers", "messages": ASKED})
    assert (response.status_code, response.headers.get("retry-after")) == (429, wait)
    assert ("Try again in 120 s." in response.text) == (wait == "120")


def test_a_time_that_is_none_is_not_passed_on(chatting: Running, llm: FakeLLM) -> None:
    llm.status = 429
    for llm.retry_after in ("soon", "\x01\x02", "12\x00", "3\x0b", "", "1e9", "-1", "Thu, 99 Nov 2026 12:00:00 GMT"):
        with chatting.client() as client:
            response = client.post("/v1/chat/completions", json={"model": "papers", "messages": ASKED})
        assert response.headers.get("retry-after") is None
        assert response.json()["error"]["code"] == "language_model"
        assert response.status_code in (429, 502)  # the client takes no such header, or passes it on


@pytest.mark.parametrize("stream", [False, True])
def test_an_address_that_sends_something_else_is_named(chatting: Running, llm: FakeLLM, stream: bool) -> None:
    for raw in (
        ["{no JSON"],
        ["[1]"],
        ['{"choices": ["x"]}'],
        ['{"choices": [{"index": 0, "delta": {"content": 5}}]}'],
        ['{"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": {}}]}'],
        ['{"choices": []}'],
        [],
    ):
        llm.raw = raw
        with client_of(chatting) as client:
            if stream:
                with pytest.raises(openai.APIError, match="fake-1"):
                    list(client.chat.completions.create(model="papers", messages=ASKED, stream=True))
            else:
                with pytest.raises(openai.InternalServerError, match="fake-1") as caught:
                    client.chat.completions.create(model="papers", messages=ASKED)
                assert caught.value.status_code == 502


def test_a_last_event_without_a_delta_ends_the_answer(chatting: Running, llm: FakeLLM) -> None:
    piece = '{"choices": [{"index": 0, "delta": {"content": "Yes."}}]}'
    llm.raw = [piece, '{"choices": [{"index": 0, "finish_reason": "length"}]}']
    with client_of(chatting) as client:
        choice = client.chat.completions.create(model="papers", messages=ASKED).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Yes.", "length")


def test_the_key_of_the_address_is_in_no_answer(chatting: Running, llm: FakeLLM) -> None:
    llm.status, llm.message = 401, "Incorrect API key provided: secret"
    with client_of(chatting) as client, pytest.raises(openai.InternalServerError, match="Incorrect") as caught:
        client.chat.completions.create(model="papers", messages=ASKED)
    assert "secret" not in str(caught.value)


def test_an_address_where_nobody_answers_is_a_502(tmp_path: Path) -> None:
    service, _ = make(tmp_path, language_model=RemoteModel("http://127.0.0.1:9/v1", model="none"))
    with running(service) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        response = client.post("/v1/chat/completions", json={"model": "papers", "messages": ASKED})
    assert (response.status_code, response.json()["error"]["code"]) == (502, "language_model")


def test_without_a_language_model_the_answer_is_the_passages_and_the_reason(server: Running) -> None:
    assert "--llm" in server.get("/v1/chat")["reason"]
    hits = expected(server)
    with client_of(server) as client:
        answer = client.chat.completions.create(model="papers", messages=ASKED)
        chunks = list(client.chat.completions.create(model="papers", messages=ASKED, stream=True))
    text = answer.choices[0].message.content or ""
    assert "--llm" in text
    assert all(hit.text in text for hit in hits)
    assert "--llm" in answer.model_dump()["no_answer"]
    follow_up = server.post("/v1/chat/completions", {"model": "papers", "messages": TALK, "condense": True})
    assert follow_up["search_query"] == TALK[-1]["content"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    empty = server.post("/v1/chat/completions", {"model": "notes", "messages": ASKED})
    assert (empty["citations"], "no passage" in empty["no_answer"]) == ([], True)


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": "nobody"}, "nobody"),
    ({"model": "other@papers"}, "tiny@papers"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": " "}]}, "not blank"),
    ({"messages": [{"role": "assistant", "content": "Yes."}]}, "role user"),
    ({"messages": [{"role": "tool", "content": "Yes."}]}, "role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "content"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "without tools"),
    ({"tool_choice": "required"}, "without tools"),
    ({"frequency_penalty": 0.5}, "expected 0, or no such field, found 0.5"),
    ({"logit_bias": {"5": 100}}, "logit_bias"),
    ({"logprobs": True}, "logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [{"role": "user", "content": None}, *ASKED]}, "expected the content"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, *ASKED]}, "tool_calls"),
    ({"messages": [{"role": "user", "content": "x" * (QUERY_CHARACTERS + 1)}]}, "the question: expected at most"),
    ({"messages": [{"role": "system", "content": "x" * (TEXT_CHARACTERS + 1)}, *ASKED]}, "expected at most"),
    ({"n": 2}, "n"),
    ({"verbosity": "low"}, "the language model's own is used"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"temperature": 3}, "temperature"),
    ({"stream_options": {"include_usage": "yes"}}, "include_usage"),
    ({"where": {"year": {"near": 3}}}, "near"),
    ({"stream": "yes"}, "stream"),
    ({"messages": [{"role": "system", "content": "\ud800"}, *ASKED]}, "Message 0"),
    ({"stop": ["\ud800"]}, "stop"),
    ({"stop": [""]}, "stop"),
]


def test_bad_fields_of_a_chat_are_named(server: Running) -> None:
    for change, message in BAD_FIELDS:
        code = 404 if "model" in change else 400
        body = {"model": "papers", "messages": ASKED} | change
        assert message in server.post("/v1/chat/completions", body, code)["error"]["message"]


@pytest.mark.parametrize("url", ["localhost:8000", "file:///etc/passwd", "http://", "http://me:secret@host/v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(CDEError, match="address of a language model") as error:
        RemoteModel(url)
    assert "secret" not in str(error.value)


TALK: Any = [*ASKED, {"role": "assistant", "content": "On both sides."}, {"role": "user", "content": "And a delta?"}]


def test_a_question_after_others_is_condensed_before_the_search(chatting: Running, llm: FakeLLM) -> None:
    """The passages are those of the question that stands alone; the language model answers the one that was asked."""
    llm.answer = lambda body: "fish boat\n" if body.get("max_tokens") == 200 else "In it [1]."
    body = {"model": "papers", "messages": TALK, "condense": True, "k": 3}
    answer = chatting.post("/v1/chat/completions", body)
    papers = chatting.service.registry.collection("papers").collection
    assert answer["search_query"] == "fish boat"
    assert [one["id"] for one in answer["citations"]] == [hit.id for hit in papers.search("fish boat", 3)]
    condensing, answering = llm.asked
    assert all(turn["content"] in condensing["messages"][1]["content"] for turn in TALK)
    assert answering["messages"][1:] == TALK
    chatting.post("/v1/chat/completions", body | {"messages": ASKED})  # the first one stands alone
    chatting.post("/v1/chat/completions", body | {"condense": False})
    assert len(llm.asked) == 4
    with client_of(chatting) as client:
        first = next(iter(client.chat.completions.create(model="papers", messages=TALK, stream=True)))
    assert first.model_dump()["search_query"] == TALK[-1]["content"]


@pytest.mark.parametrize("written", ["", " \n", "x" * (QUERY_CHARACTERS + 1), "fish\0"])
def test_a_condensed_question_that_cannot_be_searched_is_not_used(
    chatting: Running, llm: FakeLLM, written: str
) -> None:
    llm.answer = lambda body: written if body.get("max_tokens") == 200 else "In it [1]."
    answer = chatting.post("/v1/chat/completions", {"model": "papers", "messages": TALK, "condense": True})
    assert answer["search_query"] == TALK[-1]["content"]
    assert answer["choices"][0]["message"]["content"] == "In it [1]."


def test_a_language_model_that_cannot_condense_is_an_error(chatting: Running, llm: FakeLLM) -> None:
    llm.failures = [500]
    error = chatting.post("/v1/chat/completions", {"model": "papers", "messages": TALK, "condense": True}, 502)["error"]
    assert error["code"] == "language_model"


def test_events_are_ascii_json(server: Running) -> None:
    body = {"model": "papers", "messages": ASKED, "stream": True}
    with server.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        assert json.loads(line.removeprefix("data: "))["object"] == "chat.completion.chunk"
