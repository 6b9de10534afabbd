"""Canary: queries with known results, searched in a new generation by vectors before it becomes active."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cde_rag._validation import check_ids
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CanaryError, CorpusError
from cde_rag.stores.store import Store


@dataclass(frozen=True, slots=True)
class Canary:
    """Queries with known results, which must still be found after a switch.

    Both generations are searched by vectors, whatever ranking the collection's searches have: BM25 finds the same in
    both, and would hide what the new vectors lose.

    Attributes:
        relevant: Ids of the relevant documents of each query, one of which should be found.
        k: Number of hits by vectors to look in.
        may_lose: Maximum number of queries that succeed in the active context and fail in the new one.

    Raises:
        TypeError: One `str` in place of a list of ids.
        ValueError: There are no queries, or one without ids; `k` is below 1 or `may_lose` below 0.
    """

    relevant: Mapping[str, Collection[str]]
    k: int = 10
    may_lose: int = 0

    def __post_init__(self) -> None:
        if not self.relevant or not all(self.relevant.values()):
            raise ValueError("A canary needs queries, and for each the ids of documents that it should find.")
        for ids in self.relevant.values():
            check_ids(ids, call="Canary")
        if self.k < 1 or self.may_lose < 0:
            raise ValueError(
                f"Expected k of at least 1 and may_lose of at least 0, found {self.k} and {self.may_lose}."
            )

    def check_known(self, store: Store) -> None:
        """Refuse queries none of whose documents is in the store: they could not be lost.

        Raises:
            CorpusError: There is one.
        """
        for query, ids in self.relevant.items():
            if not store.get(list(ids)):
                raise CorpusError(
                    f"Expected documents of the collection for the canary query {query!r:.80}, found none with the ids "
                    f"{', '.join(map(repr, list(ids)[:3]))}. `cde-rag search` prints ids; leave deleted ones out."
                )

    def lost(self, store: Store, generation: int, serving: Embedder, new: Embedder) -> list[str]:
        """Return the queries that find one of their documents in the active generation and none in another.

        Args:
            store: Holds a collection.
            generation: The other generation; rows without a vector in it yet are not found.
            serving: Embedder of the active generation.
            new: Embedder of the other generation.
        """
        now, then = self._found(store, None, serving), self._found(store, generation, new)
        return [query for query, before, after in zip(self.relevant, now, then, strict=True) if before and not after]

    def check(self, store: Store, generation: int, serving: Embedder, new: Embedder) -> None:
        """Refuse a generation in which too many queries are lost; arguments as for `lost`.

        Raises:
            CanaryError: It is one.
        """
        lost = self.lost(store, generation, serving, new)
        if len(lost) > self.may_lose:
            raise CanaryError(
                f"Expected at most {self.may_lose} of {len(self.relevant)} canary queries to lose their documents, "
                f"found {len(lost)}, such as {lost[0]!r:.80}. The former context still serves. Try another seed, or "
                "switch all the same with the same call without the canary."
            )

    def _found(self, store: Store, generation: int | None, embedder: Embedder) -> list[bool]:
        queries = embedder.embed_queries(list(self.relevant))
        found = store.search(queries, self.k, fingerprint=embedder.fingerprint, generation=generation)
        return [
            any(hit.id in ids for hit in hits)
            for hits, ids in zip(found, map(set, self.relevant.values()), strict=True)
        ]
