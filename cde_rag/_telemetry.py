"""Telemetry: log records under `cde_rag`, and OpenTelemetry spans if the program uses them.

An operation has a name, counts, and the first 16 hex digits of a fingerprint. Texts, ids, metadata and filters are
never recorded, nor the messages of errors, which may quote them: of an error only the type is recorded.

Spans go to the tracer provider of a program that imported OpenTelemetry (the extra `observability` installs its
API); other programs do not need it. Log records have level DEBUG, also those of failures, since these are raised.
"""

import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from cde_rag._version import __version__

Attributes: TypeAlias = Mapping[str, str | int | bool]

_log = logging.getLogger("cde_rag")


@contextmanager
def operation(name: str, attributes: Attributes) -> Generator[Callable[[Attributes], None], None, None]:
    """Record the block as an operation; yield a function that adds attributes known later.

    Args:
        name: Such as `cde_rag.search`.
        attributes: Counts, and fingerprints shortened by `short`.
    """
    started, noted = time.monotonic(), dict(attributes)
    trace: Any = sys.modules.get("opentelemetry.trace")
    context: Any = nullcontext() if trace is None else _span(trace, name)
    with context as span:
        try:
            yield noted.update
        except BaseException as error:
            noted["error.type"] = type(error).__name__
            if trace is not None:
                span.set_status(trace.StatusCode.ERROR)
            raise
        finally:
            if trace is not None:
                span.set_attributes({key if "." in key else f"cde_rag.{key}": value for key, value in noted.items()})
            _log.debug("%s took %.1f ms: %s", name, 1000 * (time.monotonic() - started), noted)


def short(fingerprint: str) -> str:
    """Return the part of a fingerprint that is recorded."""
    return fingerprint[:16]


def _span(trace: Any, name: str) -> Any:
    tracer = trace.get_tracer("cde_rag", __version__)
    return tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False)
