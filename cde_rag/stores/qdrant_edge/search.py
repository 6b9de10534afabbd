"""Requests to the engine: selections in its classes, and searches."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import qdrant_edge as edge
from jaxtyping import Float32

from cde_rag.stores.qdrant_base.manifest import prefix_name
from cde_rag.stores.qdrant_base.metadata_paths import METADATA, json_paths, values
from cde_rag.stores.qdrant_base.selection import Selection
from cde_rag.stores.qdrant_base.words import WORDS, Sparse
from cde_rag.stores.qdrant_edge.index import FLAGS
from cde_rag.stores.quantization import prefix_candidates, prefixes

_OVERSAMPLING: Final = 4.0  # of codes, whose points are then scored by the vectors themselves


def nearest_requests(
    name: str,
    queries: Float32[np.ndarray, "queries dim"],
    limit: int,
    *,
    where: Selection,
    exact: bool,
    search_beam: int,
    prefix: int | None,
    payload: list[str] | None,
) -> list[edge.QueryRequest]:
    """Return a search for each query, for up to `limit` points by their vector of that name, or first by a prefix."""
    rescored = edge.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=_OVERSAMPLING)
    beam = max(search_beam, 2 * limit)
    params = edge.SearchParams(hnsw_ef=beam, exact=exact, quantization=rescored)
    firsts: list[list[edge.Prefetch]] = [[] for _ in queries]
    if prefix is not None and not exact:
        most, using = prefix_candidates(limit, prefix, queries.shape[1]), prefix_name(name, prefix)
        walked = edge.SearchParams(hnsw_ef=max(beam, most))
        for first, short in zip(firsts, prefixes(queries, prefix), strict=True):
            nearest = edge.Query.Nearest(short.tolist(), using=using)
            first.append(edge.Prefetch(most, query=nearest, filter=edge_filter(where), params=walked))
    return [
        edge.QueryRequest(
            limit,
            query=edge.Query.Nearest(query.tolist(), using=name),
            prefetches=first,
            filter=edge_filter(where),
            params=params,
            with_payload=True if payload is None else payload,
            with_vector=[name],
        )
        for query, first in zip(queries, firsts, strict=True)
    ]


def words_request(words: Sparse, limit: int, *, where: Selection, payload: list[str] | None) -> edge.QueryRequest:
    """Return the search for up to `limit` points by their terms.

    The IDF is computed over existing points; after a crash, some count twice until the engine is optimized.
    """
    there = edge.IdfParams(edge.Filter(must=[edge.HasVectorCondition(WORDS)]))
    return edge.QueryRequest(
        limit,
        query=edge.Query.Nearest(edge.SparseVector(words.indices, words.values), using=WORDS),
        filter=edge_filter(where),
        params=edge.SearchParams(idf=there),
        with_payload=True if payload is None else payload,
    )


def given_vectors(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Convert named vectors to the engine's classes."""
    return {
        name: edge.SparseVector(one.indices, one.values) if isinstance(one, Sparse) else one
        for name, one in vectors.items()
    }


def flags(payload: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the booleans of a payload's metadata, by which the engine finds them."""
    booleans = {(names, value) for names, value in values(payload[METADATA]) if isinstance(value, bool)}
    return {FLAGS: sorted(_flag(path, value) for names, value in booleans for path in json_paths(METADATA, names)[:1])}


def _flag(path: str, value: object) -> str:
    return f"{path}={value}".lower()


def edge_filter(where: Selection) -> edge.Filter:
    """Convert a filter to the engine's classes."""
    must, should, must_not = (list(map(_condition, where.get(name, ()))) for name in ("must", "should", "must_not"))
    return edge.Filter(must=must or None, should=should or None, must_not=must_not or None)


def _condition(part: Selection) -> Any:
    match part:
        case {"key": key, "match": {"any": texts}}:
            return edge.FieldCondition(key, match=edge.MatchAny(texts))
        case {"key": key, "match": {"value": wanted}}:
            return edge.FieldCondition(FLAGS, match=edge.MatchAny([_flag(key, wanted)]))
        case {"key": key, "range": bounds}:
            dates = any(isinstance(bound, str) for bound in bounds.values())
            return edge.FieldCondition(key, range=edge.RangeDateTime(**bounds) if dates else edge.RangeFloat(**bounds))
        case {"is_empty": {"key": key}}:
            return edge.IsEmptyCondition(key)
        case {"is_null": {"key": key}}:
            return edge.IsNullCondition(key)
        case {"has_id": ids}:
            return edge.HasIdCondition(set(ids))
        case {"has_vector": vector}:
            return edge.HasVectorCondition(vector)
        case _:
            return edge_filter(part)
