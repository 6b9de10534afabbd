"""Rerankers that an API serves: Cohere's, Jina's, and servers of their form or of text-embeddings-inference's.

Only the standard library is needed. A key comes from the environment, goes to its own API alone, and is stored nowhere;
redirects are not followed, since they could take it elsewhere.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import groupby
from typing import IO, Any, Final, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import ModelError, ServiceError

ADDRESSES: Final = ("http://", "https://")
KEY_VARIABLE: Final = "CDE_RAG_RERANK_KEY"  # of the environment: key of servers that are named by their addresses
TIMEOUT_S: Final = 30.0  # of one call
_ANSWER_BYTES: Final = 2**24  # that are read of an answer; one of 1 000 scores has 100 kB
_SHOWN: Final = 200  # characters of an answer in messages


@dataclass(frozen=True)
class _Form:
    """Form of an API's requests and answers.

    Attributes:
        texts: Field of the texts.
        others: Fields that are the same in every request.
        score: Field of a result's score.
        results: Field of the results; None if the answer is a list of them.
        at_once: Most texts of a call.
    """

    texts: str
    others: Mapping[str, Any]
    score: str
    results: str | None
    at_once: int


@dataclass(frozen=True)
class _Service:
    """An API with an address of its own.

    Attributes:
        address: Its address.
        key: Variable of the environment that holds the key.
        form: Form of its requests.
    """

    address: str
    key: str
    form: _Form


_COHERE: Final = _Form("documents", {}, "relevance_score", "results", 1_000)
_JINA: Final = _Form("documents", {"return_documents": False}, "relevance_score", "results", 1_000)
_TEI: Final = _Form("texts", {"raw_scores": False, "truncate": True}, "score", None, 32)  # its default of texts
SERVICES: Final[Mapping[str, _Service]] = {
    "cohere": _Service("https://api.cohere.com/v2/rerank", "CO_API_KEY", _COHERE),
    "jina": _Service("https://api.jina.ai/v1/rerank", "JINA_API_KEY", _JINA),
}


def is_served(name: str) -> bool:
    """Return True for the name of a reranker that an API serves."""
    return name.startswith((*ADDRESSES, *(f"{service}:" for service in SERVICES)))


class RerankEndpoint:
    """A reranker that an API serves; a function from pairs to scores. Thread-safe.

    No call is made before the first pair. Texts go in calls of many: one query's are scored together.

    Args:
        name: "cohere:MODEL", "jina:MODEL", an address and a model such as "http://localhost:8000/v1/rerank#bge" of a
            server of Cohere's and Jina's form, or an address alone of a text-embeddings-inference, which serves one
            model. The key of an address, if it needs one, is the environment's CDE_RAG_RERANK_KEY.
        timeout_s: Seconds that a call may take.

    Raises:
        ModelError: The name has no model, the address is none or has a user's name, or the environment has no key of
            the API, or one that is none.
    """

    def __init__(self, name: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.name, self._timeout_s = name, timeout_s
        service, _, model = name.partition(":")
        if name.startswith(ADDRESSES):
            self._address, hash_sign, model = name.partition("#")
            self._form, self._variable = (_COHERE if hash_sign else _TEI), KEY_VARIABLE
            needs_model = bool(hash_sign)
        else:
            found = SERVICES[service]
            self._address, self._form, self._variable = found.address, found.form, found.key
            needs_model = True
        self._key = _key_in(self._variable)
        if not self._key and self._variable != KEY_VARIABLE:  # a server of one's own mostly needs none
            raise ModelError(f"Expected a key for {name} in the environment's {self._variable}, found none. Set it.")
        if needs_model and not model:
            raise ModelError(
                "Expected a model's name, as in cohere:rerank-v3.5 or http://localhost:8000/v1/rerank#bge-reranker, "
                f"found {name!r:.200}."
            )
        if not _has_host(self._address):
            raise ModelError(f"Expected an address such as http://localhost:8080/rerank, found {name!r:.200}.")
        if "@" in urlsplit(self._address).netloc:
            raise ModelError(
                "Expected an address without a user's name or password, which messages would show, found one with. "
                f"Leave them out. A key is given by the environment's {KEY_VARIABLE}."
            )
        self._model = model
        self._opener: OpenerDirector = build_opener(_NoRedirects)

    def __repr__(self) -> str:
        return f"RerankEndpoint({self.name})"

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Float32[np.ndarray, " pairs"]:
        """Score pairs of a query and a text; higher is better.

        Raises:
            ServiceError: The API does not answer in time, refuses, or does not answer with one score for each text.
        """
        scores = list[float]()
        for query, group in groupby(pairs, key=lambda pair: pair[0]):
            texts = [text for _, text in group]
            for start in range(0, len(texts), self._form.at_once):
                scores += self._scores(query, texts[start : start + self._form.at_once])
        return np.array(scores, dtype=np.float32)

    def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        form = self._form
        asked: dict[str, Any] = {"query": query, form.texts: texts, **form.others}
        answer = self._answer({"model": self._model, **asked} if self._model else asked)
        try:
            value: Any = json.loads(answer)
            rows: list[Any] = value if form.results is None else value[form.results]
            numbers = {_place(row["index"]): _number(row[form.score]) for row in rows}
            if len(rows) != len(texts) or numbers.keys() != set(range(len(texts))):
                raise LookupError(f"{len(rows)} results")
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            other = "text-embeddings-inference? Others need a model, ADDRESS#MODEL." if form is _TEI else "Cohere?"
            raise ServiceError(
                f"{self.name}: expected one score for each of {len(texts)} texts, numbered from 0, found another "
                f"answer ({error!r:.80}): {answer.decode(errors='replace'):.{_SHOWN}}. Has the address the form of "
                f"{other}"
            ) from error
        return [numbers[place] for place in range(len(texts))]

    def _answer(self, asked: Mapping[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "cde-rag"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(self._address, json.dumps(asked).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return cast("IO[bytes]", response).read(_ANSWER_BYTES)
        except HTTPError as error:
            with error:
                said = error.read(_ANSWER_BYTES).decode(errors="replace")
            raise ServiceError(
                f"{self.name}: expected scores, found status {error.code}: {said:.{_SHOWN}}. Check the address, the "
                f"model and the key (the environment's {self._variable}), or search again later."
            ) from error
        except (OSError, HTTPException, UnicodeError) as error:  # no connection, no host's name, or the time is over
            reason = getattr(error, "reason", error)
            raise ServiceError(
                f"{self.name}: no answer within {self._timeout_s:g} s ({reason}). Is the server running? Search again, "
                "or without the reranker."
            ) from error


def _key_in(variable: str) -> str:
    """Return the key in a variable of the environment; empty without one.

    Raises:
        ModelError: It has characters that a header cannot have; the message does not show it.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ModelError(f"Expected a key in the environment's {variable}, found characters that no key has. Set it.")
    return key


class _NoRedirects(HTTPRedirectHandler):
    """Takes a redirect for an error."""

    def redirect_request(
        self, req: object, fp: object, code: object, msg: object, headers: object, newurl: object
    ) -> None:
        """Follow none."""


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port or an IPv6 address that is none
        return False


def _place(given: Any) -> int:
    if type(given) is not int:
        raise TypeError(f"the index {given!r:.40}")
    return given


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not np.isfinite(given):
        raise TypeError(f"the score {given!r:.40}")
    return float(given)
