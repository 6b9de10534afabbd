"""Ids of points: whole numbers and UUIDs, which are strings elsewhere."""

import uuid
from collections.abc import Iterable
from typing import Final

from qdrant_client import models

_DIGITS: Final = 20  # of 2**64


def is_native(id_: str) -> bool:
    """Whether Qdrant can have it as a point's id, written in just this way: a whole number of 64 bits, or a UUID."""
    if id_.isascii() and id_.isdecimal():
        return len(id_) <= _DIGITS and id_ == str(int(id_)) and int(id_) < 2**64
    try:
        return id_ == str(uuid.UUID(id_))
    except ValueError:
        return False


def native(id_: str) -> int | str:
    """A point's id in Qdrant's types."""
    return int(id_) if id_.isdecimal() else id_


def natives(ids: Iterable[str]) -> list[models.ExtendedPointId]:
    """Points' ids in Qdrant's types."""
    return [native(id_) for id_ in ids]
