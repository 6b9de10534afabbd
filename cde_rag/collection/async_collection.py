"""A collection for coroutines: the calls of `Collection`, each in a thread.

Long because every call repeats the arguments of `Collection`'s, for checkers and editors; a test compares them.
"""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, overload

from cde_rag._validation import check_positive, named_keywords
from cde_rag.collection.collection import Collection, When
from cde_rag.collection.info import Inspection
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.contextual import AnyModel
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.indexing.audit import SAMPLE, Audit
from cde_rag.indexing.backfill import Recontextualization
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.drift import PROBES, Drift
from cde_rag.indexing.pending import EmbedReport
from cde_rag.indexing.recontextualization import Estimate
from cde_rag.indexing.upsert import AddPlan, AddReport, Progress
from cde_rag.readers import Fields, ReadingRules
from cde_rag.records import Hit, Record
from cde_rag.search.calibration import ScoreCalibration
from cde_rag.search.fusion import CANDIDATES, Fusion, Ranking
from cde_rag.search.grouping import Group, ParentHit
from cde_rag.search.retrievers import Rerank
from cde_rag.search.searcher import RERANKED, Searcher
from cde_rag.stores.base import Damage, ProcessBound
from cde_rag.stores.store import Store
from cde_rag.transfer.backup import Backup
from cde_rag.transfer.parquet import Transfer

_PAGE: Final = 256  # records that `scroll` reads at once
_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class _Threads:
    """Threads that run blocking calls for coroutines.

    Args:
        number: Maximum number of threads; None as `ThreadPoolExecutor` has it.
        name: Begin of the threads' names.
    """

    def __init__(self, number: int | None, name: str) -> None:
        self._number = number
        self._name = name
        self._pool = self._new()

    def _new(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._number, f"cde_rag {self._name}")  # it starts a thread when one is needed

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Run a call in a thread, in the caller's context, and return its result.

        If the coroutine is cancelled, a call that waits for a thread never begins, and one that has begun is finished.
        """
        future = self._pool.submit(contextvars.copy_context().run, call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                future.add_done_callback(_log_error)
            raise

    def end(self) -> None:
        """Wait for all calls; those that come later get new threads."""
        ended, self._pool = self._pool, self._new()
        ended.shutdown()


def _log_error(future: "Future[Any]") -> None:
    """Log the error of a call that nobody waits for any more."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.error("A call that was cancelled when it had begun has failed.", exc_info=error)


class AsyncSearcher(ProcessBound):
    """Search of a collection by one ranking, for coroutines; see `AsyncCollection.searcher`.

    Args:
        searcher: The search.
        threads: Threads of its calls.
    """

    def __init__(self, searcher: Searcher, threads: _Threads) -> None:
        self._searcher = searcher
        self._threads = threads

    @named_keywords
    async def reranked(
        self, rerank: Rerank | str | Path, *, candidates: int = RERANKED, budget_ms: int | None = None
    ) -> "AsyncSearcher":
        """Return a search whose best hits are reranked; see `Searcher.reranked`."""
        found = await self._threads.run(
            partial(self._searcher.reranked, rerank, candidates=candidates, budget_ms=budget_ms)
        )
        return AsyncSearcher(found, self._threads)

    @named_keywords
    async def search(
        self,
        query: str,
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[Hit]:
        """Return the `k` best hits for one query; see `Searcher.search`."""
        return await self._threads.run(
            partial(self._searcher.search, query, k, where=where, score_threshold=score_threshold, offset=offset)
        )

    @named_keywords
    async def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[list[Hit]]:
        """Return the `k` best hits for each query; see `Searcher.search_batch`."""
        return await self._threads.run(
            partial(
                self._searcher.search_batch, queries, k, where=where, score_threshold=score_threshold, offset=offset
            )
        )

    @named_keywords
    async def search_groups(
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
        """Group hits by a metadata field; see `Searcher.search_groups`."""
        return await self._threads.run(
            partial(
                self._searcher.search_groups,
                query,
                k,
                group_by=group_by,
                group_size=group_size,
                where=where,
                score_threshold=score_threshold,
                offset=offset,
            )
        )

    @named_keywords
    async def search_parents(
        self,
        query: str,
        k: int = 10,
        *,
        group_size: int = 3,
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
    ) -> list[ParentHit]:
        """Return the parents with the best passages; see `Searcher.search_parents`."""
        return await self._threads.run(
            partial(
                self._searcher.search_parents,
                query,
                k,
                group_size=group_size,
                where=where,
                score_threshold=score_threshold,
                offset=offset,
            )
        )


class AsyncCollection(ProcessBound):
    """Searchable records for coroutines, such as those of a web service: the calls of `Collection`, each in a thread.

    Names, arguments, results and errors are those of `Collection`; `pending` is a call here. Searches and reads run
    side by side in threads of their own, so that writes and other long calls never hold them up.

    A call that is cancelled loses and mixes nothing. If it waits for a thread, it never begins. If it has begun, it
    runs to its end like one that was not cancelled: a write is complete then, and its error goes to the log `cde_rag`.
    `close` waits for such calls. Functions that are given, such as `on_progress` and `rerank`, run in the thread.

    Args:
        collection: The collection. `open`, `create` and the other class methods bring it.
        threads: Maximum number of threads for searches, and for other calls; by default 4 more than the machine has
            cores, at most 32.

    Attributes:
        collection: The collection: its `store`, `embedder`, `parent_key` and `embed_budget_ms`. Its calls block.

    Raises:
        ValueError: `threads` is below 1.

    Examples:
        >>> made = AsyncCollection.from_texts(f"Note {n}: swifts sleep on the wing." for n in range(64))
        >>> notes = asyncio.run(made)
        >>> asyncio.run(notes.search("birds in flight", k=1))[0].text[:4]
        'Note'
        >>> asyncio.run(notes.close())
    """

    def __init__(self, collection: Collection, *, threads: int | None = None) -> None:
        threads = None if threads is None else check_positive(threads, "threads")
        self.collection = collection
        self._reads = _Threads(threads, "search")
        self._jobs = _Threads(threads, "job")

    @classmethod
    @named_keywords
    async def create(
        cls,
        store: Store | str | Path,
        embedder: Embedder,
        *,
        parent_key: str | None = None,
        headers: Sequence[str] = (),
    ) -> "AsyncCollection":
        """Make an empty collection in an empty store; see `Collection.create`."""
        return cls(await asyncio.to_thread(Collection.create, store, embedder, parent_key=parent_key, headers=headers))

    @classmethod
    @named_keywords
    async def open(
        cls,
        store: Store | str | Path,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> "AsyncCollection":
        """Open an existing collection, with its context and model; see `Collection.open`."""
        return cls(await asyncio.to_thread(Collection.open, store, model=model, options=options))

    @classmethod
    @named_keywords
    async def from_texts(
        cls,
        texts: Iterable[str],
        *,
        store: Store | str | Path | None = None,
        model: "AnyModel" = "cde-mini",
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        parent_key: str | None = None,
        headers: Sequence[str] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "AsyncCollection":
        """Make a collection of texts in a context sampled from them; see `Collection.from_texts`."""
        return cls(
            await asyncio.to_thread(
                Collection.from_texts,
                texts,
                store=store,
                model=model,
                options=options,
                ids=ids,
                titles=titles,
                metadata=metadata,
                parent_key=parent_key,
                headers=headers,
                on_progress=on_progress,
            )
        )

    @classmethod
    @named_keywords
    async def from_files(
        cls,
        *sources: str | Path,
        fields: Fields | None = None,
        store: Store | str | Path | None = None,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "AsyncCollection":
        """Make a collection of files and folders, or bring one up to date; see `Collection.from_files`."""
        made = await asyncio.to_thread(
            Collection.from_files,
            *sources,
            fields=fields,
            store=store,
            model=model,
            options=options,
            on_progress=on_progress,
        )
        return cls(made)

    @classmethod
    @named_keywords
    async def restore(
        cls,
        folder: str | Path,
        store: Store | str | Path,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> "AsyncCollection":
        """Restore a collection from its `backup`, and open it; see `Collection.restore`."""
        return cls(await asyncio.to_thread(Collection.restore, folder, store, model=model, options=options))

    @classmethod
    @named_keywords
    async def import_(
        cls,
        path: str | Path,
        store: Store | str | Path,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "AsyncCollection":
        """Import the file of an `export` into an empty store, and open it; see `Collection.import_`."""
        return cls(
            await asyncio.to_thread(
                Collection.import_, path, store, model=model, options=options, on_progress=on_progress
            )
        )

    @overload
    async def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[False] = False,
    ) -> AddReport: ...

    @overload
    async def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[True],
    ) -> AddPlan: ...

    @named_keywords
    async def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: bool = False,
    ) -> AddReport | AddPlan:
        """Upsert texts; see `Collection.add`. Once it has begun it ends, also if the call is cancelled."""
        return await self._jobs.run(
            partial(
                cast(Callable[..., AddReport | AddPlan], self.collection.add),
                texts,
                ids=ids,
                titles=titles,
                metadata=metadata,
                embed=embed,
                on_progress=on_progress,
                dry_run=dry_run,
            )
        )

    @overload
    async def add_records(
        self,
        records: Iterable[Record],
        *,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        at_once: bool = False,
        dry_run: Literal[False] = False,
    ) -> AddReport: ...

    @overload
    async def add_records(
        self,
        records: Iterable[Record],
        *,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        at_once: bool = False,
        dry_run: Literal[True],
    ) -> AddPlan: ...

    @named_keywords
    async def add_records(
        self,
        records: Iterable[Record],
        *,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        at_once: bool = False,
        dry_run: bool = False,
    ) -> AddReport | AddPlan:
        """Add or replace records; see `Collection.add_records`. Once it has begun it ends, like `add`."""
        return await self._jobs.run(
            partial(
                cast(Callable[..., AddReport | AddPlan], self.collection.add_records),
                records,
                embed=embed,
                on_progress=on_progress,
                at_once=at_once,
                dry_run=dry_run,
            )
        )

    async def calibrate(self) -> ScoreCalibration | None:
        """Measure scores for the scale of hybrid scores; see `Collection.calibrate`."""
        return await self._jobs.run(self.collection.calibrate)

    @named_keywords
    async def embed_pending(
        self, *, limit: int | None = None, on_progress: Callable[[Progress], None] | None = None
    ) -> EmbedReport:
        """Embed records that wait for their vectors; see `Collection.embed_pending`."""
        return await self._jobs.run(partial(self.collection.embed_pending, limit=limit, on_progress=on_progress))

    async def prepare_reader(self, records: Iterable[Record]) -> ReadingRules | None:
        """Let a reader split files by the collection's rules; see `Collection.prepare_reader`."""
        return await self._reads.run(partial(self.collection.prepare_reader, records))

    async def keep_fields(self, records: Iterable[Record]) -> None:
        """Keep the fields that a reader was given, for later ones; see `Collection.keep_fields`."""
        return await self._jobs.run(partial(self.collection.keep_fields, records))

    @named_keywords
    async def search(
        self,
        query: str,
        k: int = 10,
        *,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[Hit]:
        """Return the `k` best hits for one query; see `Collection.search`."""
        return await self._reads.run(
            partial(
                self.collection.search,
                query,
                k,
                by=by,
                where=where,
                score_threshold=score_threshold,
                offset=offset,
                rerank=rerank,
                rerank_top=rerank_top,
                rerank_budget_ms=rerank_budget_ms,
            )
        )

    @named_keywords
    async def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[list[Hit]]:
        """Return the `k` best hits for each query; see `Collection.search_batch`."""
        return await self._reads.run(
            partial(
                self.collection.search_batch,
                queries,
                k,
                by=by,
                where=where,
                score_threshold=score_threshold,
                offset=offset,
                rerank=rerank,
                rerank_top=rerank_top,
                rerank_budget_ms=rerank_budget_ms,
            )
        )

    @named_keywords
    async def search_groups(
        self,
        query: str,
        k: int = 10,
        *,
        group_by: str,
        group_size: int = 3,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[Group]:
        """Group hits by a metadata field; see `Collection.search_groups`."""
        return await self._reads.run(
            partial(
                self.collection.search_groups,
                query,
                k,
                group_by=group_by,
                group_size=group_size,
                by=by,
                where=where,
                score_threshold=score_threshold,
                offset=offset,
                rerank=rerank,
                rerank_top=rerank_top,
                rerank_budget_ms=rerank_budget_ms,
            )
        )

    @named_keywords
    async def search_parents(
        self,
        query: str,
        k: int = 10,
        *,
        group_size: int = 3,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[ParentHit]:
        """Return the parents with the best passages; see `Collection.search_parents`."""
        return await self._reads.run(
            partial(
                self.collection.search_parents,
                query,
                k,
                group_size=group_size,
                by=by,
                where=where,
                score_threshold=score_threshold,
                offset=offset,
                rerank=rerank,
                rerank_top=rerank_top,
                rerank_budget_ms=rerank_budget_ms,
            )
        )

    @named_keywords
    async def reranked(
        self, rerank: Rerank | str | Path, *, candidates: int = RERANKED, budget_ms: int | None = None
    ) -> AsyncSearcher:
        """Return a search whose best hits are reranked; see `Collection.reranked`."""
        found = await self._reads.run(
            partial(self.collection.reranked, rerank, candidates=candidates, budget_ms=budget_ms)
        )
        return AsyncSearcher(found, self._reads)

    @named_keywords
    def searcher(
        self,
        by: Ranking = "hybrid",
        *,
        candidates: int = CANDIDATES,
        fusion: Fusion = "convex",
        weight: float | None = None,
        embed_budget_ms: int | None = None,
    ) -> AsyncSearcher:
        """Return all searches by one ranking; see `Collection.searcher`. Reads nothing, so it is not awaited."""
        found = self.collection.searcher(
            by, candidates=candidates, fusion=fusion, weight=weight, embed_budget_ms=embed_budget_ms
        )
        return AsyncSearcher(found, self._reads)

    @named_keywords
    async def search_diverse(
        self,
        query: str,
        k: int = 10,
        *,
        candidates: int = 50,
        diversity: float = 0.5,
        where: Mapping[str, Any] | None = None,
    ) -> list[Hit]:
        """Return hits near the query and unlike each other; see `Collection.search_diverse`."""
        return await self._reads.run(
            partial(self.collection.search_diverse, query, k, candidates=candidates, diversity=diversity, where=where)
        )

    async def get(self, ids: Sequence[str]) -> list[Record]:
        """Return the records of those ids that exist; see `Collection.get`."""
        return await self._reads.run(partial(self.collection.get, ids))

    @named_keywords
    async def delete(self, ids: Sequence[str] | None = None, *, where: Mapping[str, Any] | None = None) -> int:
        """Delete records by id or by filter, and return their number; see `Collection.delete`."""
        return await self._jobs.run(partial(self.collection.delete, ids, where=where))

    @named_keywords
    async def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Count the records that match the filter; without one, all records."""
        return await self._reads.run(partial(self.collection.count, where))

    @named_keywords
    def scroll(self, where: Mapping[str, Any] | None = None) -> AsyncIterator[Record]:
        """Iterate over all records that match the filter: `async for record in collection.scroll()`."""
        return self._scrolled(where)

    async def inspect(self) -> Inspection:
        """Return the collection's metadata; see `Collection.inspect`."""
        return await self._reads.run(self.collection.inspect)

    @overload
    async def recontextualize(
        self,
        *,
        seed: int = 0,
        context_size: int | None = None,
        strategy: Strategy = "random",
        windows: bool | None = None,
        model: "AnyModel | None" = None,
        embedder: Embedder | None = None,
        canary: Canary | None = None,
        grace_s: float = 0.0,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[False] = False,
    ) -> Recontextualization: ...

    @overload
    async def recontextualize(
        self,
        *,
        seed: int = 0,
        context_size: int | None = None,
        strategy: Strategy = "random",
        windows: bool | None = None,
        model: "AnyModel | None" = None,
        embedder: Embedder | None = None,
        canary: Canary | None = None,
        grace_s: float = 0.0,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[True],
    ) -> Estimate: ...

    @named_keywords
    async def recontextualize(
        self,
        *,
        seed: int = 0,
        context_size: int | None = None,
        strategy: Strategy = "random",
        windows: bool | None = None,
        model: "AnyModel | None" = None,
        embedder: Embedder | None = None,
        canary: Canary | None = None,
        grace_s: float = 0.0,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: bool = False,
    ) -> Recontextualization | Estimate:
        """Sample a new Context, embed all anew, and switch; see `Collection.recontextualize`."""
        return await self._jobs.run(
            partial(
                cast(Callable[..., Recontextualization | Estimate], self.collection.recontextualize),
                seed=seed,
                context_size=context_size,
                strategy=strategy,
                windows=windows,
                model=model,
                embedder=embedder,
                canary=canary,
                grace_s=grace_s,
                embed=embed,
                on_progress=on_progress,
                dry_run=dry_run,
            )
        )

    async def rollback(self, *, on_progress: Callable[[Progress], None] | None = None) -> Recontextualization:
        """Return to the Context before the last `recontextualize`; see `Collection.rollback`."""
        return await self._jobs.run(partial(self.collection.rollback, on_progress=on_progress))

    @named_keywords
    async def drift(
        self, *, seed: int = 0, context_size: int | None = None, strategy: Strategy = "random", probes: int = PROBES
    ) -> Drift:
        """Estimate the gain of `recontextualize`; see `Collection.drift`."""
        return await self._jobs.run(
            partial(self.collection.drift, seed=seed, context_size=context_size, strategy=strategy, probes=probes)
        )

    async def backup(self, folder: str | Path) -> Backup:
        """Back the collection up to a new folder; see `Collection.backup`."""
        return await self._jobs.run(partial(self.collection.backup, folder))

    async def export(self, path: str | Path, *, on_progress: Callable[[Progress], None] | None = None) -> Transfer:
        """Write the collection to a new Parquet file; see `Collection.export`."""
        return await self._jobs.run(partial(self.collection.export, path, on_progress=on_progress))

    async def verify(self, *, sample: int | None = None) -> list[Damage]:
        """Compare everything with its checksums; see `Collection.verify`."""
        return await self._jobs.run(partial(self.collection.verify, sample=sample))

    @named_keywords
    async def audit(self, *, sample: int = SAMPLE, seed: int = 0) -> Audit:
        """Embed a sample again, and compare it with the stored vectors; see `Collection.audit`."""
        return await self._jobs.run(partial(self.collection.audit, sample=sample, seed=seed))

    async def pending(self) -> int:
        """Return the number of records that wait for their vectors."""
        return await self._reads.run(self.collection.store.count_pending)

    async def close(self) -> None:
        """Wait for calls that have begun, and release files, locks and connections; later calls reopen them."""
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> "AsyncCollection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncCollection({self.collection!r})"

    def _end(self) -> None:
        self._reads.end()
        self._jobs.end()
        self.collection.close()

    async def _scrolled(self, where: Mapping[str, Any] | None) -> AsyncIterator[Record]:
        records = await self._reads.run(partial(self.collection.scroll, where))
        while page := await self._reads.run(lambda: list(islice(records, _PAGE))):
            for record in page:
                yield record
