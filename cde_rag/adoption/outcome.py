"""Result of an adoption, and of catching up with its source."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adoption:
    """Changes of an adopted collection, in records.

    Attributes:
        added: New ones.
        replaced: Those whose text or title changed; 0 in Qdrant, where a point that was written again counts as new.
        updated: Those of which only the metadata changed.
        deleted: Those whose row is gone.
        skipped: Points or rows without a text, or that cannot be records, and rows of an id that came before.
        documents: Records in the collection now.
        elapsed_s: Seconds.
    """

    added: int
    replaced: int
    updated: int
    deleted: int
    skipped: int
    documents: int
    elapsed_s: float
