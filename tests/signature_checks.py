"""Signatures are checked in every test run, types by beartype and shapes by jaxtyping.

jaxtyping's own wrapper binds the arguments of each call and checks them twice, also where a signature has no shape:
that was two fifths of the time of all tests.
"""

import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, partial, wraps
from types import SimpleNamespace
from typing import Any, Final, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

__name__ = "jaxtyping.signature_checks"  # a warning passes over its frames as over jaxtyping's

_jaxtyped: Final = jaxtyping.jaxtyped
_by_types: Final = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def install() -> None:
    """Be called by the modules that pytest's option `--jaxtyping-packages` names; before they are imported."""
    jaxtyping.jaxtyped = checked
    if sys.version_info < (3, 12):  # each check of a protocol collects its names anew; later versions keep them
        typing._get_protocol_attrs = cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]


def checked(given: Any = None, *, typechecker: object) -> Any:
    """Return a function or class whose signatures are checked; without one, the decorator.

    Args:
        given: A function, class, or what a decorator made of a function.
        typechecker: Not asked: it is beartype.
    """
    if given is None:
        return partial(checked, typechecker=typechecker)
    if inspect.isfunction(given):
        return _checked(given)
    if isinstance(given, (classmethod, staticmethod)):
        return type(given)(_checked(given.__func__))
    if isinstance(given, property):
        return property(*(each and _checked(each) for each in (given.fget, given.fset, given.fdel)))
    if is_dataclass(given) and "__init__" in vars(given):
        given.__init__ = _checked(given.__init__)
    return given


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    hints = function.__annotations__
    has_shapes = any(map(_has_shape, hints.values()))
    if "<locals>" in function.__qualname__ and not has_shapes:  # made anew by each call of the function around it
        return function
    if has_shapes and inspect.isgeneratorfunction(function):  # beartype checks at the first step, by the caller's axes
        return _jaxtyped(function, typechecker=_by_types)
    function.__annotations__ = {name: _known(hint, function) for name, hint in hints.items()}
    try:
        by_types = _by_types(function)
    finally:
        function.__annotations__ = hints
    if by_types is function:
        return function
    if has_shapes:  # an axis has one length in all arguments and the result
        by_types = _jaxtyped(by_types, typechecker=None)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return (function if jaxtyping.config.jaxtyping_disable else by_types)(*args, **kwargs)

    return wrapped


def _has_shape(hint: Any) -> bool:
    """Return True if a hint has an array type in it; a name that is not known yet may have one."""
    if isinstance(hint, str):
        return "[" in hint
    return (inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(_has_shape, get_args(hint)))


def _known(hint: Any, function: Callable[..., Any]) -> Any:
    """Return a hint without strings in it; anything for names of type checkers alone, as jaxtyping has it."""
    alone = SimpleNamespace(__annotations__={"hint": hint})
    try:
        return typing.get_type_hints(alone, function.__globals__, include_extras=True)["hint"]
    except Exception:  # noqa: BLE001 (names, and whatever a wrong use of them raises)
        return Any
