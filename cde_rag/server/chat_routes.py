"""Routes of chat: OpenAI's `/v1/chat/completions`, answered from the passages of a collection."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Request
from pydantic import Field, field_validator, model_validator
from starlette.responses import Response, StreamingResponse

from cde_rag._validation import utf8
from cde_rag.search.fusion import Ranking
from cde_rag.server.citations import cited, condensing, prompt, without_model
from cde_rag.server.disconnect import while_connected
from cde_rag.server.error_responses import Json, RequestError, as_request_error, error_body
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.language_model import NO_MODEL, Delta, LanguageModel, Messages, Sampling, Usage, complete
from cde_rag.server.registry import SUFFIXES, ServedCollection
from cde_rag.server.search_results import with_warnings
from cde_rag.server.service import RequestBody, Service, Serving, only
from cde_rag.server.text_limits import QUERY_CHARACTERS, TEXT_CHARACTERS, check_length

router = APIRouter(prefix="/v1/chat", route_class=JsonRoute)
Ignored: TypeAlias = Any
"""A field of other programs that could not change the answer."""
_CONDENSED_TOKENS: Final = 200  # of a question that stands alone
_NO_TOOLS: Final = "the answer is made from passages, without tools"
_ONE_SAMPLE: Final = "the language model's own is used"
NO_PASSAGE = "The collection holds no passage that matches the question, and so there is no answer."


class ChatText(RequestBody):
    """Text in a message of several parts."""

    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """Turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ChatText] | None = Field(None, description="Texts; null in an assistant's turn without one.")
    name: str | None = Field(None, description="Not used.")
    refusal: str | None = Field(None, description="Not used.")
    annotations: Ignored = Field(None, description="Not used.")
    reasoning_content: Ignored = Field(None, description="Not used.")
    tool_calls: Annotated[list[Any] | None, only([], why=_NO_TOOLS)] = None

    @property
    def text(self) -> str:
        """The message's text; empty without one."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    @model_validator(mode="after")
    def _has_content(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise ValueError(f"expected the content of a message of the role {self.role}, found none")
        return self


class StreamOptions(RequestBody):
    """Options of a streamed answer."""

    include_usage: bool = Field(default=False, description="True: a last event has the number of tokens.")
    include_obfuscation: bool = Field(default=True, description="Not used.")


class TextFormat(RequestBody):
    """Form of the answer."""

    type: Literal["text"]


class ChatRequest(RequestBody):
    """Body of `/v1/chat/completions`."""

    model: str = Field(description="Collection that is searched: its name, or its model from /v1/models.")
    messages: list[ChatMessage] = Field(min_length=1, max_length=1_000, description="The last one is the question.")
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    k: int = Field(6, ge=1, le=50, description="Maximum number of passages.")
    by: Ranking | None = Field("hybrid", description="As in a search.")
    where: dict[str, Any] | None = Field(None, description="Filter over the metadata of passages.")
    condense: bool = Field(
        default=False,
        description="True: the language model first rewrites a question after others, so that it can be searched "
        "without them. That is another request to it.",
    )
    max_tokens: int | None = Field(None, ge=1, le=100_000, description="Tokens of the answer.")
    max_completion_tokens: int | None = Field(None, ge=1, le=100_000, description="The same, by its newer name.")
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int | None, only(1, why="there is one answer")] = None
    frequency_penalty: Annotated[float | None, only(0, why=_ONE_SAMPLE)] = None
    presence_penalty: Annotated[float | None, only(0, why=_ONE_SAMPLE)] = None
    logit_bias: Annotated[dict[str, Any] | None, only({}, why=_ONE_SAMPLE)] = None
    logprobs: Literal[False] | None = None
    top_logprobs: Annotated[int | None, only(0, why="there are none")] = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Any] | None, only(["text"], why="answers are texts")] = None
    tools: Annotated[list[Any] | None, only([], why=_NO_TOOLS)] = None
    tool_choice: Annotated[Any, only("none", "auto", why=_NO_TOOLS)] = None
    functions: Annotated[list[Any] | None, only([], why=_NO_TOOLS)] = None
    function_call: Annotated[Any, only("none", "auto", why=_NO_TOOLS)] = None
    parallel_tool_calls: bool | None = Field(None, description="Not used: there are no tools.")
    store: Literal[False] | None = None
    service_tier: Annotated[str | None, only("auto", "default", why="there is one tier")] = None
    user: str | None = Field(None, description="Not used.")
    safety_identifier: str | None = Field(None, description="Not used.")
    prompt_cache_key: str | None = Field(None, description="Not used.")
    prompt_cache_retention: str | None = Field(None, description="Not used.")
    prediction: Ignored = Field(None, description="Not used.")
    reasoning_effort: str | None = Field(None, description="Not used.")
    verbosity: Annotated[str | None, only("medium", why="the language model's own is used")] = None
    metadata: dict[str, Any] | None = Field(None, description="Not used.")

    @field_validator("messages")
    @classmethod
    def _ends_with_a_question(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if messages[-1].role != "user" or not messages[-1].text.strip():
            raise ValueError("expected a last message of the role user that is not blank")
        check_length(messages[-1].text, QUERY_CHARACTERS, where="the question")
        system = "".join(one.text for one in messages if one.role in ("system", "developer"))
        check_length(system, TEXT_CHARACTERS, where="the messages of the role system")
        for place, message in enumerate(messages):
            utf8(message.text, where=f"Message {place}")
        return messages

    @field_validator("stop")
    @classmethod
    def _stops_at_text(cls, stop: str | list[str] | None) -> str | list[str] | None:
        for text in [stop] if isinstance(stop, str) else stop or ():
            utf8(text, where="A text")
            if not text:
                raise ValueError("expected texts at which the answer ends, found an empty one")
        return stop

    @property
    def sampling(self) -> Sampling:
        """Options of the language model."""
        return Sampling(
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop or None,
            counted=self.counted,
        )

    @property
    def counted(self) -> bool:
        """True if a streamed answer ends with the number of tokens."""
        return self.stream and self.stream_options is not None and self.stream_options.include_usage

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The messages that have a text; "developer" is a system message."""
        return [
            {"role": "system" if one.role == "developer" else one.role, "content": one.text}
            for one in self.messages
            if one.text
        ]


@router.get("")
async def describe_chat(service: Serving) -> Json:
    """Return the name of the language model that answers, or the reason for none."""
    model = service.options.language_model
    return Json({"language_model": None if model is None else model.name, "reason": None if model else NO_MODEL})


@router.post("/completions")
async def create_chat_completion(request: Request, body: ChatRequest, service: Serving) -> Response:
    """Answer the last message from passages of a collection, with their numbers in brackets.

    The passages stand in `citations`, in a streamed answer in its first event, with the `search_query` that found them.
    Without a language model the answer is the passages and the reason, which also stands in `no_answer`. If nothing
    is found, `warnings` has the reasons that are known, as a search has them. An answer that breaks off is an error:
    502, or an event with `error` in place of `[DONE]`.
    """
    served = service.registry.collection(named(body.model, service))
    searcher = served.collection.searcher(served.by(body.by or "hybrid"))
    language_model = service.options.language_model
    question = body.messages[-1].text
    if body.condense and language_model is not None:
        question = await while_connected(request, condensed(language_model, body.conversation))
    search = partial(searcher.search, question, body.k, where=body.where)
    hits, warnings = await in_thread(with_warnings, served.collection, search, body.where, question)
    citations = cited(hits, question)
    no_answer = " ".join([NO_PASSAGE, *warnings]) if not citations else NO_MODEL if language_model is None else None
    fields: dict[str, Any] = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": model_id(served),
    }
    found = {"citations": citations, "search_query": question, "no_answer": no_answer, "warnings": warnings}
    if language_model is None or no_answer is not None:
        deltas = _given(without_model(citations, no_answer or NO_MODEL))
    else:
        deltas = answered(language_model, body, citations)
    if body.stream:
        events = _events(deltas, {**fields, "object": "chat.completion.chunk"}, found, counted=body.counted)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    text, finish, usage = await while_connected(request, _joined(deltas))
    message = {"role": "assistant", "content": text, "refusal": None}
    choices = [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}]
    return Json({**fields, "object": "chat.completion", "choices": choices, "usage": _counts(usage), **found})


def named(model: str, service: Service) -> str:
    """Return the name of the collection that a request's model names: NAME or MODEL@NAME, with a role or none.

    Raises:
        RequestError: 404, the collection has another model.
    """
    asked = next((model.removesuffix(suffix) for suffix in SUFFIXES if model.endswith(suffix)), model)
    name = asked.rpartition("@")[2]
    served = service.registry.collection(name)
    if asked not in (name, model_id(served)):
        message = f"There is no model {model!r:.200}; the collection {name!r} is {model_id(served)}."
        raise RequestError(404, message, code="model_not_found", param="model")
    return name


def model_id(served: ServedCollection) -> str:
    """Return the id of a collection's model in `/v1/models`."""
    return f"{served.collection.embedder.context.identity.name}@{served.name}"


async def condensed(model: LanguageModel, conversation: Messages) -> str:
    """Return the last question of a conversation so that it can be searched without the turns before it.

    The question stays as it is if it is the first, or if the language model writes nothing that can be searched.

    Raises:
        RequestError: The language model does not answer.
    """
    question = conversation[-1]["content"]
    if not any(turn["role"] == "user" for turn in conversation[:-1]):
        return question
    messages = condensing(conversation, model.characters)
    answer = await _joined(complete(model.stream(messages, Sampling(max_tokens=_CONDENSED_TOKENS))))
    written = " ".join(answer.text.split())
    usable = answer.finish == "stop" and 0 < len(written) <= QUERY_CHARACTERS and written.isprintable()
    return written if usable else question


async def answered(
    model: LanguageModel, body: ChatRequest, citations: list[dict[str, Any]]
) -> AsyncGenerator[Delta, None]:
    """Yield the pieces of a language model's complete answer.

    Raises:
        RequestError: There is none, or it broke off.
    """
    messages = prompt(body.conversation, citations, model.characters)
    async with aclosing(complete(model.stream(messages, body.sampling))) as deltas:
        async for delta in deltas:
            yield delta


async def _given(text: str) -> AsyncGenerator[Delta, None]:
    yield Delta(text, "stop", Usage(0, 0))


async def _joined(deltas: AsyncGenerator[Delta, None]) -> Delta:
    """Return an answer as one piece."""
    parts, last = list[str](), Delta("")
    async with aclosing(deltas):
        async for last in deltas:
            parts.append(last.text)
    return last._replace(text="".join(parts))


def _counts(usage: Usage | None) -> dict[str, int] | None:
    """Return numbers of tokens as OpenAI's API has them; None if the language model did not count them."""
    return None if usage is None else {**usage._asdict(), "total_tokens": sum(usage)}


async def _events(
    deltas: AsyncGenerator[Delta, None], fields: dict[str, Any], found: dict[str, Any], *, counted: bool
) -> AsyncIterator[bytes]:
    """Yield the server-sent events of an answer: citations first, then its pieces, or the reason of a failure.

    The event `[DONE]` comes after a complete answer only.
    """

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
        return _event({**fields, "choices": choices})

    first = [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}]
    yield _event({**fields, "choices": first, **found})
    try:
        usage = None
        async with aclosing(deltas):
            async for delta in deltas:
                usage = delta.usage
                yield event({"content": delta.text} if delta.text else {}, delta.finish)
    except Exception as error:  # noqa: BLE001 (the status has been sent: the error is an event, as OpenAI's clients read)
        yield _event(error_body(as_request_error(error)))
        return
    if counted:
        yield _event({**fields, "choices": [], "usage": _counts(usage)})
    yield b"data: [DONE]\n\n"


def _event(content: object) -> bytes:
    return b"data: " + json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n\n"
