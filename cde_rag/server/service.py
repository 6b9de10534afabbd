"""State of a running server, and how routes get at it."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final, SupportsFloat, cast

from anyio import CapacityLimiter
from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from cde_rag.errors import ModelError
from cde_rag.search.retrievers import Rerank
from cde_rag.server.access import ApiKeys
from cde_rag.server.comparison import NullRanker
from cde_rag.server.error_responses import RequestError
from cde_rag.server.jobs import Jobs
from cde_rag.server.language_model import LanguageModel
from cde_rag.server.registry import Registry
from cde_rag.server.token_batcher import Role, TokenBatcher

_log = logging.getLogger("cde_rag.server")
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # of batches
TENANT: Final = "cde_rag.tenant"  # of a request's scope: name of the tenant whose key it has


class RequestBody(BaseModel):
    """Body of a request: no unknown fields, no conversions; null is a field left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        fields = cast(dict[str, Any], given)
        return {name: value for name, value in fields.items() if value is not None or name in required}


def only(*values: object, why: str) -> AfterValidator:
    """Return the validator of a field that clients send and that has no effect here: any value with one is refused.

    Args:
        values: Values without an effect.
        why: Reason for the refusal of others, a clause.
    """
    shown = " or ".join(json.dumps(value) for value in values)

    def check(given: object) -> object:
        if given not in values:
            raise ValueError(f"expected {shown}, or no such field, found {given!r:.80}: {why}")
        return given

    return AfterValidator(check)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        default_role: Role of texts in requests that say none; None: such requests are refused.
        keys: API keys; without any, all requests pass.
        max_body_bytes: Bytes of a request's body.
        max_requests: Requests that are answered at one time.
        contexts: Folder of the contexts that are made over HTTP; None: none can be made.
        files: Absolute folders of which indexed files may be read again.
        language_model: Language model that answers chats; None: they get the passages alone.
        rerankers: Rerankers that requests may name; a request loads none.
    """

    default_role: Role | None = None
    keys: ApiKeys = field(default_factory=ApiKeys)
    max_body_bytes: int = 16_000_000
    max_requests: int = 1_000
    contexts: Path | None = None
    files: tuple[Path, ...] = ()
    language_model: LanguageModel | None = None
    rerankers: Mapping[str, Rerank] = field(default_factory=dict[str, Rerank])


class PrometheusMetrics:
    """Counts of requests and batches in Prometheus' format, without texts, ids or keys.

    Args:
        batcher: Batcher whose queue is shown.
    """

    def __init__(self, batcher: TokenBatcher) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "cde_rag_requests", "Requests that were answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "cde_rag_request_seconds", "Seconds of a request.", ["route"], registry=self._registry
        )
        self._tokens = Counter("cde_rag_tokens", "Tokens that were embedded.", registry=self._registry)
        self._texts = Histogram("cde_rag_batch_texts", "Texts of a batch.", buckets=_SIZES, registry=self._registry)
        self._busy = Counter("cde_rag_embedding_seconds", "Seconds in which the models ran.", registry=self._registry)
        pending = Gauge("cde_rag_pending_tokens", "Tokens that wait or are embedded.", registry=self._registry)
        pending.set_function(lambda: batcher.pending)
        batcher.on_batch = self.batch

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self._texts.observe(texts)
        self._tokens.inc(tokens)
        self._busy.inc(seconds)

    def text(self) -> bytes:
        """Return the counts in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass(frozen=True, eq=False)
class Service:
    """State that all routes share."""

    registry: Registry
    options: ServerOptions
    jobs: Jobs = field(default_factory=Jobs)

    @cached_property
    def metrics(self) -> PrometheusMetrics:
        """Counts of requests and batches."""
        return PrometheusMetrics(self.registry.batcher)

    @cached_property
    def one_at_a_time(self) -> CapacityLimiter:
        """Bound of one call of a model at a time, for those that cannot share batches."""
        return CapacityLimiter(1)

    @cached_property
    def null_ranker(self) -> NullRanker:
        """Ranking in the null context, to compare with."""
        return NullRanker(self.registry.batcher)

    def reranker(self, name: str | None, *, param: str) -> tuple[str, Rerank]:
        """Return a reranker that the server was started with, and its name.

        Args:
            name: Its name; None for the only one.
            param: Field of the request that names it.

        Raises:
            RequestError: 404, there is none of this name, or not exactly one; from the reranker 502, it did not answer.
        """
        there = self.options.rerankers
        wanted = next(iter(there)) if name is None and len(there) == 1 else name
        if wanted is None or wanted not in there:
            found = "none" if wanted is None else repr(wanted[:200])
            message = (
                f"Expected one of the rerankers of this server, {', '.join(there) or 'which has none'}, found {found}. "
                "Others are named when it starts: cde-rag serve --rerank NAME."
            )
            raise RequestError(404, message, code="model_not_found", param=param)
        return wanted, partial(_reranked, there[wanted])

    def close(self) -> None:
        """Cancel the jobs, embed the queued texts, and close the collections."""
        self.jobs.close()
        self.registry.batcher.close()
        self.registry.close()


def _reranked(rerank: Rerank, pairs: Sequence[tuple[str, str]]) -> Iterable[SupportsFloat]:
    """Score pairs; a reranker that cannot is an error of the server, and the log has its message."""
    try:
        return rerank(pairs)
    except ModelError as error:
        _log.error("a reranker failed", exc_info=error)
        message = "The reranker gave no scores; the server's log has the reason. Search without it, or again later."
        raise RequestError(502, message, code="reranker") from error


async def service_of(request: Request) -> Service:  # async, since FastAPI runs other functions in a thread
    """Return the service of a request's key: that of the key's tenant, or the shared one."""
    tenant = request.scope.get(TENANT)
    return request.app.state.service if tenant is None else request.app.state.tenants[tenant]


async def check_parameters(request: Request) -> None:
    """Refuse parameters of the address that the route does not have: one that changes vectors is never ignored.

    Raises:
        RequestError: 400, with the name of the first.
    """
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            message = (
                f"Unknown parameter {name!r:.200} in the address; there are: {', '.join(sorted(known)) or 'none'}. "
                "Other fields stand in the body."
            )
            raise RequestError(400, message, code="unknown_field", param=name)


async def check_is_no_tenants(request: Request) -> None:
    """Refuse a tenant's key where counts of all tenants are shown.

    Raises:
        RequestError: 403, the key is a tenant's.
    """
    if request.scope.get(TENANT) is not None:
        raise RequestError(
            403, "This key is a tenant's, and metrics count all. Use a key of the server.", code="no_access"
        )


Serving = Annotated[Service, Depends(service_of)]
