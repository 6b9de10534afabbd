"""The searches of a collection."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_positive
from cde_rag.embedders.active import ActiveEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.search.fusion import CANDIDATES, WAYS, check_fusion
from cde_rag.search.mmr import marginal_relevance
from cde_rag.search.retrievers import BM25Retriever, DenseRetriever, HybridRetriever
from cde_rag.search.searcher import Searcher
from cde_rag.stores.base import Hit, Store

_TRIES: Final = 8  # of a search whose hits are deleted while it reads their vectors


class Searchable(Searcher):
    """Read-only search API over a store and its active embedder. Thread-safe.

    Args:
        store: Holds a collection.
        active: Embedder of its active space.
        parent_key: As in `Collection.create`.
    """

    def __init__(self, store: Store, active: ActiveEmbedder, parent_key: str | None) -> None:
        super().__init__(store, active, parent_key, DenseRetriever(store, active))

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        by: str = "vectors",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[Hit]:
        """The `k` best hits for one query.

        Args:
            query: A text that is not blank.
            k: Hits at most; there are fewer where fewer records match.
            by: "vectors"; "words", as `lexical()`; or "hybrid", both, as `hybrid()`.
            where: A filter over the metadata; see `cde_rag.stores.filters`.
            score_threshold: What a hit's score reaches, on the scale of this way of ranking.
            offset: Hits that are passed over: the next page begins at `offset + k`; see `search_batch`.

        Raises:
            ContextMismatchError: The collection was moved to another model, which is not here under its name.
            CorpusError: The query is blank or no valid Unicode.
            FilterError: A filter outside the grammar.
            StoreError: By words, where the collection was made without them; `index_texts` adds them.
            ValueError: `k` is below 1, `offset` below 0, `score_threshold` no number, or `by` another word.
        """
        if by == "vectors":
            return super().search(query, k, where=where, score_threshold=score_threshold, offset=offset)
        return self.searcher(by).search(query, k, where=where, score_threshold=score_threshold, offset=offset)

    def searcher(self, by: str) -> Searcher:
        """All searches, ranked as named: itself, `lexical()` or `hybrid()`.

        Raises:
            ValueError: Another name.
        """
        if by not in WAYS:
            raise ValueError(f"Expected one of {', '.join(WAYS)} in by=…, found {by!r}. Name one of them.")
        if by == "vectors":
            return self
        return self.lexical() if by == "words" else self.hybrid()

    def hybrid(self, *, candidates: int = CANDIDATES, fusion: str = "convex", weight: float | None = None) -> Searcher:
        """The same searches, ranked by vectors and by words together.

        Words find names, codes and rare terms that vectors miss, and need no model. A hit has a score from 0 to 1 by
        default; 1 is the best hit by vectors and by words.

        Args:
            candidates: Hits of either ranking that are fused, however few are asked for, so that pages fit together;
                there are no others: at most twice as many hits.
            fusion: "convex", the weighted sum of normalised scores, or "reciprocal_ranks"; see
                `cde_rag.search.fusion.fuse`.
            weight: Of the vectors, from 0 (words alone) to 1 (vectors alone); 0.65 by default, 0.5 for ranks.

        Raises:
            ValueError: `candidates` is below 1, another fusion, or a weight outside [0, 1].
        """
        check_positive(candidates, "candidates")
        weight = check_fusion(fusion, weight)
        both = HybridRetriever(self._ranker, BM25Retriever(self.store), candidates, fusion, weight)
        return Searcher(self.store, self._active, self.parent_key, both)

    def lexical(self) -> Searcher:
        """Return a search by BM25 alone. Records that share no term with a query are not found.

        In languages without spaces between words, such as Chinese, only complete phrases are found.
        """
        return Searcher(self.store, self._active, self.parent_key, BM25Retriever(self.store))

    def search_hybrid(
        self, query: str, k: int = 10, *, where: Mapping[str, Any] | None = None, offset: int = 0
    ) -> list[Hit]:
        """Return the `k` best hits of a hybrid search: `hybrid().search(…)`, with its errors.

        Args:
            query: As in `search`, like `where` and `offset`.
            k: At most so many hits; there are at most 200, the 100 best of either ranking.
            where: A filter over the metadata.
            offset: Hits that are passed over.

        Raises:
            StoreError: The collection was made without a text index; `index_texts` adds it.
        """
        return self.hybrid().search(query, k, where=where, offset=offset)

    def index_texts(self) -> None:
        """Rebuild the text index (BM25) from all records, without embedding; for collections made without one.

        Raises:
            StoreError: This store cannot have a text index here.
        """
        self.store.index_texts()

    def search_vectors(
        self,
        vectors: Float32[np.ndarray, "queries dim"],
        k: int = 10,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
    ) -> list[list[Hit]]:
        """Search by query vectors, like `search_batch` by queries.

        Args:
            vectors: From `embedder.embed_queries`, or from `vectors` to find records similar to a record.
            k: As in `search_batch`.
            fingerprint: Fingerprint of their space, the embedder's.
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
        """Search with maximal marginal relevance: hits near the query and unlike each other, the nearest first.

        Args:
            query: As in `search`, like `k` and `where`.
            k: Maximum number of hits.
            candidates: Number of hits to choose from.
            diversity: From 0 (relevance only, as `search`) to 1 (diversity only).
            where: A filter over the metadata.

        Raises:
            StoreError: Hits were deleted during every attempt.
            ValueError: `k` or `candidates` is below 1, or `diversity` outside [0, 1].
        """
        check_positive(k, "k")
        check_positive(candidates, "candidates")

        def search(embedder: Embedder) -> list[Hit]:
            vector = embedder.embed_queries([query])
            space = embedder.fingerprint
            for _ in range(_TRIES):
                (hits,) = self.store.search(vector, max(k, candidates), fingerprint=space, where=where)
                try:
                    near = self.store.vectors([hit.id for hit in hits], fingerprint=space)
                except KeyError:  # one was deleted meanwhile
                    continue
                chosen = marginal_relevance(vector[0], near, k, diversity=diversity)
                return [hits[position] for position in chosen]
            raise StoreError(
                f"Expected hits that stay for one search, found one of them deleted in each of {_TRIES} tries. Search "
                "again, or for fewer candidates."
            )

        with self._told(1, k, where) as note:
            found = self._active.use(search)
            note({"hits": len(found)})
            return found
