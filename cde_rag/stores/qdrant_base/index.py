"""Parameters of Qdrant's index."""

from dataclasses import dataclass
from typing import Final

_MOST: Final = 65_536


@dataclass(frozen=True, slots=True)
class Hnsw:
    """Parameters of an HNSW graph. Larger values give higher recall and cost more memory or time.

    Attributes:
        m: Links of a node in the upper layers; twice as many in the lowest.
        ef_construct: Number of candidates per node during construction.
        ef: Minimum number of candidates per query. Unlike the others, which are fixed by `create`, it is a parameter of
            the search.

    Raises:
        ValueError: A value is out of range.

    Source: Malkov & Yashunin 2016; the values are Qdrant's defaults, and for `ef` that of `ef_construct`, as there.
    """

    m: int = 16
    ef_construct: int = 128
    ef: int = 128

    def __post_init__(self) -> None:
        for name, least in (("m", 2), ("ef_construct", 4), ("ef", 1)):
            if not least <= (found := getattr(self, name)) <= _MOST:
                raise ValueError(f"{name}: expected {least} to {_MOST}, found {found}.")
