"""Records, rows and hits, as stores take and give them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32

SAMPLE_BLOCKS = 4  # places of a store that a sample is read from


class ProcessBound:
    """Base class of objects with open files, connections and locks, which can neither be pickled nor copied."""

    def __reduce__(self) -> Any:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled or copied: its files, connections and locks are of one "
            "process. Open the collection where it is needed, by its path or address: Collection.open(place)."
        )


@dataclass(frozen=True, slots=True)
class Record:
    """Input record of a collection.

    Attributes:
        id: Any non-empty string, unique in the collection.
        text: Text to embed and to return.
        title: Embedded in front of the text (`title + " " + text`) and returned with it.
        metadata: JSON object, for filters.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Row:
    """Stored record with the digest of its embedded text.

    Attributes:
        record: The record.
        digest: sha256 hex over the embedded title, text and siblings; opaque to the store.
    """

    record: Record
    digest: str

    def hit(self, score: float) -> "Hit":
        """Return the record as a search hit with this score."""
        return Hit(self.record.id, score, self.record.title, self.record.text, self.record.metadata)


@dataclass(frozen=True, slots=True)
class Hit:
    """Search result.

    Attributes:
        id: The record's id.
        score: Higher is better. Of a search by vectors the dot product of unit vectors, in [-1, 1]; of one by words
            BM25, above 0; of a hybrid one the fused score, by default in [0, 1]; of a reranked one what the reranker
            gave.
        title: The record's title.
        text: The record's text.
        metadata: The record's metadata.
    """

    id: str
    score: float
    title: str
    text: str
    metadata: Mapping[str, Any]


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
