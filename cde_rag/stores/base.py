"""Values that stores take and give, besides those of `cde_rag.records`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag.records import Hit as Hit
from cde_rag.records import Record as Record
from cde_rag.records import Row as Row

SAMPLE_BLOCKS = 4  # places of a store that a sample is read from


class ProcessBound:
    """Base class of objects with open files, connections and locks, which can neither be pickled nor copied."""

    def __reduce__(self) -> Any:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled or copied: its files, connections and locks are of one "
            "process. Open the collection where it is needed, by its path or address: Collection.open(place)."
        )


# Digests and vectors for the rows that it is given; see `Store.activate`.
Completion: TypeAlias = Callable[[list[Row]], tuple[list[str], Float32[np.ndarray, "rows dim"]]]


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage found by `verify`.

    Attributes:
        where: File, table or record id.
        found: The expected and the found, in one sentence.
    """

    where: str
    found: str
