"""BucketWriter: the Ray actor that embeds buckets of records and writes them."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from cde_rag.collection.collection import Collection
from cde_rag.distributed.ray_records import EXTRA, in_order
from cde_rag.distributed.shards import Shard, read_shard, shard_name, write_shard
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CDEError, ContextMismatchError, PoolError, require
from cde_rag.indexing.headers import with_headers
from cde_rag.indexing.replacement import DocumentRecords
from cde_rag.indexing.upsert import AddReport
from cde_rag.indexing.upsert_plan import stale_passages
from cde_rag.model.threads import set_threads
from cde_rag.records import Parent, Row, embedded_text
from cde_rag.stores.kinds import store_at

COUNTS: Final = tuple(field.name for field in fields(AddReport))


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of the buckets.

    Attributes:
        address: Address of a collection on a server; None for shards.
        folder: Folder of the shards.
        settings: Settings of the collection.
    """

    address: str | None
    folder: Path
    settings: dict[str, Any]


class BucketWriter:
    """Embeds buckets, and upserts them into a server or writes their shards. Returns one row for each bucket.

    Args:
        spec: Reference to the EmbedderSpec in Ray's object store.
        destination: Where buckets are written.
        threads: CPU threads.
        device: Such as "cpu" or "cuda"; None: CUDA where there is one.

    Raises:
        PoolError: The worker does not have the model, or cannot open the collection.
    """

    def __init__(self, spec: Any, destination: Destination, threads: int, device: str | None) -> None:
        set_threads(threads)
        self._destination = destination
        try:
            self._embedder = ContextualEmbedder.from_spec(require("ray", EXTRA).get(spec), device)
            self._collection = None if destination.address is None else self._opened(destination.address)
        except CDEError as error:
            raise PoolError(str(error)) from None

    def __call__(self, bucket: Any) -> Any:
        """Embed and write a bucket, a `pyarrow.Table` of records; the row has its shard, `reused`, and counts.

        Raises:
            PoolError: It cannot be embedded or written; with the message of the error.
        """
        arrow = require("pyarrow", EXTRA)
        if not bucket.num_rows:
            return arrow.table({})
        records = in_order(bucket)
        try:
            row = self._to_shard(records) if self._collection is None else self._to_server(records)
        except CDEError as error:
            raise PoolError(str(error)) from None
        named = {"documents": len(records), "read": json.dumps(dict(records.documents)), **row}
        return arrow.table({name: [value] for name, value in named.items()})

    def _opened(self, address: str) -> Collection:
        collection = Collection(store_at(address), self._embedder)
        if collection.embedder.fingerprint != self._embedder.fingerprint:
            raise ContextMismatchError(expected=self._embedder.fingerprint, found=collection.embedder.fingerprint)
        return collection

    def _to_server(self, records: DocumentRecords) -> dict[str, Any]:
        assert self._collection is not None
        report = self._collection.add_records(records)
        return {"shard": "", "reused": False, **asdict(report)}

    def _to_shard(self, records: DocumentRecords) -> dict[str, Any]:
        """Write the shard of a bucket, unless an earlier run has written it."""
        extended = list(with_headers(records, self._destination.settings, self._embedder))
        parent_key: str | None = self._destination.settings["parent_key"]
        arriving = {record.id: Row(record, "") for record in extended}
        groups: defaultdict[Parent, dict[str, Row]] = defaultdict(dict)
        stale = stale_passages(groups, self._embedder, parent_key, arriving=arriving)
        digests = {change.row.record.id: change.row.digest for change in stale}
        rows = [Row(record, digests[record.id]) for record in extended]
        name = shard_name(self._embedder.fingerprint, rows)
        reused = read_shard(self._destination.folder, name, self._embedder.fingerprint) is not None
        if not reused:
            once = {change.row.digest: change for change in stale}
            places = {digest: place for place, digest in enumerate(once)}
            embedded = self._embedder.embed_passages(
                [embedded_text(change.row.record) for change in once.values()],
                [change.siblings for change in once.values()],
            )
            chosen = [places[row.digest] for row in rows]
            shard = Shard(rows, embedded.vectors[chosen], embedded.truncated[chosen])
            write_shard(self._destination.folder, name, shard)
        return {"shard": name, "reused": reused, **dict.fromkeys(COUNTS, 0)}
