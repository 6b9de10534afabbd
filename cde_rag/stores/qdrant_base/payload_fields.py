"""Metadata once more, in the form in which filters look at it.

Qdrant's own conditions on JSON differ from our grammar in lists, in numbers of two types and in missing fields, so
filters look at two fields of ours, whose meaning is simple:

    cde_tokens      a list of digests: of each path that is there, of each kind of value at it, and of each value
    cde_numbers     for each path with numbers or with dates a list of integers that are ordered as they are

One keyword index over `cde_tokens` serves all paths.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from cde_rag.stores.filter_conditions import Key, Kind, instant, number

TOKENS: Final = "cde_tokens"
NUMBERS: Final = "cde_numbers"
_STEPS: Final = 2**10  # places between two whole numbers
_EXACT: Final = 2**53  # Qdrant compares as float64
_FAR: Final = 2**60


class OrderKey(NamedTuple):
    """A number or date as an integer.

    Attributes:
        number: The order of places is the order of numbers (dates), but several of these can share a place.
        alone: No other number (date) has this place.
    """

    number: int
    alone: bool


def fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the two payload fields of a JSON object: tokens and numbers."""
    tokens: set[str] = set()
    numbers: dict[str, set[int]] = {}
    for path, found in _elements(metadata, ()):
        tokens.add(token(path))
        for kind, key in found:
            tokens |= {token(path, kind), token(path, kind, key)}
            if kind in ("number", "date"):
                numbers.setdefault(numbers_key(path, kind), set()).add(place(key).number)
    return {TOKENS: sorted(tokens), NUMBERS: {name: sorted(places) for name, places in numbers.items()}}


def number_keys(payloads: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the payload keys that range conditions use."""
    return {f"{NUMBERS}.{name}" for payload in payloads for name in payload.get(NUMBERS, ())}


def token(path: tuple[str, ...], kind: Kind | None = None, key: Key | None = None) -> str:
    """Return a token, 96 bits of a hash in hex, for a path, a kind of value at it, or a value."""
    whole = int(key) if isinstance(key, float) and key.is_integer() else key  # 1 and 1.0 are the same number
    return hashlib.sha256(json.dumps([path, kind, whole]).encode()).hexdigest()[:24]


def numbers_key(path: tuple[str, ...], kind: Kind) -> str:
    """Return the key in `cde_numbers` under which a path has its numbers or dates."""
    return f"n{token(path, kind)}"


def place(key: Key) -> OrderKey:
    """Convert a number or a date to an order key."""
    if isinstance(key, str):  # a date: days, five digits of seconds, decimals
        seconds, part = int(key[:7]) * 86400 + int(key[7:12]), key[12:] != ""
        return OrderKey(2 * seconds + part, not part)
    if isinstance(key, float) and not abs(key) < _FAR:  # far from all that is exact, and infinity
        return OrderKey(_FAR if key > 0 else -_FAR, alone=False)
    scaled = key * _STEPS
    floor = math.floor(scaled)
    at = max(-_FAR, min(_FAR, 2 * floor + (scaled != floor)))
    return OrderKey(at, scaled == floor and abs(at) < _EXACT)


def _elements(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[tuple[Kind, Key]]]]:
    """Yield all existing paths, with each value's kinds and keys of comparison."""
    match value:
        case dict():
            if path:
                yield path, []
            for name, inner in cast(dict[str, Any], value).items():
                yield from _elements(inner, (*path, name))
        case list():
            yield path, []
            for inner in cast(list[Any], value):
                yield from _elements(inner, path)
        case str():
            moment = instant(value)
            yield path, [("text", value), *([] if moment is None else [cast(tuple[Kind, Key], ("date", moment))])]
        case bool():
            yield path, [("boolean", int(value))]
        case int() | float():
            yield path, [("number", number(value))]
        case _:
            yield path, [("null", 0)]
