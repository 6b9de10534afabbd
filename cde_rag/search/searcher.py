"""Searches of a collection by any ranker: hits, groups and parents."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from cde_rag._telemetry import Attributes, operation, short
from cde_rag._validation import check_list, check_positive, check_texts, check_whole, named_keywords
from cde_rag.embedders.active import stored_context
from cde_rag.errors import CorpusError, UnknownFieldWarning, is_left_out, warn_user
from cde_rag.field_names import names_of, value_at
from cde_rag.models.rerankers import named_reranker
from cde_rag.records import Hit, Hits, check_key, parent_of
from cde_rag.search.grouping import Group, Grouping, ParentHit, Value
from cde_rag.search.retrievers import BM25Retriever, Ranker, Rerank, Reranked
from cde_rag.stores.base import ProcessBound
from cde_rag.stores.store import Store

RERANKED: Final = 50  # hits of a query that are reranked
COUNTED: Final = 10_000  # records whose fields are counted
NAMED: Final = 10  # fields that are named
CHECKED: Final = 64  # fields of filters that are looked for, where a filter finds nothing


class Searcher(ProcessBound):
    """Search of a collection by one ranker. Thread-safe.

    Args:
        store: Store of the collection.
        parent_key: Metadata key that names a record's parent; None if the collection has no parents.
        ranker: Ranker of its records.
        space: Returns the fingerprint of the active vector space, for telemetry.
    """

    def __init__(self, store: Store, parent_key: str | None, ranker: Ranker, space: Callable[[], str]) -> None:
        self.store = store
        self.parent_key = parent_key
        self._ranker = ranker
        self._space = space
        self._checked: set[str] = set()  # fields of filters that were looked for
        self._rerankers: dict[str, Rerank] = {}  # by the names that were given

    def with_ranker(self, ranker: Ranker) -> "Searcher":
        """Return the search of the same collection by another ranker."""
        other = Searcher(self.store, self.parent_key, ranker, self._space)
        other._checked, other._rerankers = self._checked, self._rerankers
        return other

    @named_keywords
    def reranked(
        self, rerank: Rerank | str | Path, *, candidates: int = RERANKED, budget_ms: int | None = None
    ) -> "Searcher":
        """Return a search whose best hits are reranked, for example by a cross-encoder.

        Args:
            rerank: A name as in `cde_rag.models.rerankers.named_reranker`, such as
                "cross-encoder/ms-marco-MiniLM-L6-v2", loaded once for a collection; or a function from pairs of a
                query and a text (title and text) to a score for each, higher is better, such as `CrossEncoder.predict`
                of sentence-transformers.
            candidates: Number of hits to rerank per query; others are never returned.
            budget_ms: Milliseconds for each query, after which no more candidates are scored; those without a score
                are left out, but for the first `k`, of which there may be fewer groups. None: all are scored.

        Raises:
            MissingExtraError: A package that a named reranker needs is not installed.
            ModelError: There is no reranker of that name.
            ValueError: `candidates` is below 1, or `budget_ms` below 0.
        """
        candidates = check_positive(candidates, "candidates")
        budget_s = None if budget_ms is None else check_whole(budget_ms, "budget_ms", least=0) / 1000
        if isinstance(rerank, str | Path):
            name = str(rerank)
            if name not in self._rerankers:
                self._rerankers[name] = named_reranker(name)
            rerank = self._rerankers[name]
        return self.with_ranker(Reranked(self._ranker, rerank, candidates, budget_s))

    @named_keywords
    def search(
        self,
        query: str,
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[Hit]:
        """Search for one query; see `search_batch` for arguments and errors."""
        k, offset = _check_query(query, k, score_threshold, offset)
        return self.traced(
            lambda: _page_of(self._ranker.best([query], offset + k, where)[0], offset, score_threshold), k, where
        )

    @named_keywords
    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[list[Hit]]:
        """Return the best hits for each query.

        Args:
            queries: Texts that are not blank.
            k: Maximum number of hits per query.
            where: A filter over the metadata; see `cde_rag.stores.filters`.
            score_threshold: Minimum score of a hit, on the scale of this ranking.
            offset: Number of hits to skip: the next page begins at `offset + k`. Pages of an unchanged collection are
                consistent if it is searched exactly; the cost of a page grows with its offset.

        Raises:
            ContextMismatchError: The collection was moved to another model, which cannot be found under its name.
            CorpusError: A query is blank or no valid Unicode.
            FilterError: A filter is outside the grammar.
            ValueError: `k` is below 1, `offset` below 0, or `score_threshold` no number.

        Warns:
            UnknownFieldWarning: There are no hits, and no record has a field that the filter names; once for a field.
        """
        check_list(queries, call="search_batch", what="queries")
        k, offset = _check_page(k, score_threshold, offset)
        check_texts(queries)
        if not queries:
            return []
        with self._traced(len(queries), k, where) as note:
            ranked = self._ranker.best(queries, offset + k, where)
            found = [_page_of(hits, offset, score_threshold) for hits in ranked]
            note({"hits": sum(map(len, found))})
            self._warn_of_fields(where, found=sum(map(len, found)))
            return found

    @named_keywords
    def search_groups(
        self,
        query: str,
        k: int = 10,
        *,
        group_by: str,
        group_size: int = 3,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[Group]:
        """Group hits by a metadata key, and return the `k` groups with the best hits.

        Args:
            query: Text that is not blank.
            k: Maximum number of groups.
            group_by: Name of a metadata field, as in a filter: `author.name` is `name` in `author`, or a key with a
                dot. Records that lack it, or have null, several values, a list or an object there, are in no group.
            group_size: Maximum number of hits per group.
            where: A filter over the metadata.
            score_threshold: Minimum score of a hit, on the scale of this ranking.
            offset: Number of groups to skip.

        Raises:
            ValueError: An argument is invalid as in `search_batch`, `group_by` is empty or one of and, or, not, or
                `group_size` is below 1.
        """
        grouping = Grouping(group_by, group_size, alone=False, where=where, score_threshold=score_threshold)
        groups = self._groups(query, k, grouping, offset)
        return [Group(cast(Value, value_at(hits[0].metadata, group_by)), hits) for hits in groups]

    @named_keywords
    def search_parents(
        self,
        query: str,
        k: int = 10,
        *,
        group_size: int = 3,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[ParentHit]:
        """Return the parents with the best passages, each with all its passages; a record without parent is alone.

        Args:
            query: Text that is not blank.
            k: Maximum number of parents.
            group_size: Maximum number of hits per parent; its passages are all returned.
            where: A filter over the metadata of the hits.
            score_threshold: Minimum score of a hit, on the scale of this ranking.
            offset: Number of parents to skip.

        Raises:
            ValueError: An argument is invalid as in `search_batch`, `group_size` is below 1, or the collection has no
                `parent_key`.
        """
        if self.parent_key is None:
            hint = "Make the collection with parent_key=…, or use search_groups."
            raise ValueError(f"search_parents needs a collection with a parent_key, found one without. {hint}")
        grouping = Grouping(self.parent_key, group_size, alone=True, where=where, score_threshold=score_threshold)
        return [self._parent(hits, self.parent_key) for hits in self._groups(query, k, grouping, offset)]

    def _groups(self, query: str, k: int, grouping: Grouping, offset: int) -> list[list[Hit]]:
        if not isinstance(cast(object, query), str):
            raise TypeError(f"groups are searched for one query, a str; found {type(query).__name__}")
        k, offset = _check_page(k, grouping.score_threshold, offset)
        check_positive(grouping.size, "group_size")
        check_key(grouping.key, "group_by")
        _check_not_blank(query)

        ranker = self._ranker
        if isinstance(ranker, Reranked):  # groups are made of all candidates: a budget would score every one
            ranker = replace(ranker, least=offset + k)

        def best(limit: int, where: Mapping[str, Any] | None) -> list[Hit]:
            return ranker.best([query], limit, where)[0]

        with self._traced(1, k, grouping.where) as note:
            groups = grouping.best(best, offset + k, self._ranker.depth)[offset:]
            note({"hits": sum(map(len, groups))})
            self._warn_of_fields(grouping.where, found=len(groups))
            return groups

    def _parent(self, hits: list[Hit], parent_key: str) -> ParentHit:
        value = parent_of(hits[0], parent_key)
        if value is None:
            return ParentHit(None, hits, [row.record for row in self.store.get([hits[0].id])])
        of_parent = (row.record for row in self.store.scroll(where={parent_key: value}))
        passages = [record for record in of_parent if parent_of(record, parent_key) == value]
        return ParentHit(value, hits, passages)

    def _warn_of_fields(self, where: Mapping[str, Any] | None, *, found: int) -> None:
        """Warn of a filter's fields that no record has, where it found nothing in a collection that has records.

        Each field is looked for once, since that reads all records where none has it.
        """
        if found or not where or len(self._checked) >= CHECKED or is_left_out(UnknownFieldWarning):
            return
        fields = set(fields_of(where)) - self._checked
        self._checked |= fields
        for sentence in unknown_fields(self.store, fields):
            warn_user(sentence, UnknownFieldWarning)

    def traced(self, search: Callable[[], list[Hit]], k: int, where: Mapping[str, Any] | None) -> list[Hit]:
        """Run a search for one query, with the telemetry and the warnings of this class.

        Args:
            search: Returns the hits.
            k: Maximum number of hits.
            where: Filter of the search.
        """
        with self._traced(1, k, where) as note:
            hits = search()
            note({"hits": len(hits)})
            self._warn_of_fields(where, found=len(hits))
            return hits

    def _traced(
        self, queries: int, k: int, where: Mapping[str, Any] | None
    ) -> AbstractContextManager[Callable[[Attributes], None]]:
        space = short(self._space())
        return operation(
            "cde_rag.search", {"fingerprint": space, "queries": queries, "k": k, "filtered": where is not None}
        )


def unknown_fields(store: Store, fields: Iterable[str]) -> list[str]:
    """Return a sentence for each field that no record has; none where there are no records.

    Args:
        store: Store of a collection.
        fields: Of a filter; all records may be read for each.
    """
    unknown = [field for field in fields if next(iter(store.scroll(where={field: {"exists": True}})), None) is None]
    common = common_fields(store) if unknown else ""
    return [f"No record has the field {field!r} of the filter. {common}" for field in unknown if common]


def common_fields(store: Store) -> str:
    """Return a sentence with the fields that most records have, as filters name them; "" where there are no records."""
    counts, records = Counter[str](), 0
    for row in islice(store.scroll(), COUNTED):
        records += 1
        counts.update(set(names_of(row.record.metadata)))
    names = sorted(counts, key=lambda name: (-counts[name], name))[:NAMED]
    none = "No record has metadata." if records else ""
    return f"The commonest fields: {', '.join(map(repr, names))}." if names else none


def fields_of(where: Mapping[str, Any]) -> list[str]:
    """Return the fields that a filter names, those in `and`, `or` and `not` too.

    Examples:
        >>> fields_of({"year": 2020, "or": [{"kind": "a"}, {"not": {"page.number": 3}}]})
        ['year', 'kind', 'page.number']
    """
    found: list[str] = []
    for key, value in where.items():
        if key in ("and", "or"):
            found += [field for part in cast(Sequence[Mapping[str, Any]], value) for field in fields_of(part)]
        else:
            found += fields_of(value) if key == "not" else [key]
    return list(dict.fromkeys(found))


def bm25_searcher(store: Store) -> Searcher:
    """Return the search of a stored collection by BM25 alone; no model is loaded.

    Raises:
        ContextFormatError: The stored Context is damaged, or of a newer format.
        StoreError: There is no collection in the store, or an import into it did not finish.
    """
    space = stored_context(store).fingerprint
    return Searcher(store, store.manifest().settings["parent_key"], BM25Retriever(store), lambda: space)


def _check_query(query: str, k: int, score_threshold: float | None, offset: int) -> tuple[int, int]:
    """Check the arguments of a search for one query; returns `k` and `offset` as ints.

    Raises:
        CorpusError: The query is blank or no valid Unicode.
        TypeError: `query` is no str, or `offset` no int.
        ValueError: As `_check_page`.
    """
    if not isinstance(cast(object, query), str):
        raise TypeError("search takes one query, a str; for several there is search_batch([…])")
    page = _check_page(k, score_threshold, offset)
    _check_not_blank(query)
    return page


def _check_not_blank(query: str) -> None:
    if not query.strip():
        raise CorpusError("The query is empty or blank. Give it the words to search for.")
    check_texts([query])


def _check_page(k: int, score_threshold: float | None, offset: int) -> tuple[int, int]:
    """Check the arguments of a page of results; returns `k` and `offset` as ints.

    Raises:
        TypeError: `offset` is no int.
        ValueError: `k` is below 1, `offset` below 0, or `score_threshold` NaN.
    """
    page = check_positive(k, "k"), check_whole(offset, "offset", least=0)
    if score_threshold is not None and math.isnan(score_threshold):
        raise ValueError("score_threshold has to be a number, found NaN")
    return page


def _page_of(hits: Sequence[Hit], offset: int, score_threshold: float | None) -> list[Hit]:
    """Return the hits from position `offset` on that reach `score_threshold`."""
    least = -math.inf if score_threshold is None else score_threshold
    return Hits.of((hit for hit in hits[offset:] if hit.score >= least), hits)
