"""The engine: one shard in a folder, with its errors in our words. The only module that knows how it is opened."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import qdrant_edge as edge

from cde_rag.errors import StoreError
from cde_rag.stores.qdrant_base.hnsw import Hnsw
from cde_rag.stores.qdrant_base.payload import ORDER
from cde_rag.stores.qdrant_base.payload_fields import NUMBERS, TOKENS
from cde_rag.stores.qdrant_base.points import MOST_INDEXED
from cde_rag.stores.qdrant_base.sparse_text import WORDS

Result = TypeVar("Result")

_FLOAT_BYTES: Final = 4
_SCANNED_KB: Final = 10_000  # of vectors that pass a filter; up to that many are searched exactly: Qdrant's default

_RANGES: Final = edge.IntegerIndexParams(lookup=False, range=True)
_CODES: Final[dict[str | None, Callable[[], Any]]] = {
    "int8": lambda: edge.ScalarQuantizationConfig(edge.ScalarType.Int8),
    "binary": lambda: edge.BinaryQuantizationConfig(query_encoding=edge.BinaryQuantizationQueryEncoding.Scalar8Bits),
}


@dataclass(frozen=True, slots=True)
class EdgeIndexConfig:
    """How a new shard indexes vectors.

    Attributes:
        flat_rows: Up to about so many vectors are not indexed.
        quantization: See `cde_rag.stores.quantization`.
        hnsw: Parameters of the graph.
    """

    flat_rows: int
    quantization: str | None
    hnsw: Hnsw


class Engine:
    """The open shard in `folder`. Safe to use from threads; searches go on while it is written to or optimized."""

    def __init__(self, shard: edge.EdgeShard, folder: Path) -> None:
        self._shard = shard
        self._numbers: set[str] | None = None  # keys with an index of their own, once that was asked
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, sizes: Mapping[str, int], indexing: EdgeIndexConfig) -> "Engine":
        """Make a shard with named vectors, and the indexes that order and filters need.

        Args:
            folder: Of the shard; not there yet.
            sizes: Of the vectors, by name: whole ones, then prefixes, if there are any.
            indexing: Of all vectors that it will have.

        Raises:
            StoreError: The disk is full, or the folder not writable.
        """
        flat_kb = indexing.flat_rows * max(sizes.values()) * _FLOAT_BYTES // 1024
        config = edge.EdgeConfig(
            vectors=_params(sizes),
            sparse_vectors={WORDS: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
            hnsw_config=edge.HnswIndexConfig(indexing.hnsw.m, indexing.hnsw.ef_construct, _SCANNED_KB),
            quantization_config=_CODES.get(indexing.quantization, lambda: None)(),
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=max(1, flat_kb)),
        )
        engine = cls(_told(folder, lambda: edge.EdgeShard.create(str(folder), config)), folder)
        engine.write(edge.UpdateOperation.create_field_index(ORDER, _RANGES))
        engine.write(edge.UpdateOperation.create_field_index(TOKENS, edge.PayloadSchemaType.Keyword))
        return engine

    @classmethod
    def load(cls, folder: Path) -> "Engine":
        """Open a shard that is there; what was written before a kill is taken from its log.

        Raises:
            StoreError: It is not there, or damaged in a way that the engine notices.
        """
        return cls(_told(folder, lambda: edge.EdgeShard.load(str(folder))), folder)

    @classmethod
    def load_with(cls, folder: Path, sizes: Mapping[str, int]) -> "Engine":
        """Open a shard that has just got the last of these vectors, whole ones and their prefixes, and index them so.

        Raises:
            StoreError: As `load`.
        """
        config = edge.EdgeConfig(vectors=_params(sizes))
        return cls(_told(folder, lambda: edge.EdgeShard.load(str(folder), config)), folder)

    def index_numbers(self, keys: AbstractSet[str]) -> None:
        """See `Points.index_numbers`; while nobody else writes."""
        if self._numbers is None:
            schema = self.ask(lambda shard: shard.info().payload_schema)
            self._numbers = {key for key in schema if key.startswith(f"{NUMBERS}.")}
        for key in sorted(keys - self._numbers)[: MOST_INDEXED - len(self._numbers)]:
            self.write(edge.UpdateOperation.create_field_index(key, _RANGES))
            self._numbers.add(key)

    def write(self, *operations: edge.UpdateOperation) -> None:
        """Do each of these wholly or not at all, whenever the process is killed; durable when this returns."""
        for operation in operations:
            self.ask(lambda shard, operation=operation: shard.update(operation))
        self.ask(lambda shard: shard.flush())

    def ask(self, work: Callable[[edge.EdgeShard], Result]) -> Result:
        """What `work` returns.

        Raises:
            StoreError: The engine refused it, or gave up.
        """
        return _told(self.folder, lambda: work(self._shard))

    def optimize(self) -> None:
        """Index what is due, and give back the space of what was deleted. Takes minutes where that is much."""
        self.ask(lambda shard: shard.optimize())

    def close(self) -> None:
        """Write all and let go of the folder."""
        self.ask(lambda shard: shard.close())


def _params(sizes: Mapping[str, int]) -> dict[str, edge.EdgeVectorParams]:
    """Of named vectors; where some are prefixes, which are shorter, those alone get a graph."""
    prefixed = len(set(sizes.values())) > 1
    none = edge.HnswIndexConfig(0, 0, _SCANNED_KB)
    return {
        name: edge.EdgeVectorParams(
            size=size,
            distance=edge.Distance.Dot,
            hnsw_config=none if prefixed and size == max(sizes.values()) else None,
        )
        for name, size in sizes.items()
    }


def _told(folder: Path, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":  # all that the engine raises
            raise
        hint = "Is the disk full, or the folder not writable? If it is damaged, restore a copy."
        raise StoreError(f"{folder}: expected an answer of Qdrant Edge, found: {error!s:.500}. {hint}") from error
