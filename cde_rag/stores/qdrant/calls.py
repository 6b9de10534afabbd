"""Calls to Qdrant: made again where a server was busy or away, with its errors in our words."""

import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import grpc
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from cde_rag.errors import StoreError

Result = TypeVar("Result")

_TRIES: Final = 6
_FIRST_WAIT_S: Final = 0.2  # doubled after each try, so that a server may be away for about six seconds
_LONGEST_WAIT_S: Final = 30.0
_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # status of HTTP, and of gRPC:
_BUSY_CODES: Final = frozenset({"ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})


def call(work: Callable[[], Result]) -> Result:
    """Call an idempotent function of the client, with retries; return its result.

    Raises:
        StoreError: The server refused the request, or was unavailable or busy during every attempt.
    """
    wait = _FIRST_WAIT_S
    for last_try in (False,) * (_TRIES - 1) + (True,):
        try:
            return work()
        except (ApiException, QdrantException, grpc.RpcError) as error:  # noqa: PERF203
            if last_try or not _transient(error):
                raise _store_error(error) from error
            asked = float(error.retry_after_s) if isinstance(error, ResourceExhaustedResponse) else 0.0
            time.sleep(min(_LONGEST_WAIT_S, max(asked, wait * random.uniform(0.5, 1))))
            wait *= 2
        except (KeyError, ValueError) as error:  # the client in local mode, where a server would refuse it
            raise _store_error(error) from error
    raise AssertionError("the last try returns or raises")


def call_if_found(work: Callable[[], Result]) -> Result | None:
    """Call like `call`; return None if Qdrant reports that the object does not exist."""
    try:
        return call(work)
    except StoreError as error:
        if _not_found(error.__cause__):
            return None
        raise


def _code(error: object) -> str:
    """Name of the status of an error of gRPC; empty where it has none."""
    code = cast(Callable[[], Any] | None, getattr(error, "code", None))
    return "" if code is None else str(getattr(code(), "name", ""))


def _transient(error: object) -> bool:
    match error:
        case ResourceExhaustedResponse():
            return True
        case ResponseHandlingException():
            return isinstance(error.source, OSError) or type(error.source).__module__.startswith(("httpx", "httpcore"))
        case UnexpectedResponse():
            return error.status_code in _BUSY
        case _:
            return _code(error) in _BUSY_CODES


def _not_found(error: object) -> bool:
    if isinstance(error, KeyError | ValueError):  # local mode: of a point, of a collection
        return isinstance(error, KeyError) or "not found" in str(error)
    return error.status_code == 404 if isinstance(error, UnexpectedResponse) else _code(error) == "NOT_FOUND"


def _store_error(error: Exception) -> StoreError:
    found = error.source if isinstance(error, ResponseHandlingException) else error
    hint = "Is the server there, and may this client do that?"
    return StoreError(f"Expected an answer of Qdrant, found {type(found).__name__}: {found!s:.500}. {hint}")
