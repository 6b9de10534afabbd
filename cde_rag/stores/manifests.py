"""What a store tells of itself and of its generations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Generation:
    """One complete set of vectors of a collection under one fingerprint.

    Attributes:
        number: 1, 2, 3 … in order of creation; never used twice.
        fingerprint: Names the vector space.
        active: True if searches and additions use it.
        vectors: How many records have a vector in it.
    """

    number: int
    fingerprint: str
    active: bool
    vectors: int


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """What a store knows of itself.

    Attributes:
        dim: Length of a vector.
        fingerprint: Of the active generation.
        generation: Number of the active generation.
        settings: What the collection wrote at creation (JSON object).
    """

    dim: int
    fingerprint: str
    generation: int
    settings: Mapping[str, Any]
