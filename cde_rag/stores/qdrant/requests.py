"""Requests of a bearable size."""

import json
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar, cast

from cde_rag.stores.qdrant_base.sparse_text import Sparse

_REQUEST_BYTES: Final = 2**23  # of 32 MiB that a server takes
_FLOAT_BYTES: Final = 14  # in JSON

Item = TypeVar("Item")


def in_requests(items: Sequence[Item], sizes: Sequence[int]) -> Iterator[list[Item]]:
    """Split items into batches of limited size, of at least one item each.

    Args:
        items: Items to send.
        sizes: Size of each, from `json_bytes`.
    """
    some: list[Item] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if some and total + size > _REQUEST_BYTES:
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some


def json_bytes(payload: object, vectors: object = None) -> int:
    """Estimate the length in JSON."""
    named = cast(dict[str, object], vectors) if isinstance(vectors, dict) else {}
    floats = sum(len(cast(list[object], vector)) for vector in named.values() if isinstance(vector, list))
    floats += sum(2 * len(vector.indices) for vector in named.values() if isinstance(vector, Sparse))
    return len(json.dumps(payload)) + _FLOAT_BYTES * floats
