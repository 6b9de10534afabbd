"""Indexes of a shard: graphs and codes of its named vectors, and indexes of its payload."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import qdrant_edge as edge

from cde_rag.stores.qdrant_base.index import Hnsw
from cde_rag.stores.qdrant_base.payload import FILTERS, ORDER
from cde_rag.stores.qdrant_base.words import WORDS

_FLOAT_BYTES: Final = 4
_SCANNED_KB: Final = 10_000  # of vectors that pass a filter; up to that many are searched exactly: Qdrant's default

FLAGS: Final = "cde_flags"  # booleans of the metadata, as path=true and path=false: the engine cannot match booleans
ALWAYS: Final = {
    ORDER: edge.IntegerIndexParams(lookup=False, range=True),
    FILTERS: edge.PayloadSchemaType.Keyword,
    FLAGS: edge.PayloadSchemaType.Keyword,
}
SCHEMAS: Final = {
    "keyword": edge.PayloadSchemaType.Keyword,
    "float": edge.PayloadSchemaType.Float,
    "datetime": edge.PayloadSchemaType.Datetime,
}
_CODES: Final[dict[str | None, Callable[[], Any]]] = {
    "int8": lambda: edge.ScalarQuantizationConfig(edge.ScalarType.Int8),
    "binary": lambda: edge.BinaryQuantizationConfig(query_encoding=edge.BinaryQuantizationQueryEncoding.Scalar8Bits),
}


@dataclass(frozen=True, slots=True)
class EdgeIndexConfig:
    """Index configuration of a new shard.

    Attributes:
        flat_rows: Approximate number of vectors up to which there is no index.
        quantization: See `cde_rag.stores.quantization`.
        hnsw: Parameters of the graph.
    """

    flat_rows: int
    quantization: str | None
    hnsw: Hnsw

    def shard_config(self, sizes: Mapping[str, int]) -> edge.EdgeConfig:
        """Return the configuration of a shard with named vectors of these lengths, full ones and then prefixes."""
        flat_kb = self.flat_rows * max(sizes.values()) * _FLOAT_BYTES // 1024
        return edge.EdgeConfig(
            vectors=vector_params(sizes),
            sparse_vectors={WORDS: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
            hnsw_config=edge.HnswIndexConfig(self.hnsw.m, self.hnsw.ef_construct, _SCANNED_KB),
            quantization_config=_CODES.get(self.quantization, lambda: None)(),
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=max(1, flat_kb)),
        )


def vector_params(sizes: Mapping[str, int]) -> dict[str, edge.EdgeVectorParams]:
    """Return the parameters of named vectors; if there are prefixes, which are shorter, only these get a graph."""
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
