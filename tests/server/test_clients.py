"""Requests of the clients that people use, as these send them: each is answered as the plain request is.

Lines of client_requests.jsonl have the client with its version, and whether its request was captured at this server or
written from its source. Clients that are installed here run themselves, in the tests of the routes and in
test_node_client.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fake_llm import fake_llm
from served import Running, make, running

from cde_rag.server.language_model import RemoteModel

REQUESTS = [json.loads(line) for line in (Path(__file__).parent / "client_requests.jsonl").read_text().splitlines()]
USAGE = {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}
ANSWER = "Rivers have banks [1]."


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with fake_llm() as llm:
        llm.usage = USAGE
        service, embedder = make(tmp_path_factory.mktemp("clients"), language_model=RemoteModel(llm.url))
        with running(service) as url:
            yield Running(url, service, embedder)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: f"{one['client']}: {one['path']}")
def test_a_request_of_a_client_is_answered(chatting: Running, request_: dict[str, Any]) -> None:
    path, body = request_["path"], request_["body"]
    with chatting.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    match path.rpartition("/")[2]:
        case "embeddings":
            plain = {"model": body["model"], "input": body["input"], "encoding_format": body.get("encoding_format")}
            left_out = {key: value for key, value in plain.items() if value is not None}
            assert response.json() == chatting.post(path, left_out)
        case "search":
            assert response.json()["data"] == chatting.post(path, {"query": body["query"]})["data"]
        case "completions" if body.get("stream"):
            *lines, last = (line.removeprefix("data: ") for line in response.text.split("\n\n") if line)
            events = [json.loads(line) for line in lines]
            choices = [choice for event in events for choice in event["choices"]]
            assert "".join(choice["delta"].get("content", "") for choice in choices) == ANSWER
            assert (choices[-1]["finish_reason"], last) == ("stop", "[DONE]")
            told = [event["usage"] for event in events if "usage" in event]
            assert told == ([USAGE] if body.get("stream_options", {}).get("include_usage") else [])
        case _:
            (choice,) = response.json()["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")


def test_openais_helper_accumulates_a_stream(chatting: Running) -> None:
    """It checks each event, and wants the tokens at the end."""
    with (
        openai.OpenAI(base_url=f"{chatting.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model="papers",
            messages=[{"role": "user", "content": "river"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        found = stream.get_final_completion()
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == (ANSWER, "stop")
    assert found.usage is not None
    assert found.usage.model_dump(exclude_none=True) == USAGE
