"""Which index a store has: by name, or by how many vectors there are."""

from dataclasses import dataclass
from typing import Final

from cde_rag.errors import StoreError
from cde_rag.stores.quantization import check_prefix, prefix_dims

FLAT_ROWS: Final = 100_000  # up to so many vectors "auto" is flat
INDEXES: Final = ("auto", "flat", "hnsw", "ivf")


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """What a store was made with, or given by `FaissStore.reindex`.

    Attributes:
        index: `flat` scans all vectors, `hnsw` follows a graph, `ivf` scans the nearest cells; `auto` is `flat` up to
            `FLAT_ROWS` vectors and `hnsw` beyond.
        quantization: What is scanned or followed in place of the vectors; see `cde_rag.stores.quantization`.

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
        """Refuse what vectors of `dim` dimensions cannot have.

        Raises:
            ValueError: The prefix is no shorter than they are.
        """
        check_prefix(prefix_dims(self.quantization), dim)

    def at(self, rows: int) -> "IndexConfig":
        """What that is for so many vectors: never `auto`."""
        if self.index != "auto":
            return self
        return IndexConfig("flat" if rows <= FLAT_ROWS else "hnsw", self.quantization)

    @property
    def has_file(self) -> bool:
        """Whether there is anything beside the vectors themselves."""
        return (self.index, self.quantization) != ("flat", None)

    def expect(self, index: str | None, quantization: str | None) -> None:
        """Refuse to be another than was asked for; None asks for nothing.

        Raises:
            StoreError: It is another.
        """
        if index not in (None, self.index) or quantization not in (None, self.quantization):
            asked, found = (
                f"index={one!r}, quantization={other!r}"
                for one, other in ((index, quantization), (self.index, self.quantization))
            )
            hint = "Leave out what is to stay as it is, and change the store by reindex(…)."
            raise StoreError(f"Expected a store with {asked}, found one with {found}. {hint}")
