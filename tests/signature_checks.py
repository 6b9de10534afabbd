"""Signatures are checked in tests: shapes by jaxtyping, which is slow; those without shapes by beartype alone."""

import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import Any, Final, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

_by_shapes: Final = jaxtyping.jaxtyped
_by_types: Final = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def install() -> None:
    """Choose for each signature that pytest's option `--jaxtyping-packages` has checked."""
    jaxtyping.jaxtyped = checked
    if sys.version_info < (3, 12):  # each check of a protocol collects its names anew, later versions keep them
        typing._get_protocol_attrs = cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]


def checked(given: Any = None, *, typechecker: Any) -> Any:
    """Return a function or class whose signatures are checked.

    Args:
        given: It; None gives a decorator, which is what modules that are loaded for tests call.
        typechecker: What jaxtyping checks types by.
    """
    if given is None:
        return lambda found: checked(found, typechecker=typechecker)
    if inspect.isclass(given):
        if is_dataclass(given) and "__init__" in vars(given):
            given.__init__ = _checked(given.__init__, typechecker)
        return given
    return _checked(given, typechecker) if inspect.isfunction(given) else _by_shapes(given, typechecker=typechecker)


def _checked(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    hints = function.__annotations__
    if any(map(_has_shape, hints.values())):
        return _by_shapes(function, typechecker=typechecker)
    if "<locals>" in function.__qualname__:  # made, and so checked, anew by each call of the function around it
        return function
    function.__annotations__ = {name: _known(hint, function) for name, hint in hints.items()}
    try:
        by_types = _by_types(function)
    finally:
        function.__annotations__ = hints
    if by_types is function:
        return function

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return (function if jaxtyping.config.jaxtyping_disable else by_types)(*args, **kwargs)

    return wrapped


def _has_shape(hint: Any) -> bool:
    """Return True if a hint has an array type in it; what is not known yet may have one."""
    if isinstance(hint, str):
        return "[" in hint
    return (inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)) or any(
        map(_has_shape, get_args(hint))
    )


def _known(hint: Any, function: Callable[..., Any]) -> Any:
    """Return a hint; anything for one whose name is imported for type checkers only, as jaxtyping has it."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, function.__globals__)  # noqa: S307 (an annotation of our own)
    except Exception:  # noqa: BLE001 (likewise)
        return Any
