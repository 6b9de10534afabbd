"""Language models that answer from passages, at an OpenAI-compatible address."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

from cde_rag.errors import CDEError, require
from cde_rag.server.error_responses import RequestError

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""Turns of a conversation, each with "role" and "content"."""

ANSWER_CHARACTERS: Final = 1_000_000  # of one answer: twice as many as 100 000 tokens of English
ANSWER_S: Final = 600.0  # of one answer, in all
NO_MODEL: Final = (
    "This server has no language model, so it answers with passages. Whoever runs this server can add one: "
    "cde-rag serve … --llm ADDRESS, any OpenAI-compatible server's, such as Ollama's http://localhost:11434/v1."
)


class Usage(NamedTuple):
    """Tokens that an answer took."""

    prompt_tokens: int
    completion_tokens: int


class Delta(NamedTuple):
    """Next piece of an answer.

    Attributes:
        text: Text to append; may be empty.
        finish: In the last piece of a complete answer, "stop" or "length" (a limit); None before.
        usage: In the last piece, the number of tokens, if the model counts them.
    """

    text: str
    finish: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of a request that go to the language model; None: its own default.

    Attributes:
        max_tokens: Maximum number of tokens of the answer.
        temperature: Temperature of sampling, 0 for the most probable tokens.
        top_p: Mass of the tokens that are sampled from.
        seed: Random seed.
        stop: Strings at which the answer ends.
        counted: True: ask a remote model for the number of tokens, too; some servers refuse that.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] | None = None
    counted: bool = False


@runtime_checkable
class LanguageModel(Protocol):
    """Interface of a language model."""

    @property
    def name(self) -> str:
        """Name of the model, for people."""
        ...

    @property
    def characters(self) -> int:
        """Maximum number of characters of the passages, and of the earlier conversation, in a prompt."""
        ...

    def stream(self, messages: Messages, sampling: Sampling) -> AsyncGenerator[Delta, None]:
        """Answer a conversation; the generator stops the model when it is closed.

        Its last piece has `finish`; see `complete`.

        Raises:
            RequestError: The model cannot be reached, or refuses.
        """
        ...


async def complete(
    deltas: AsyncGenerator[Delta, None], *, characters: int = ANSWER_CHARACTERS, seconds: float = ANSWER_S
) -> AsyncGenerator[Delta, None]:
    """Yield the pieces of an answer up to the one that finishes it, within bounds.

    Args:
        deltas: Pieces of a language model, which is stopped at the end.
        characters: Maximum number of characters; an answer that is longer is cut, and finishes with "length".
        seconds: Maximum time from the first call to the end.

    Raises:
        RequestError: 502, the pieces ended and none finished the answer; 504, the time is over.
    """
    until, received = time.monotonic() + seconds, 0
    async with aclosing(deltas):
        while True:
            try:
                delta = await asyncio.wait_for(_next(deltas), until - time.monotonic())
            except asyncio.TimeoutError as error:
                message = (
                    f"The language model had not finished after {seconds:g} s and {received:,} characters: the answer "
                    "is incomplete. Limit it with max_tokens."
                )
                raise RequestError(504, message, code="language_model") from error
            if delta is None:
                message = (
                    f"The language model's answer broke off after {received:,} characters, without a finish_reason: it "
                    "is incomplete. Send the request again."
                )
                raise RequestError(502, message, code="language_model")
            if received + len(delta.text) > characters:
                yield Delta(delta.text[: characters - received], "length")
                return
            received += len(delta.text)
            yield delta
            if delta.finish is not None:
                return


async def _next(deltas: AsyncGenerator[Delta, None]) -> Delta | None:
    return await anext(deltas, None)


class RemoteModel:
    """A language model at an OpenAI-compatible address, such as vLLM, Ollama, llama.cpp or OpenAI itself.

    Args:
        url: Address of the API, such as "http://localhost:11434/v1"; "/v1" is added to one without a path.
        model: Name of the model there; by default the first that the address lists.
        api_key: Key of that address.
        timeout_s: Seconds that the address may be silent.

    Raises:
        CDEError: The address is none of HTTP.
        MissingExtraError: The extra `serve` is not installed.
    """

    def __init__(
        self, url: str, *, model: str | None = None, api_key: str | None = None, timeout_s: float = 120.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            found = "one with a user or key" if "@" in url else f"{url!r:.200}"
            raise CDEError(
                f"Expected the address of a language model such as http://localhost:11434/v1, found {found}. Give its "
                "key by the environment's CDE_RAG_LLM_KEY, not in the address."
            )
        self._openai: Any = require("openai", "serve")
        self._cut: tuple[type[Exception], ...] = tuple(  # raised of a connection that is cut; by openai before 3.0, too
            import_module(name).HTTPError for name in ("httpx", "httpx2") if find_spec(name) is not None
        )
        self._base = url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self._model = model
        self._key = api_key
        self._client = self._openai.AsyncOpenAI(
            base_url=self._base, api_key=api_key or "none", max_retries=0, timeout=timeout_s
        )  # no retries: it would wait up to two minutes here, where the client gets a time to try again

    @property
    def name(self) -> str:
        """Name of the model; without its address, since clients read it."""
        return self._model or "the language model"

    @property
    def characters(self) -> int:
        """About 4 000 tokens of passages."""
        return 16_000

    async def stream(self, messages: Messages, sampling: Sampling) -> AsyncGenerator[Delta, None]:
        """Answer a conversation."""
        answered, finish, usage = False, None, None
        try:
            if self._model is None:
                self._model = await self._first_model()
            chunks = await self._client.chat.completions.create(
                model=self._model, messages=list(messages), stream=True, **_options(sampling)
            )
            async with chunks:
                async for chunk in chunks:
                    usage = _usage(chunk) or usage
                    if piece := _piece(chunk):
                        answered, finish = True, piece.finish or finish
                        if piece.text:
                            yield Delta(piece.text)
        except self._openai.OpenAIError as error:
            raise self._request_error(error) from error
        except self._cut as error:
            raise self._no_answer(f"{type(error).__name__}: {error!s:.200}") from error
        except (ValueError, AttributeError, TypeError) as error:  # the client does not check what it reads
            raise self._no_answer("it sent events that are none of OpenAI's API") from error
        if not answered:
            raise self._no_answer("it sent no event of one")
        if finish is None:
            raise self._no_answer("it broke off, without a finish_reason")
        yield Delta("", finish, usage)

    async def _first_model(self) -> str:
        listed = (await self._client.models.list()).data
        if not listed:
            raise RequestError(
                502, "The language model's address lists no model. Start it with one.", code="language_model"
            )
        return listed[0].id

    def _request_error(self, error: Any) -> RequestError:
        status = getattr(error, "status_code", None)
        if status == 429:
            wait = str(error.response.headers.get("retry-after", "")).strip()
            headers = {"Retry-After": wait} if _is_wait(wait) else {}
            when = f" in {wait} s" if headers and wait.isdecimal() else ""
            return RequestError(429, f"{self.name} is busy. Try again{when}.", code="language_model", headers=headers)
        said = str(error) if self._key is None else str(error).replace(self._key, "…")  # some repeat a wrong key
        return self._no_answer(f"it answered {status}: {said:.300}" if status else f"{said:.300}")

    def _no_answer(self, found: str) -> RequestError:
        return RequestError(502, f"{self.name} gave no complete answer: {found}", code="language_model")


def _options(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of a request to an address, without those that are left to its own defaults."""
    options: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": None if sampling.stop is None else list(sampling.stop),
        "stream_options": {"include_usage": True} if sampling.counted else None,
    }
    return {key: value for key, value in options.items() if value is not None}


def _is_wait(value: str) -> bool:
    """Return True for a value of the header Retry-After: seconds, or a date; others are not passed on."""
    if not value.isascii() or not value.isprintable():
        return False
    if value.isdecimal():
        return True
    try:
        parsedate_to_datetime(value)
    except ValueError:
        return False
    return True


def _usage(chunk: Any) -> Usage | None:
    """Return the number of tokens that an event of an address holds, if any."""
    counts = getattr(chunk, "usage", None)
    match getattr(counts, "prompt_tokens", None), getattr(counts, "completion_tokens", None):
        case (int(prompt), int(completion)) if prompt >= 0 <= completion:
            return Usage(prompt, completion)
        case _:
            return None


def _piece(chunk: Any) -> Delta | None:
    """Return the piece of an answer that an event of an address holds; None of an event without one.

    Raises:
        AttributeError: The event is of another form.
        TypeError: Likewise.
    """
    if not chunk.choices:  # counts of tokens, after the answer
        return None
    choice = chunk.choices[0]
    content = getattr(choice.delta, "content", None)  # servers leave the delta out of the last event
    finish = choice.finish_reason
    if not isinstance(content, str | None) or not isinstance(finish, str | None):
        raise TypeError("an event whose content is no text")
    return Delta(content or "", finish)
