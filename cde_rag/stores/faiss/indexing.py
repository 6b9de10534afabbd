"""Index configuration of a store, by name or by the number of vectors."""

from dataclasses import dataclass
from typing import Final

from cde_rag.errors import StoreError
from cde_rag.stores.quantization import check_prefix, prefix_dims

FLAT_ROWS: Final = 100_000  # up to so many vectors "auto" is flat
INDEXES: Final = ("auto", "flat", "hnsw", "ivf")


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Index configuration, set at creation or by `FaissStore.reindex`.

    Attributes:
        index: `flat` scans all vectors, `hnsw` follows a graph, `ivf` scans the nearest cells; `auto` is `flat` up to
            `FLAT_ROWS` vectors and `hnsw` beyond.
        quantization: Codes used for search in place of the vectors; see `cde_rag.stores.quantization`.

    Raises:
        ValueError: A name is not known.
    """

    index: str = "auto"
    quantization: str | None = None

    def __post_init__(self) -> None:
        if self.index not in INDEXES:
            raise ValueError(f"index: expected one of {', '.join(INDEXES)}, found {self.index!r}.")
        prefix_dims(self.quantization)

    def check(self, dim: int) -> None:
        """Refuse configurations that vectors of `dim` dimensions cannot have.

        Raises:
            ValueError: The prefix is not shorter than the vectors.
        """
        check_prefix(prefix_dims(self.quantization), dim)

    def at(self, rows: int) -> "IndexConfig":
        """Resolve `auto` for a number of vectors."""
        if self.index != "auto":
            return self
        return IndexConfig("flat" if rows <= FLAT_ROWS else "hnsw", self.quantization)

    @property
    def has_file(self) -> bool:
        """True if the index has a file in addition to the vectors."""
        return (self.index, self.quantization) != ("flat", None)

    def expect(self, index: str | None, quantization: str | None) -> None:
        """Refuse a configuration other than the requested one; None accepts any.

        Raises:
            StoreError: It is another.
        """
        if index not in (None, self.index) or quantization not in (None, self.quantization):
            asked, found = (
                f"index={one!r}, quantization={other!r}"
                for one, other in ((index, quantization), (self.index, self.quantization))
            )
            hint = "Omit these arguments to open it, or call reindex(…) to change them."
            raise StoreError(f"Expected a store with {asked}, found one with {found}. {hint}")
