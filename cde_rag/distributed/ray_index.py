"""Indexing of a Ray dataset.

The dataset is read twice: once for the sample of a new collection's context, which is a map-reduce, and once to embed.
Records are grouped into buckets by a hash of their parent, or of their id, so that the passages of a parent meet on one
worker, with the siblings that one process would give them. What a bucket holds depends on the dataset alone, and not on
blocks or workers.

Into a database server each worker upserts its buckets itself. For a collection in a folder, which one process writes,
workers write shards (`shards.py`) to a folder that all machines share, and the calling process commits these. Both are
idempotent: the same call resumes an interrupted one.
"""

import json
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._files import user_path
from cde_rag._validation import check_positive
from cde_rag.collection.collection import Collection
from cde_rag.context.sampling import Sample, merge_samples, warn_small_context
from cde_rag.distributed.bucket_writer import COUNTS, BucketWriter, Destination
from cde_rag.distributed.ray_pool import connect, library_error, workers_of
from cde_rag.distributed.ray_records import EXTRA, POSITION, DrawSample, ToRecordTable
from cde_rag.distributed.shards import read_shard
from cde_rag.embedders.active import ActiveEmbedder
from cde_rag.embedders.contextual import ContextualEmbedder, as_model
from cde_rag.embedders.corpus_contexts import context_size_for, fit
from cde_rag.embedders.pool import EmbedderSpec
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, PoolError, StoreError, require
from cde_rag.indexing.headers import check_headers
from cde_rag.indexing.made_vectors import ReadyVectors
from cde_rag.indexing.upsert import AddReport, Progress, Upserter
from cde_rag.models import CDEModel
from cde_rag.models.model import Model
from cde_rag.readers import PARENT_KEY
from cde_rag.readers.columns import Fields
from cde_rag.records import Record
from cde_rag.search.calibration import CALIBRATION, LEAST, calibrate_or_warn
from cde_rag.stores.kinds import store_at
from cde_rag.stores.store import Folder, Removable, Store
from cde_rag.stores.tenant_stores import remove_folder

BUCKET_ROWS: Final = 1024  # records of a bucket on average: what a killed worker costs
TIMEOUT_S: Final = 1800.0  # without a finished bucket, after which workers count as stuck
_HELD: Final = 2**14  # rows whose vectors are held, at least, while their shards are committed
_PARTITIONS: Final = 16  # of the shuffle, for each worker: a worker that is slow leaves the others work


@dataclass(frozen=True, slots=True)
class Indexed:
    """Result of `index`.

    Attributes:
        documents: Number of records in the collection.
        report: Changes, by number of records.
        buckets: Number of buckets that were written.
        reused: Number of buckets whose shards an earlier run had made.
        fingerprint: Fingerprint of the vector space.
        elapsed_s: Seconds.
    """

    documents: int
    report: AddReport
    buckets: int
    reused: int
    fingerprint: str
    elapsed_s: float


def index(
    dataset: Any,
    place: str | Path,
    embedder: ContextualEmbedder | None = None,
    *,
    fields: Fields = Fields(),  # noqa: B008 (frozen)
    headers: Sequence[str] = (),
    windows: bool = False,
    model: str | Path | CDEModel | None = None,
    context_size: int | None = None,
    seed: int = 0,
    shards: str | Path | None = None,
    workers: int | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    bucket_rows: int = BUCKET_ROWS,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[Progress], None] | None = None,
) -> Indexed:
    """Embed a Ray dataset on the cluster and upsert it into a collection, which is created if necessary.

    After an error the buckets that were written stay, and the same call does the rest; a new collection that is still
    empty is removed.

    The collection is the one that `Collection.add` makes in one process: the same context and fingerprint, the same
    siblings, the same vectors up to rounding. Only the order of insertion between parents may differ. An id that comes
    twice is refused if the collection is in a folder, as by `add`; workers that write to a server see their own buckets
    only, and keep one of the two. Text documents of `read_sources` replace their passages, as of a RecordReader.

    Args:
        dataset: A `ray.data.Dataset` of one record a row, such as `ray.data.read_parquet(paths)`.
        place: Folder of the collection, such as "papers.faiss", or address of a server that all workers can reach.
        embedder: Of the collection; by default an existing collection's own, and for a new one that of a sample.
        fields: Columns of id, text, title and parent; every other column is metadata.
        headers: For a new collection, as in `Collection.create`.
        windows: For a new collection, as in `ContextualEmbedder.from_corpus`.
        model: Model of the collection, if no embedder is given; by default that of the existing collection, and
            "cde-mini" for a new one.
        context_size: Number of context documents of a new collection, as in `ContextualEmbedder.from_corpus`.
        seed: Random seed of that sample.
        shards: Folder of the shards, on a file system that all machines share; by default the collection's folder with
            `.shards` after its name. They stay, for the next run, until they are deleted.
        workers: Most embedding workers; by default as many as the cluster's resources suffice for.
        num_cpus: CPUs of each worker, which are its threads.
        num_gpus: GPUs of each worker; a fraction shares one.
        bucket_rows: Records of a bucket on average.
        timeout_s: Seconds without a finished bucket after which the run is ended.
        on_progress: Called after each bucket.

    Raises:
        ContextMismatchError: The embedder is not that of the existing collection.
        CorpusError: A row is no usable record, or the dataset is empty.
        MissingExtraError: Ray or pyarrow is not installed.
        PoolError: No bucket was finished in time, or a worker failed, such as one that does not have the model.
        StoreError: The place cannot be used, or the collection has another parent key.
        TypeError: The embedder is no ContextualEmbedder.
    """
    started = time.monotonic()
    check_positive(bucket_rows, "bucket_rows")
    if workers is not None:
        check_positive(workers, "workers")
    if embedder is not None and not isinstance(cast(object, embedder), ContextualEmbedder):
        hint = "Index it in one process: Collection.add."
        raise TypeError(f"Expected a ContextualEmbedder, found {embedder!r:.80}. {hint}")
    if embedder is not None:
        _for_workers(embedder)
    ray, store = connect(None), store_at(place)
    numbered, documents = _numbered(dataset), _guarded(dataset.count)
    if not documents:
        raise CorpusError("Expected documents, found an empty dataset. Is it the right file or folder?")
    is_new = False
    if store.exists():
        collection = Collection.open(store, model=model) if embedder is None else Collection(store, embedder)
        _check_parent_key(collection, fields.parent)
    else:
        if embedder is None:
            loaded = as_model("cde-mini" if model is None else model)
            size = context_size_for(loaded, context_size)
            sample = sample_dataset(numbered, fields, loaded, size, headers=headers, seed=seed)
            context = fit(loaded, sample, strategy="random", seed=seed).with_windows(windows=windows)
            embedder = ContextualEmbedder(loaded, context)
            warn_small_context(embedder.context.size, size, "passage")
        collection, is_new = Collection.create(store, embedder, parent_key=fields.parent, headers=headers), True
    with collection, _removing(store) if is_new else nullcontext():
        serving = _for_workers(collection.embedder)
        folder = user_path(f"{place}.shards" if shards is None else shards).resolve()
        address = str(place) if "://" in str(place) else None
        settings = dict(store.manifest().settings)
        destination = Destination(address, folder, settings)
        spec = ray.put(EmbedderSpec.of(serving))  # referred to here as long as actors may be restarted
        most, buckets = workers or workers_of(ray, num_cpus, num_gpus), max(1, round(documents / bucket_rows))
        written = (
            numbered.map_batches(ToRecordTable(fields, buckets), batch_format="pyarrow")
            .groupby("bucket", num_partitions=min(buckets, _PARTITIONS * most))
            .map_groups(
                BucketWriter,
                fn_constructor_args=(spec, destination, max(1, int(num_cpus)), None if num_gpus else "cpu"),
                batch_format="pyarrow",
                compute=require("ray.data", EXTRA).ActorPoolStrategy(min_size=1, max_size=most),
                num_cpus=num_cpus,
                num_gpus=num_gpus,
            )
        )
        with closing(_rows(written, timeout_s)) as rows:
            commit = _Commit(rows, documents, started, on_progress)
            if address is None:
                writer = Upserter(store, ActiveEmbedder(store, serving), settings)
                ready = ReadyVectors(serving.fingerprint, commit.vectors)
                records = commit.records(folder, serving.fingerprint)
                report = writer.add(records, documents, None, ready, commit.read)
            else:
                report = commit.reports()
                if collection.parent_key not in (None, PARENT_KEY):  # a document is in several buckets
                    writer = Upserter(store, ActiveEmbedder(store, serving), settings)
                    report = replace(report, deleted=report.deleted + writer.replace(commit.read))
        count = collection.count()
        if CALIBRATION in settings and count >= LEAST:  # workers saw parts
            calibrate_or_warn(collection.calibrate)
        return Indexed(
            documents=count,
            report=report,
            buckets=commit.buckets,
            reused=commit.reused,
            fingerprint=serving.fingerprint,
            elapsed_s=time.monotonic() - started,
        )


def sample_dataset(
    dataset: Any,
    fields: Fields,
    model: Model,
    size: int,
    *,
    headers: Sequence[str] = (),
    seed: int = 0,
) -> Sample:
    """Draw the sample of a dataset that `sample_random` draws from the same texts in one process.

    One map-reduce: each block gives its own sample, and these are merged.

    Args:
        dataset: A `ray.data.Dataset`.
        fields: Its columns.
        model: Counts the tokens of headers.
        size: Context documents wanted.
        headers: Headers of the collection.
        seed: Random seed of the sample.

    Raises:
        CorpusError: A row is no usable record, or the dataset is empty.
        PoolError: A task failed.
    """
    from cde_rag.context.context import Context

    names = check_headers(headers)
    counter = ContextualEmbedder(model, Context.null(model)) if names else None
    drawn = dataset.map_batches(DrawSample(fields, names, counter, size, seed), batch_format="pyarrow", batch_size=None)
    with closing(_rows(drawn, TIMEOUT_S)) as rows:
        return merge_samples((Sample(row["documents"], row["documents_seen"]) for row in rows), size, seed=seed)


class _Commit:
    """Results of the workers as they come, committed by this process.

    Attributes:
        vectors: Vectors of the shards that are being committed, by digest.
        buckets: Number of buckets so far.
        reused: Number of them whose shards were there.
        read: Number of passages of each text document in the buckets so far, by `source`.
    """

    def __init__(
        self,
        rows: Iterator[dict[str, Any]],
        total: int,
        started: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.vectors: dict[str, tuple[Float32[np.ndarray, " dim"], bool]] = {}
        self.buckets = self.reused = 0
        self.read: dict[str, int] = {}
        self._rows = rows
        self._progress = Progress(0, total, 0.0)
        self._started = started
        self._on_progress = on_progress

    def reports(self) -> AddReport:
        """Return the changes that the workers made on a server."""
        counts = Counter(dict.fromkeys(COUNTS, 0))
        for row in self._rows:
            self.read.update(json.loads(row["read"]))
            counts.update({name: row[name] for name in COUNTS})
            self._advance(row)
        return AddReport(**counts)

    def records(self, folder: Path, fingerprint: str) -> Iterator[Record]:
        """Yield the records of the shards; their vectors stay in `vectors` until they are committed."""
        held: deque[list[str]] = deque()
        for row in self._rows:
            self.read.update(json.loads(row["read"]))
            shard = read_shard(folder, row["shard"], fingerprint)
            if shard is None:
                raise StoreError(
                    f"Expected the shard {folder / row['shard']}, which a worker wrote, found none, or a damaged one. "
                    "The folder of the shards has to be shared by all machines. Run it again to make the shard again."
                )
            digests = [each.digest for each in shard.rows]
            self.vectors.update(
                (digest, (vector, bool(truncated)))
                for digest, vector, truncated in zip(digests, shard.vectors, shard.truncated, strict=True)
            )
            held.append(digests)
            while sum(map(len, held)) - len(held[0]) >= _HELD:  # these are committed: a chunk has fewer rows
                for digest in held.popleft():
                    self.vectors.pop(digest, None)
            yield from (each.record for each in shard.rows)
            self._advance(row)

    def _advance(self, row: dict[str, Any]) -> None:
        self.buckets += 1
        self.reused += row["reused"]
        elapsed = time.monotonic() - self._started
        self._progress = Progress(self._progress.done + row["documents"], self._progress.total, elapsed)
        if self._on_progress is not None:
            self._on_progress(self._progress)


def _numbered(dataset: Any) -> Any:
    """Give each row of a dataset its position."""
    expressions = require("ray.data.expressions", EXTRA)
    return dataset.with_column(POSITION, expressions.monotonically_increasing_id())


@contextmanager
def _removing(store: Store) -> Generator[None, None, None]:
    """Remove a collection that is new and still empty after an error: its parent key would refuse the right call."""
    try:
        yield
    except BaseException:
        with suppress(StoreError):  # the error that comes first is raised
            if not store.count():
                store.close()
                if isinstance(store, Folder):
                    remove_folder(store.folder)
                elif isinstance(store, Removable):
                    store.remove()
        raise


def _for_workers(embedder: Embedder) -> ContextualEmbedder:
    """Return an embedder whose model workers can load.

    Raises:
        PoolError: They cannot, since it is a user's function, for example.
    """
    if not (isinstance(embedder, ContextualEmbedder) and embedder.model.in_workers):
        raise PoolError(f"Expected a contextual model, found {embedder!r}. Index it in one process: Collection.add.")
    return embedder


def _check_parent_key(collection: Collection, parent_key: str | None) -> None:
    if collection.parent_key != parent_key:
        raise StoreError(
            f"The collection has the parent key {collection.parent_key!r}, and fields.parent is {parent_key!r}. Give "
            f"Fields(parent={collection.parent_key!r})."
        )


def _guarded(call: Callable[[], int]) -> int:
    """Run a call of Ray; errors of ours in its tasks are raised as such."""
    try:
        return call()
    except Exception as error:
        raise library_error(error) or PoolError(f"Ray could not read the dataset: {error}") from error


def _rows(dataset: Any, timeout_s: float) -> Generator[dict[str, Any], None, None]:
    """Yield the rows of a dataset as they are computed; closing it ends the computation with its next row."""
    found = queue.SimpleQueue[dict[str, Any] | Exception | None]()
    closed = threading.Event()

    def read() -> None:
        try:
            for row in dataset.iter_rows():
                if closed.is_set():
                    return  # Ray gives the workers back when its iterator is gone
                found.put(row)
            found.put(None)
        except Exception as error:  # noqa: BLE001 -- goes to the thread that waits
            found.put(error)

    threading.Thread(target=read, name="cde-rag-rows", daemon=True).start()
    try:
        while (row := _next(found, timeout_s)) is not None:
            yield row
    finally:
        closed.set()


def _next(found: "queue.SimpleQueue[dict[str, Any] | Exception | None]", timeout_s: float) -> dict[str, Any] | None:
    """Return the next row; None after the last one."""
    try:
        row = found.get(timeout=timeout_s)
    except queue.Empty:
        raise PoolError(
            f"No worker finished a bucket in {timeout_s:.0f} s: the cluster may lack the resources that the "
            "workers need. Written records stay: look at `ray status`, and run it again."
        ) from None
    if isinstance(row, Exception):
        raise library_error(row) or PoolError(f"A worker failed: {row}") from row
    return row
