"""The embedded store: a folder, no server. Many processes read while one writes.

    papers.faiss/
        collection.sqlite     the truth: records, filter fields, which vector belongs to which record, the manifest
        vectors-1             float32 vectors of generation 1, only ever appended to
        context-1             the bytes of generation 1's Context
        index-1-…             HNSW snapshot of vectors-1; derived, may be missing

**Atomic.** A call is one SQLite transaction (WAL, synchronous=FULL). What a transaction refers to in other files is
on the disk before it is committed; what was never committed is cut off or swept later. Its write lock is the writers'
lock.

**Damage.** Each record, each vector with its digest, each block of vectors, the manifest, contexts and snapshots have
checksums. They are compared when a block or file is first read and whenever a row is returned; `verify` compares all
of them, and SQLite's own structure. A snapshot that is damaged is not used. One thing cannot be told from a kill: a
damaged write-ahead log, which exists only while a process has the store open or after a kill, ends for SQLite where
the damage is.

**Search.** Exact, in float64, up to `FLAT_ROWS` vectors, for filters that keep so few or less than half, and for k
above a tenth of what is kept. Beyond that HNSW finds candidates, which are scored exactly together with all vectors
that came after the snapshot. When these are more than a tenth, the `add` or `activate` that made it so extends the
snapshot, which takes a minute for 100 000 vectors.

**Deleted** records leave SQLite at once; their vectors leave the vector file when they outnumber the others, or by
`compact`.
"""

from cde_rag.stores.faiss.indexing import FLAT_ROWS
from cde_rag.stores.faiss.store import FaissStore

__all__ = ["FLAT_ROWS", "FaissStore"]
