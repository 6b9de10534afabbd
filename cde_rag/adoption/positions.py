"""Random rows of stores that are read by position."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import numpy as np

from cde_rag.indexing.audit import StoredVector

_PERMUTED: Final = 100_000  # positions at most that are drawn until enough of them have a text


def drawn(
    random: Random, stored: int, count: int, read: Callable[[list[int]], list[StoredVector]]
) -> list[StoredVector]:
    """Read random rows by position until `count` of them have a text, or all are read."""
    places = random.sample(range(stored), min(stored, _PERMUTED))
    found: list[StoredVector] = []
    for start in range(0, len(places), count):
        found += read(sorted(places[start : start + count]))
        if len(found) >= count:
            break
    return found[:count]


def is_text(text: object) -> bool:
    """Return True for a text that can be embedded: not blank, without lone surrogates."""
    if not isinstance(text, str) or not text.strip():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def stored(id_: str, text: str, vector: Any) -> StoredVector:
    """Return a row of a store for an audit."""
    return StoredVector(id_, text, np.asarray(vector, np.float32).reshape(-1))
