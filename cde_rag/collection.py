"""A collection: an embedder and a store that hold one vector space together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float32

from cde_rag import __version__
from cde_rag.diversity import marginal_relevance
from cde_rag.embedding import Embedder
from cde_rag.following import ActiveEmbedder, loaded, stored_context
from cde_rag.generations import Recontextualization, roll_back
from cde_rag.inspection import Inspection, inspect, verify
from cde_rag.intake import check_parent_key, from_columns
from cde_rag.model import CDEModel
from cde_rag.stores.base import Damage, Hit, Record, Store
from cde_rag.texts import check_positive, reject_str
from cde_rag.writing import AddReport, Progress, Writer, rows


class Collection:
    """Records that are embedded in one context, kept in a store and searched. Thread-safe for reading and adding.

    With a `parent_key`, records with the same `metadata[parent_key]` are the passages of one parent, in order of
    insertion, and each is embedded given its siblings. Where the passages of a parent change, those that have other
    siblings now are embedded anew. (Two processes that change one parent at the same time may miss each other's
    siblings; adding the parent again mends that.)

    Args:
        store: Holds a collection already; see `create` and `open`.
        embedder: Of the vector space that is in the store.

    Raises:
        ContextMismatchError: The embedder is of another vector space.
        StoreError: There is no collection in the store.
    """

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._active = ActiveEmbedder(store, embedder)
        self.store = store
        self.parent_key: str | None = store.manifest().settings["parent_key"]
        self._writer = Writer(store, self._active, self.parent_key)

    @property
    def embedder(self) -> Embedder:
        """Of the vector space that is active now."""
        return self._active.embedder

    @classmethod
    def create(cls, store: Store, embedder: Embedder, *, parent_key: str | None = None) -> "Collection":
        """Make an empty collection in an empty store.

        Args:
            store: Where there is no collection yet.
            embedder: A ContextualEmbedder, whose context is stored with the vectors, or a PlainEmbedder.
            parent_key: The top-level metadata key that names a record's parent.

        Raises:
            StoreError: There is a collection already, or the place is not writable.
            ValueError: A `parent_key` that filters cannot name, or for a model that reads no siblings.
        """
        check_parent_key(parent_key, siblings=embedder.max_siblings)
        store.create(
            dim=embedder.dim,
            fingerprint=embedder.fingerprint,
            context=embedder.context.to_bytes(),
            settings={
                "parent_key": parent_key,
                "model": embedder.context.identity.name,
                "library_version": __version__,
            },
        )
        return cls(store, embedder)

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        model: str | Path | CDEModel | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> "Collection":
        """Open what `create` made: context and model come back with the vectors.

        Args:
            store: Where the collection is.
            model: A folder or model in place of the name that is stored with the collection.
            device: See CDEModel.
            dtype: See CDEModel.

        Raises:
            ContextFormatError: The stored context is damaged, or of a newer format.
            ContextMismatchError: The model has other weights than the one that made the vectors.
            ModelError: There is no model of the stored name here.
            StoreError: There is no collection in the store, or it is damaged.
        """
        return cls(store, loaded(stored_context(store), model=model, device=device, dtype=dtype))

    def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str] | None = None,
        metadata: Iterable[Mapping[str, Any]] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AddReport:
        """Add texts, or replace those of the same id. Streams: any iterable, chunk by chunk.

        A repeated call finishes what an interrupted one began; what is there already costs no work.

        Args:
            texts: What is embedded (behind its title) and found.
            ids: Unique; a digest of title, text and parent by default, so that adding twice is adding once.
            titles: Embedded before each text.
            metadata: JSON objects; what filters look at.
            on_progress: Called after each chunk is written.

        Raises:
            CorpusError: A record cannot be used, the columns are not equally long, or an id comes twice with different
                texts. Nothing of its chunk is written; the chunks before stay.
            TypeError: One `str` where a list is due.

        Warns:
            TruncationWarning: Records were longer than the model reads, with their number.
        """
        records = from_columns(texts, ids=ids, titles=titles, metadata=metadata, parent_key=self.parent_key)
        return self._writer.add(records, len(texts) if isinstance(texts, Sized) else None, on_progress)

    def add_records(
        self, records: Iterable[Record], *, on_progress: Callable[[Progress], None] | None = None
    ) -> AddReport:
        """Add records, or replace those of the same id; streams, raises and warns like `add`."""
        return self._writer.add(records, len(records) if isinstance(records, Sized) else None, on_progress)

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
        return self._active.use(
            lambda embedder: self.store.search(
                embedder.embed_queries(queries), k, fingerprint=embedder.fingerprint, where=where
            )
        )

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
        return self.store.search(vectors, k, fingerprint=fingerprint, where=where)

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

        return self._active.use(search)

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "ids dim"]:
        """The vectors of the given ids, unit norm.

        Raises:
            KeyError: There is no record of such an id.
        """
        reject_str(ids, call="vectors", what="ids")
        return self.store.vectors(ids, fingerprint=self.embedder.fingerprint)

    def get(self, ids: Sequence[str]) -> list[Record]:
        """The records of those ids that exist, in the order asked."""
        reject_str(ids, call="get", what="ids")
        return [row.record for row in self.store.get(ids)]

    def delete(self, ids: Sequence[str] | None = None, *, where: Mapping[str, Any] | None = None) -> int:
        """Remove records by id or by filter, and embed anew those whose siblings went; returns how many there were.

        Args:
            ids: Unknown ones are passed over.
            where: A filter over the metadata.

        Raises:
            FilterError: A filter outside the grammar.
            ValueError: Not exactly one of `ids` and `where`.
        """
        if (ids is None) == (where is None):
            raise ValueError("delete takes either ids or where=…, exactly one of them")
        if ids is not None:
            reject_str(ids, call="delete", what="ids")
        return self._writer.delete(ids, where)

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """How many records match the filter; all without one."""
        return self.store.count(where)

    def scroll(self, where: Mapping[str, Any] | None = None) -> Iterator[Record]:
        """All records that match the filter, in order of insertion; those that were given out may be deleted."""
        return (row.record for row in rows(self.store, where))

    def inspect(self) -> Inspection:
        """What the collection is."""
        return inspect(self.store)

    def rollback(self, *, on_progress: Callable[[Progress], None] | None = None) -> Recontextualization:
        """Go back to the Context before the last `recontextualize`; interrupted, the same call goes on.

        What came since is embedded in it first; `recontextualize` with the same arguments goes forward again.

        Raises:
            ContextMismatchError: It was made by another model, which is not here under its name.
            StoreError: There is none, or another run is at work.
        """
        return roll_back(self.store, self.embedder, self.parent_key, on_progress)

    def verify(self) -> list[Damage]:
        """Read everything and compare it with its checksums; an empty list means all is well."""
        return verify(self.store)

    def close(self) -> None:
        """Release the store; the object is not used after that."""
        self.store.close()

    def __enter__(self) -> "Collection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
