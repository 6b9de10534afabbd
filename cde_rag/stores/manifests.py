"""Public manifest of a store and of its generations."""

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
    """Manifest of a store.

    Attributes:
        dim: Length of a vector.
        fingerprint: Fingerprint of the active generation.
        generation: Number of the active generation.
        settings: Settings of the collection, written at creation (JSON object).
    """

    dim: int
    fingerprint: str
    generation: int
    settings: Mapping[str, Any]
