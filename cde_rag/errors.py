"""Errors and warnings; each message has the expected, the found, and the remedy.

Their classes:

    CDEError
    ├── ContextError
    │   ├── ContextMissingError      vectors or a query without their context
    │   ├── ContextMismatchError     vectors and embedder in different vector spaces
    │   └── ContextFormatError       an unreadable, damaged or newer context file
    ├── ModelError                   weights, config or tokenizer that cannot be loaded
    │   └── ServiceError             a model outside this library, of an API or a function, that gives no usable answer
    ├── StoreError                   a store that is missing, damaged, locked or not writable
    │   ├── StoreFormatError         damaged or newer files
    │   ├── TextIndexError           a search by BM25 of a store that was made without a text index
    │   └── FilterError              a filter outside the grammar
    ├── CorpusError                  texts or records that cannot be used (also ValueError)
    │   └── TruncationError          texts of which the model would not read a considerable part
    ├── CanaryError                  a new generation that loses known results of canary queries
    ├── TenantError                  a call that does not name exactly one tenant
    ├── ResumeError                  an interrupted run that cannot be continued
    ├── PoolError                    worker processes that ended, or that finish nothing
    └── MissingExtraError            an optional dependency that is not installed (also ImportError)

    CDEWarning (UserWarning)
    ├── TruncationWarning            texts longer than the model's token limit
    ├── SmallContextWarning          a context of too few documents to represent a corpus
    ├── PartialContextWarning        a context sampled from a part of the corpus
    ├── ContextReusedWarning         a new corpus that is embedded in a context made from another
    ├── TextIndexWarning             a hybrid search that ranks by vectors alone, without a text index
    ├── PendingVectorsWarning        a search by vectors while records wait for theirs
    ├── UnknownFieldWarning          a filter that found nothing and names a field that no record has
    └── UnreadFilesWarning           files of a folder that were left out, or read in a guessed encoding
"""

import errno
import functools
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_OF_VALUES = ArithmeticError | AttributeError | LookupError | TypeError | ValueError


class CDEError(Exception):
    """Root of all errors raised on purpose by this library.

    One that is raised because no file could be opened any more names the limit instead of what was opened.
    """

    def __init__(self, *message: object) -> None:
        found = _without_descriptors(sys.exc_info()[1])
        super().__init__(*(message if found is None else (found,)))


class ContextError(CDEError):
    """Base class of errors about a Context."""


class ContextMissingError(ContextError):
    """Vectors or a query without their context."""


class ContextMismatchError(ContextError):
    """Vectors and embedder in different vector spaces.

    Args:
        expected: Fingerprint (or model digest) of the stored vectors; empty if it is not known.
        found: Fingerprint (or model digest) of the embedder; empty if it is not known.
        remedy: Advice to the reader of the message.
    """

    def __init__(
        self,
        *,
        expected: str,
        found: str,
        remedy: str = "Open the collection with Collection.open(store); it loads the right context.",
    ) -> None:
        self.expected = expected
        self.found = found
        made = f"the vector space {expected[:16]}…" if expected else "another vector space"
        given = f"the one given, {found[:16]}…" if found else "the one given"
        super().__init__(f"These vectors were made in {made}, not in {given}. {remedy}")


class ContextFormatError(ContextError):
    """An unreadable, damaged or newer context file."""


class ModelError(CDEError):
    """Weights, config or tokenizer that cannot be loaded."""


class ServiceError(ModelError):
    """A model outside this library, of an API or a user's function, that gives no usable answer."""


class StoreError(CDEError):
    """A store that is missing, damaged, locked or not writable."""


class StoreFormatError(StoreError):
    """Damaged files, or files of a newer format."""


class TextIndexError(StoreError):
    """A search by BM25 of a store that was made without a text index."""


class FilterError(StoreError, ValueError):
    """A filter outside the grammar."""


class CorpusError(CDEError, ValueError):
    """Texts or records that cannot be used."""


class TruncationError(CorpusError):
    """Texts of which the model would not read a considerable part."""


class CanaryError(CDEError):
    """A new generation that loses known results of canary queries."""


class TenantError(CDEError, ValueError):
    """A call that does not name exactly one tenant."""


class ResumeError(CDEError):
    """An interrupted run that cannot be continued."""


class PoolError(CDEError):
    """Worker processes that ended again and again, or that finish nothing."""


class MissingExtraError(CDEError, ImportError):
    """An optional dependency that is not installed."""


class CDEWarning(UserWarning):
    """Root of all warnings of this library."""


class TruncationWarning(CDEWarning):
    """Texts longer than the model's token limit, which were cut."""


class SmallContextWarning(CDEWarning):
    """A context of too few documents to represent a corpus."""


class PartialContextWarning(CDEWarning):
    """A context that was probably sampled from only a part of the corpus."""


class ContextReusedWarning(CDEWarning):
    """A new corpus that is embedded in a context made from another."""


class TextIndexWarning(CDEWarning):
    """A hybrid search that ranks by vectors alone, since the store has no text index."""


class PendingVectorsWarning(CDEWarning):
    """A search by vectors while records wait for theirs, which it cannot find; `Hits.pending` is their number."""


class UnknownFieldWarning(CDEWarning):
    """A filter that found nothing and names a field that no record has."""


class UnreadFilesWarning(CDEWarning):
    """Files of a folder that could not be read, and were left out, or that were read in a guessed encoding."""


_LIBRARIES = frozenset(
    "asyncio cde_rag concurrent contextlib functools haystack haystack_integrations jaxtyping langchain_cde "
    "langchain_chroma langchain_classic langchain_community langchain_core langchain_qdrant llama_index "
    "llama_index_instrumentation pydantic threading wrapt".split()
)

_LEFT_OUT: ContextVar[type[CDEWarning] | None] = ContextVar("cde_rag_left_out", default=None)


@contextmanager
def adapter_warns(category: type[CDEWarning]) -> Generator[None, None, None]:
    """Leave warnings of a category out within the block, for an adapter that warns in the words of its framework.

    Unlike a filter of `warnings`, this is of the calling thread alone.
    """
    token = _LEFT_OUT.set(category)
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)


def is_left_out(category: type[CDEWarning]) -> bool:
    """Return True within a block of `adapter_warns` of this category."""
    return _LEFT_OUT.get() is category


def warn_user(message: str, category: type[CDEWarning | DeprecationWarning]) -> None:
    """Warn at the line of the program that called this library, directly or through a framework."""
    if _LEFT_OUT.get() is category:
        return
    frame, level = inspect.currentframe(), 1
    passed = _LIBRARIES | {"importlib"}  # an old name may be imported
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in passed:
        level += "importlib._bootstrap" not in frame.f_code.co_filename  # `warnings.warn` counts none of these
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=2 if frame is None else level)


def warn_of_old_name(old: str, new: str) -> None:
    """Warn that a name is deprecated, at the line of the program that uses it.

    Args:
        old: The old name.
        new: Code to write instead.
    """
    warn_user(f"{old} is deprecated, and goes in 1.0. Write: {new}", DeprecationWarning)


def old_keyword(old: str, new: str) -> "Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]":
    """Let a function take a keyword under its name of 0.2 too, with a warning."""

    def _renamed(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def _call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            given: dict[str, Any] = dict(named)
            if old in given:
                if new in given:
                    raise TypeError(f"Expected {new}=… or {old}=…, its name of 0.2, found both. Write {new}=… alone.")
                warn_of_old_name(f"{old}=…", f"{new}=…")
                given[new] = given.pop(old)
            return cast(Callable[..., _Result], function)(*arguments, **given)

        return _call

    return _renamed


def old_names(
    module: str, moved: Mapping[str, tuple[str, str]], *, instead: Mapping[str, str] | None = None
) -> Callable[[str], object]:
    """Return the `__getattr__` of a module whose names have moved, for the time of their deprecation.

    Args:
        module: Name of the old module.
        moved: For each old name the module that has it, and its name there.
        instead: Code to write instead of a name, where that is more than its import from there.
    """

    def __getattr__(name: str) -> object:  # noqa: N807 (a module's)
        if name not in moved:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, new = moved[name]
        warn_of_old_name(f"{module}.{name}", (instead or {}).get(name, f"from {home} import {new}"))
        return getattr(importlib.import_module(home), new)

    return __getattr__


def _without_descriptors(handled: BaseException | None) -> str | None:
    """Return the message for an error that was raised for lack of file descriptors; None for others.

    Args:
        handled: The error that is being handled.
    """
    if not _is_handled_here(handled):
        return None
    while isinstance(handled, CDEError):
        handled = handled.__cause__
    number = handled.errno if isinstance(handled, OSError) else None
    if isinstance(handled, Exception) and not isinstance(handled, OSError | _OF_VALUES):
        try:  # SQLite and the engines raise errors without a number
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            number = error.errno
    if number == errno.EMFILE:
        return (
            f"This process has as many files open as it may{_limit()}. Raise the limit before it starts, for example "
            "with ulimit -n 4096 (LimitNOFILE= of a systemd unit), or keep fewer collections open at once."
        )
    if number == errno.ENFILE:
        return "This machine has as many files open as it may (fs.file-max). Raise it, or end other programs."
    return None


def _is_handled_here(error: BaseException | None) -> bool:
    """Return True if this library handles an error, not a program that calls it in an `except` of its own."""
    frame = None if error is None or error.__traceback__ is None else error.__traceback__.tb_frame
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES


def _limit() -> str:
    """Return the number of files that this process may have open, in brackets; nothing on Windows."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return ""
    return f" ({resource.getrlimit(resource.RLIMIT_NOFILE)[0]}, its limit by ulimit -n)"


def require(module: str, extra: str) -> ModuleType:
    """Import the optional `module`; the error names the extra that installs it.

    Raises:
        MissingExtraError: `module` is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{module!r} is needed here and is not installed. {how_to_install(extra)}") from error


def counted(number: int, noun: str) -> str:
    """Return a number of things for a message: "1 passage", "2,140 passages", "3 queries"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{number:,} {noun}s"


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, as a sentence without its full stop."""
    return f"Install it with: pip install 'cde-rag[{extra}]' (in a clone: pip install '.[{extra}]')"
