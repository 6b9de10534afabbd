"""The searches of a collection."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
from jaxtyping import Float32

from cde_rag.diversity import marginal_relevance
from cde_rag.embedding import Embedder
from cde_rag.following import ActiveEmbedder
from cde_rag.observability import Attributes, operation, short
from cde_rag.stores.base import Hit, Store
from cde_rag.texts import check_positive, reject_str


class Searchable:
    """A store and the embedder of its active space, as far as they are searched. Thread-safe.

    Args:
        store: Holds a collection.
        active: Its embedder.
    """

    def __init__(self, store: Store, active: ActiveEmbedder) -> None:
        self.store = store
        self._active = active

    def search(self, query: str, k: int = 10, *, where: Mapping[str, Any] | None = None) -> list[Hit]:
        """The `k` best hits for one query; see `search_batch`."""
        if not isinstance(cast(object, query), str):
            raise TypeError("search takes one query, a str; for several there is search_batch([…])")
        return self.search_batch([query], k, where=where)[0]

    def search_batch(
        self, queries: Sequence[str], k: int = 10, *, where: Mapping[str, Any] | None = None
    ) -> list[list[Hit]]:
        """The best hits for each query.

        Args:
            queries: Texts that are not blank.
            k: At most so many hits for each; there are fewer where fewer records match.
            where: A filter over the metadata; see `cde_rag.stores.filters`.

        Raises:
            ContextMismatchError: The collection was moved to another model, which is not here under its name.
            CorpusError: A query is blank or no valid Unicode.
            FilterError: A filter outside the grammar.
            ValueError: `k` is below 1.
        """
        reject_str(queries, call="search_batch", what="queries")
        check_positive(k, "k")
        if not queries:
            return []
        with self._told(len(queries), k, where) as note:
            found = self._active.use(
                lambda embedder: self.store.search(
                    embedder.embed_queries(queries), k, fingerprint=embedder.fingerprint, where=where
                )
            )
            note({"hits": sum(map(len, found))})
            return found

    def search_vectors(
        self,
        vectors: Float32[np.ndarray, "queries dim"],
        k: int = 10,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
    ) -> list[list[Hit]]:
        """As `search_batch`, for queries that are embedded already.

        Args:
            vectors: From `embedder.embed_queries`, or from `vectors` to find what is like a record.
            k: As in `search_batch`.
            fingerprint: Of the space in which they are: the embedder's.
            where: As in `search_batch`.

        Raises:
            ContextMismatchError: Another space is active.
            ValueError: `k` is below 1, or the vectors are not float32 of unit norm.
        """
        check_positive(k, "k")
        with self._told(len(vectors), k, where) as note:
            found = self.store.search(vectors, k, fingerprint=fingerprint, where=where)
            note({"hits": sum(map(len, found))})
            return found

    def search_diverse(
        self,
        query: str,
        k: int = 10,
        *,
        candidates: int = 50,
        diversity: float = 0.5,
        where: Mapping[str, Any] | None = None,
    ) -> list[Hit]:
        """Hits that are near the query and unlike each other, by maximal marginal relevance; the nearest comes first.

        Args:
            query: As in `search`, like `k` and `where`.
            k: At most so many hits.
            candidates: Hits to choose from.
            diversity: From 0 (as `search`) to 1 (unlikeness to the hits before alone).
            where: A filter over the metadata.

        Raises:
            ValueError: `k` or `candidates` is below 1, or `diversity` outside [0, 1].
        """
        check_positive(k, "k")
        check_positive(candidates, "candidates")

        def search(embedder: Embedder) -> list[Hit]:
            vector = embedder.embed_queries([query])
            space = embedder.fingerprint
            (hits,) = self.store.search(vector, max(k, candidates), fingerprint=space, where=where)
            near = self.store.vectors([hit.id for hit in hits], fingerprint=space)
            chosen = marginal_relevance(vector[0], near, k, diversity=diversity)
            return [hits[position] for position in chosen]

        with self._told(1, k, where) as note:
            found = self._active.use(search)
            note({"hits": len(found)})
            return found

    def _told(
        self, queries: int, k: int, where: Mapping[str, Any] | None
    ) -> AbstractContextManager[Callable[[Attributes], None]]:
        space = short(self._active.last.fingerprint)
        return operation(
            "cde_rag.search", {"fingerprint": space, "queries": queries, "k": k, "filtered": where is not None}
        )
