"""Model that an OpenAI-compatible API serves: OpenAI's own, or a server such as vLLM or Ollama."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from cde_rag._validation import check_positive
from cde_rag.errors import CorpusError, ModelError, ServiceError, counted, require
from cde_rag.models.plain.fixed_texts import PROBES
from cde_rag.models.plain.function_model import BYTES_A_TOKEN, FunctionModel

MINI_BATCH_SIZE: Final = 256  # texts of a call
TOKENS_A_CALL: Final = 100_000  # estimated; OpenAI takes 300,000, and other languages have more tokens for their bytes
_REFUSED: Final = frozenset({400, 413, 422})  # status of HTTP for a text that is too long

_log = logging.getLogger(__name__)


def api_client(
    base_url: str | None = None, api_key: str | None = None, *, max_retries: int = 5, timeout_s: float = 60.0
) -> Any:
    """Return a client of the package `openai`; the arguments are those of `openai_embedder`.

    Raises:
        MissingExtraError: The extra `openai` is not installed.
        ModelError: There is no key.
    """
    openai: Any = require("openai", "openai")
    try:
        return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=max_retries, timeout=timeout_s)
    except openai.OpenAIError as error:
        raise ModelError(f"{error} Give api_key=…; local servers mostly take any.") from error


def api_model(
    client: Any,
    model: str,
    *,
    dimensions: int | None = None,
    prefixes: Mapping[str, str] | None = None,
    mini_batch_size: int = MINI_BATCH_SIZE,
) -> FunctionModel:
    """Make the model of a client; other arguments and errors as in `openai_embedder`."""
    check_positive(mini_batch_size, "mini_batch_size")
    if dimensions is not None:
        check_positive(dimensions, "dimensions")
    openai: Any = require("openai", "openai")
    asked: dict[str, Any] = {"model": model, "encoding_format": "float"}
    if dimensions is not None:
        asked["dimensions"] = dimensions
    fixed = {prefix + text for prefix in ("", *(prefixes or {}).values()) for text in PROBES}

    def embed(texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        where = f"{model} at {_shown(client.base_url)}"
        for part in _calls(texts, mini_batch_size):
            try:
                answer = client.embeddings.create(input=part, **asked)
            except openai.OpenAIError as error:
                own = set(part) - fixed
                if len(own) == 1 and getattr(error, "status_code", None) in _REFUSED:
                    _log.warning("%s refuses a text: %s", where, error)  # the address is for the operator alone
                    raise CorpusError(
                        f"Expected a text that {model} reads, found one of {len(own.pop()):,} characters that its API "
                        "refuses. Shorten it, or split it."
                    ) from error
                raise ServiceError(
                    f"{where}: expected {counted(len(part), 'vector')}, found: {error} Written records stay: make the "
                    "same call again, and it resumes."
                ) from error
            vectors += _vectors(answer, len(part), where)
        return vectors

    name = model if dimensions is None else f"{model} of {dimensions} numbers"
    return FunctionModel(embed, name=name, prefixes=prefixes, mini_batch_size=mini_batch_size)


def _shown(address: object) -> str:
    """Return an address for messages and logs, without the name and the password of a user."""
    parts = urlsplit(str(address))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _vectors(answer: Any, expected: int, where: str) -> list[list[float]]:
    """Return the vectors of an answer in the order of its texts.

    Raises:
        ServiceError: They are not one for each text; the client does not check what it reads.
    """
    rows: Any = getattr(answer, "data", None) or []
    found: dict[Any, Any] = {getattr(row, "index", None): getattr(row, "embedding", None) for row in rows}
    if (
        found.keys() != set(range(expected))
        or len(rows) != expected
        or not all(isinstance(one, list) for one in found.values())
    ):
        raise ServiceError(
            f"{where}: expected {counted(expected, 'vector')}, numbered from 0, found {len(rows)}, or others."
        )
    return [found[place] for place in range(expected)]


def _calls(texts: Sequence[str], mini_batch_size: int) -> list[list[str]]:
    """Cut texts into calls, by their number and by their estimated tokens; a longer text has a call of its own."""
    calls: list[list[str]] = [[]]
    room = TOKENS_A_CALL * BYTES_A_TOKEN
    for text in texts:
        size = len(text.encode())
        if calls[-1] and (len(calls[-1]) == mini_batch_size or size > room):
            calls.append([])
            room = TOKENS_A_CALL * BYTES_A_TOKEN
        calls[-1].append(text)
        room -= size
    return calls
