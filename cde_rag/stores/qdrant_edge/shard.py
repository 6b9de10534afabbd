"""The engine: one shard in a folder, with its errors in our words. The only module that knows how it is opened."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import qdrant_edge as edge

from cde_rag.errors import StoreError
from cde_rag.stores.qdrant_base.metadata_paths import MOST_INDEXED, IndexKind
from cde_rag.stores.qdrant_edge.index import ALWAYS, SCHEMAS, EdgeIndexConfig, vector_params

Result = TypeVar("Result")


class EdgeShard:
    """The open shard in `folder`. Safe to use from threads; it can be searched while it is written to or optimized.

    Attributes:
        on_write: Called after each write.
    """

    def __init__(self, shard: edge.EdgeShard, folder: Path) -> None:
        self.on_write: Callable[[], None] = lambda: None
        self._shard = shard
        self._settled = set[str]()  # keys that need no further index
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, sizes: Mapping[str, int], indexing: EdgeIndexConfig) -> "EdgeShard":
        """Create a shard with named vectors, and the payload indexes for order and filters.

        Args:
            folder: Folder of the shard; must not exist.
            sizes: Lengths of the vectors, by name: full ones, then prefixes, if there are any.
            indexing: Index configuration of all its vectors.

        Raises:
            StoreError: The disk is full, or the folder not writable.
        """
        config = indexing.shard_config(sizes)
        engine = cls(_guarded(folder, lambda: edge.EdgeShard.create(str(folder), config)), folder)
        engine.create_indexes()
        return engine

    @classmethod
    def load(cls, folder: Path) -> "EdgeShard":
        """Open an existing shard; writes before a crash are recovered from its log.

        Raises:
            StoreError: It does not exist, or the engine reports damage.
        """
        return cls(_guarded(folder, lambda: edge.EdgeShard.load(str(folder))), folder)

    @classmethod
    def load_with(cls, folder: Path, sizes: Mapping[str, int]) -> "EdgeShard":
        """Open a shard to which the last of these vectors, full ones and prefixes, were just added, and index them.

        Raises:
            StoreError: As `load`.
        """
        config = edge.EdgeConfig(vectors=vector_params(sizes))
        return cls(_guarded(folder, lambda: edge.EdgeShard.load(str(folder), config)), folder)

    def create_indexes(self) -> None:
        """Create the payload indexes that order and filters need in any case."""
        self.write(*(edge.UpdateOperation.create_field_index(key, schema) for key, schema in ALWAYS.items()))

    def index(self, kinds: Mapping[str, IndexKind]) -> None:
        """Create payload indexes where there are none; the caller holds the write lock."""
        if wanted := {key for key, kind in kinds.items() if kind in SCHEMAS} - self._settled:
            there = self.indexed()
            due = [key for key in kinds if key in wanted and key not in there]
            for key in due[: max(0, MOST_INDEXED - len(there))]:
                self.write(edge.UpdateOperation.create_field_index(key, SCHEMAS[kinds[key]]))
            self._settled |= wanted  # those that are too many are not asked for again

    def indexed(self) -> dict[str, str]:
        """Return the kinds of payload indexes, by JSON path."""
        schema = self.call(lambda shard: shard.info().payload_schema)
        return {key: str(found.data_type).rpartition(".")[2].lower() for key, found in schema.items()}

    def write(self, *operations: edge.UpdateOperation) -> None:
        """Apply each operation atomically, also in a crash; durable when this returns."""
        for operation in operations:
            self.call(lambda shard, operation=operation: shard.update(operation))
        self.call(lambda shard: shard.flush())
        self.on_write()

    def call(self, work: Callable[[edge.EdgeShard], Result]) -> Result:
        """Call a function of the shard, and return its result.

        Raises:
            StoreError: The engine refused the operation, or failed.
        """
        return _guarded(self.folder, lambda: work(self._shard))

    def optimize(self) -> None:
        """Build due indexes, and free the space of deleted points. Takes minutes for large changes."""
        self.call(lambda shard: shard.optimize())

    def close(self) -> None:
        """Write all and let go of the folder."""
        self.call(lambda shard: shard.close())


def _guarded(folder: Path, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":  # all that the engine raises
            raise
        hint = "Is the disk full, or the folder not writable? If it is damaged, restore a copy."
        raise StoreError(f"{folder}: expected an answer of Qdrant Edge, found: {error!s:.500}. {hint}") from error
