"""Error responses: the body of OpenAI's API, and the HTTP status of each kind of error."""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from cde_rag._validation import RepeatedKeyError
from cde_rag.errors import (
    CanaryError,
    CDEError,
    ContextError,
    ContextMismatchError,
    ModelError,
    ServiceError,
    StoreError,
)
from cde_rag.server.text_limits import too_long

_log = logging.getLogger("cde_rag.server")
_NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients repeat a request after 409 otherwise
_PLACE: Final = re.compile(r"[/\\]")  # in every address, and in paths


class RequestError(CDEError):
    """Request that is refused.

    Args:
        status: HTTP status.
        message: The expected, the found and the remedy.
        code: Name of the error for programs, such as "model_not_found".
        param: Name of the field that is wrong.
        headers: Additional headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        super().__init__(message)


class Json(Response):
    """JSON response in ASCII, so that also texts with lone surrogates can be sent."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialise the content."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_body(error: RequestError) -> dict[str, Any]:
    """Return the body of a refused request: `{"error": {"message", "type", "param", "code"}}`."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def error_response(error: RequestError) -> Json:
    """Return the response of a refused request."""
    return Json(error_body(error), status_code=error.status, headers=error.headers)


def as_request_error(error: BaseException) -> RequestError:
    """Return the request error for an error of the library; others are internal, and their messages only logged."""
    match error:
        case RequestError():
            return error
        case ContextMismatchError():
            return RequestError(409, str(error), code="fingerprint_mismatch", headers=_NO_RETRY)
        case CanaryError():
            return RequestError(409, str(error), code="canary", headers=_NO_RETRY)
        case CDEError() if isinstance(error, ValueError):  # CorpusError, FilterError, TenantError
            return RequestError(400, str(error), code="invalid_value")
        case ServiceError():  # its message has the address, and what that says, for the operator alone
            _log.error("the model's service failed", exc_info=error)
            message = "The model's service gave no vectors; the server's log has the reason. Try again later."
            return RequestError(502, message, code="model_service", headers=_NO_RETRY)
        case ContextError() | ModelError():
            return RequestError(400, str(error), code="invalid_value")
        case StoreError():
            return store_error(error)
        case _:
            _log.error("internal error", exc_info=error)
            return RequestError(500, "Internal error; the server's log has the reason.", code="internal_error")


def store_error(error: CDEError) -> RequestError:
    """Return the request error for one of a store or a file, without the places that its message names.

    Other libraries' errors, and messages with an address or a path, are only logged.
    """
    _log.error("the store failed", exc_info=error)
    hidden = error.__cause__ is not None or _PLACE.search(str(error))
    message = "The store gave no answer; the server's log has the reason. Try again later." if hidden else str(error)
    return RequestError(503, message, code="store_error", headers=_NO_RETRY)


def add_handlers(app: FastAPI) -> None:
    """Answer all errors of an app with bodies of OpenAI's API."""

    def library(_: Request, error: Exception) -> Response:
        return error_response(as_request_error(error))

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:  # routes raise RequestError
            message = f"There is no route {request.url.path!r:.200}. GET /openapi.json lists the routes."
            return error_response(RequestError(404, message, code="route_not_found"))
        if isinstance(error.__cause__, RecursionError | ValueError):  # raised while FastAPI parsed the body
            return error_response(_of_json(error.__cause__))
        return error_response(RequestError(error.status_code, error.detail, headers=error.headers))

    def fields(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problem, content_type = error.errors()[0], request.headers.get("content-type", "")
        if tuple(problem["loc"]) == ("body",) and problem["type"] != "missing" and "json" not in content_type.lower():
            found = repr(content_type[:100]) if content_type else "none"
            message = (
                f"Expected a body with the header 'Content-Type: application/json', found {found}. Add the header."
            )
            return error_response(RequestError(400, message, code="invalid_content_type"))
        return error_response(_of_field(problem))

    def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it; the log has the status

    app.add_exception_handler(CDEError, library)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, fields)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, library)


def _of_json(cause: Exception) -> RequestError:
    """Return the error for a body that the JSON parser cannot read."""
    match cause:
        case RecursionError():
            reason = "it is nested too deeply. Send the fields of this route; /openapi.json has them"
        case RepeatedKeyError():
            reason = f"{cause}. Send it once"
        case UnicodeDecodeError():
            reason = f"it is not UTF-8 at byte {cause.start}. Encode it as UTF-8"
        case _:
            reason = "a number in it has too many digits. Send a shorter number, or a text"
    return RequestError(400, f"The body is no valid JSON: {reason}.", code="invalid_json")


def _of_field(problem: Mapping[str, Any]) -> RequestError:
    """Return the error for the first invalid field of a request."""
    place = [str(part) for part in problem["loc"][1:]]  # after "body", "query" or "path"
    param = ".".join(place) or None
    if problem["type"] == "extra_forbidden":
        message = (
            f"Unknown field {param!r}. A field that could change the result is never ignored: leave it out, or see the "
            "fields of this route in /openapi.json."
        )
        return RequestError(400, message, code="unknown_field", param=param)
    if problem["type"] == "json_invalid":
        reason = problem.get("ctx", {}).get("error", "")
        return RequestError(400, f"The body is no valid JSON: {reason}.", code="invalid_json")
    if problem["type"] == "string_too_long":
        message = too_long(len(problem["input"]), problem["ctx"]["max_length"], where=param or "body")
        return RequestError(400, f"{message}.", code="string_above_max_length", param=param)
    reason = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    return RequestError(400, f"{param or 'body'}: {reason}.", code="invalid_value", param=param)
