"""Ids of points: whole numbers and UUIDs in Qdrant, strings elsewhere."""

import uuid
from collections.abc import Iterable
from typing import Final

from qdrant_client import models

_DIGITS: Final = 20  # of 2**64


def is_native(id_: str) -> bool:
    """Return True if Qdrant accepts the string unchanged as a point's id: a whole number of 64 bits, or a UUID."""
    if id_.isascii() and id_.isdecimal():
        return len(id_) <= _DIGITS and id_ == str(int(id_)) and int(id_) < 2**64
    try:
        return id_ == str(uuid.UUID(id_))
    except ValueError:
        return False


def native(id_: str) -> int | str:
    """Convert a point's id to Qdrant's types."""
    return int(id_) if id_.isdecimal() else id_


def natives(ids: Iterable[str]) -> list[models.ExtendedPointId]:
    """Convert points' ids to Qdrant's types."""
    return [native(id_) for id_ in ids]
