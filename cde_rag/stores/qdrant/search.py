"""Requests to Qdrant: selections in its classes, and searches."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from qdrant_client import models

from cde_rag.stores.qdrant_base.manifest import prefix_name
from cde_rag.stores.qdrant_base.words import WORDS, Sparse
from cde_rag.stores.quantization import prefix_candidates, prefixes

_OVERSAMPLING: Final = 4.0  # of codes, whose points are then scored by the vectors themselves


def search_params(limit: int, *, exact: bool, search_beam: int | None) -> models.SearchParams:
    """Return search parameters for `limit` points: exact, or HNSW with at least that many candidates."""
    return models.SearchParams(
        exact=exact,
        hnsw_ef=None if search_beam is None else max(search_beam, limit),
        quantization=models.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=_OVERSAMPLING),
    )


def nearest_request(
    name: str,
    query: Float32[np.ndarray, "dim"],
    limit: int,
    *,
    where: models.Filter | None,
    params: models.SearchParams | None,
    prefix: int | None,
    payload: list[str] | None,
) -> models.QueryRequest:
    """Return the search for up to `limit` points by their vector of that name, or first by a prefix of it."""
    first = None
    if prefix is not None:
        (short,) = prefixes(query[None], prefix)
        most, using = prefix_candidates(limit, prefix, len(query)), prefix_name(name, prefix)
        first = models.Prefetch(query=short.tolist(), using=using, filter=where, params=params, limit=most)
    return models.QueryRequest(
        query=query.tolist(),
        using=name,
        prefetch=first,
        filter=where,
        params=params,
        limit=limit,
        with_payload=True if payload is None else payload,
        with_vector=[name],
    )


def words_request(
    words: Sparse, limit: int, *, where: models.Filter | None, payload: list[str] | None
) -> models.QueryRequest:
    """Return the search for up to `limit` points by their terms.

    The IDF is computed over existing points; by default Qdrant also counts deleted ones until it optimizes a segment.
    """
    there = models.Filter(must=[models.HasVectorCondition(has_vector=WORDS)])
    return models.QueryRequest(
        query=_sparse_vector(words),
        using=WORDS,
        filter=where,
        params=models.SearchParams(idf=models.IdfCorpusParams(corpus=there)),
        limit=limit,
        with_payload=True if payload is None else payload,
    )


def given_vectors(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Convert named vectors to Qdrant's classes."""
    return {name: _sparse_vector(one) if isinstance(one, Sparse) else one for name, one in vectors.items()}


def _sparse_vector(vector: Sparse) -> models.SparseVector:
    """Convert a sparse vector to Qdrant's class."""
    return models.SparseVector(indices=vector.indices, values=vector.values)
