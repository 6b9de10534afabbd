"""Indexes of pgvector for approximate search.

A search takes candidates from the index and scores them again by their full vectors, so that scores are exact.

index        hnsw or ivfflat; none compares a query with every vector
quantization half (16 bits a dimension) or binary (one bit), of what the index holds; the table keeps full vectors
"""

from typing import Final, Literal, NamedTuple, TypeAlias

from cde_rag.stores.postgres.schema import PgNames
from cde_rag.stores.postgres.tables import PgManifest, PgTables

PgIndexKind: TypeAlias = Literal["hnsw", "ivfflat"]
PgQuantization: TypeAlias = Literal["half", "binary"]

LEAST_ROWS: Final = 10_000  # below, every vector is compared
_CANDIDATES: Final = {None: 2, "half": 2, "binary": 8}  # for each hit that is wanted
_FEWEST: Final = 128
_MOST: Final = 1000  # that pgvector's HNSW keeps at once
_MOST_DIMS: Final = {None: 2000, "half": 4000, "binary": 16_000}  # of an index; the table's vectors have 16 000 at most
_OPERATORS: Final = {None: "vector_ip_ops", "half": "halfvec_ip_ops", "binary": "bit_hamming_ops"}


class PgIndex(NamedTuple):
    """Settings of an index.

    Attributes:
        kind: "hnsw", "ivfflat" or None.
        quantization: "half", "binary" or None.
    """

    kind: str | None = None
    quantization: str | None = None

    @classmethod
    def of(cls, manifest: PgManifest) -> "PgIndex":
        """Return the settings of a collection."""
        return cls(manifest.index, manifest.quantization)

    def check(self, dim: int | None = None) -> "PgIndex":
        """Refuse settings that pgvector does not have.

        Raises:
            ValueError: Another index or quantization, or too many dimensions.
        """
        if self.kind not in (None, "hnsw", "ivfflat"):
            raise ValueError(f"index: expected 'hnsw', 'ivfflat' or None, found {self.kind!r}.")
        if self.quantization not in _MOST_DIMS:
            raise ValueError(f"quantization: expected 'half', 'binary' or None, found {self.quantization!r}.")
        if self.quantization is not None and self.kind is None:
            raise ValueError(
                f"quantization: expected an index for {self.quantization!r}, found none. Add index='hnsw'."
            )
        most = _MOST_DIMS["binary" if self.kind is None else self.quantization]
        if dim is not None and dim > most:
            fitting = [name for name, dims in _MOST_DIMS.items() if dim <= dims]
            remedy = f"Choose quantization={fitting[0]!r}" if fitting else "Choose a model of fewer dimensions"
            raise ValueError(f"index: expected at most {most} dimensions, found {dim}. {remedy}.")
        return self

    def creation(self, names: PgNames, generation: int, dim: int, rows: int) -> str:
        """Return the SQL that builds the index of a generation of so many rows."""
        options = f" WITH (lists = {max(1, rows // 1000 if rows <= 1_000_000 else int(rows**0.5))})"
        return (
            f"CREATE INDEX IF NOT EXISTS nearest_{generation} ON {names.vectors(generation)} USING {self.kind} "
            f"(({self._stored(names, dim)}) {self._operators(names)}){options if self.kind == 'ivfflat' else ''}"
        )

    def candidates(self, k: int) -> int:
        """Return how many rows to take from the index for k hits; one of full vectors knows their scores."""
        return k if self.quantization is None else self._breadth(k)

    def distance(self, names: PgNames, dim: int) -> str:
        """Return the SQL of the indexed distance to the query's vector."""
        asked = "(SELECT query FROM asked)"
        stored = self._stored(names, dim)
        if self.quantization == "binary":
            quantized = names.pgvector("binary_quantize")
            return f"({stored}) {names.operator('<~>')} {quantized}({asked})::bit({dim})"
        halved = f"::{names.pgvector('halfvec')}({dim})" if self.quantization else ""
        return f"({stored}) {names.operator('<#>')} {asked}{halved}"

    def parameters(self, k: int) -> str:
        """Return the SQL that sets pgvector's parameters for the statement, as columns after the query.

        With a filter, a scan continues until it has enough.
        """
        if self.kind is None:
            return ""
        name, value = ("ef_search", min(_MOST, self._breadth(k))) if self.kind == "hnsw" else ("probes", 10)
        breadth = f"set_config('{self.kind}.{name}', '{value}', true)"
        return f", {breadth}, set_config('{self.kind}.iterative_scan', 'relaxed_order', true)"

    def _breadth(self, k: int) -> int:
        return max(_FEWEST, _CANDIDATES[self.quantization] * k)

    def _operators(self, names: PgNames) -> str:
        return names.pgvector(_OPERATORS[self.quantization])

    def _stored(self, names: PgNames, dim: int) -> str:
        match self.quantization:
            case "half":
                return f"vector::{names.pgvector('halfvec')}({dim})"
            case "binary":
                return f"{names.pgvector('binary_quantize')}(vector)::bit({dim})"
            case _:
                return "vector"


def presence(generation: int) -> str:
    """Return the SQL for the presence of a generation's index, next to the manifest `m`."""
    return (
        "EXISTS (SELECT FROM pg_class i JOIN pg_class t USING (relnamespace) "
        f"WHERE t.oid = m.tableoid AND i.relname = 'nearest_{generation}')"
    )


def built(tables: PgTables, generation: int) -> bool:
    """Return True if a generation has its index."""
    return tables.rows(f"SELECT {presence(generation)} FROM {tables.names.manifest} m")[0][0]  # noqa: S608


def build(tables: PgTables, generation: int) -> None:
    """Build the index of a generation unless it is there or the generation small, and count for the planner."""
    index = PgIndex.of(tables.manifest)
    if index.kind is None or built(tables, generation):
        return
    names = tables.names
    if (rows := tables.count(names.vectors(generation))) >= LEAST_ROWS:
        tables.run(index.creation(names, generation, tables.manifest.dim, rows))
        tables.run(  # columns without texts and arrays
            f"ANALYZE {names.manifest}, {names.fields}, {names.records} (place, batch), {names.words} (term, batch), "
            f"{names.vectors(generation)} (place)"
        )
