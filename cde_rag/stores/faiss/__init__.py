"""The embedded store: a folder, no server. Many processes read while one writes.

    papers.faiss/
        collection.sqlite     the truth: records, filter fields, which vector belongs to which record, the manifest
        store-id              written once, so that files copied over an open store are noticed
        vectors-1-3f09c2aa    float32 vectors of generation 1, only ever appended to; the end of the name is random
        context-1-…           the bytes of generation 1's Context
        index-1-…             snapshot of the vectors for approximate search; derived, may be missing
        checked-index-1-…     size and time of a snapshot that was compared with its checksum

**Atomicity.** A call is one SQLite transaction (WAL, synchronous=FULL). Data that a transaction refers to in other
files is on the disk before the commit; uncommitted data is truncated or deleted later. SQLite's write lock is the lock
of all writers.

**Damage.** Each record, each vector with its digest, each block of vectors, the manifest, contexts and snapshots have
checksums. They are verified when a block or file is first read and whenever a row is returned; `verify` checks all of
them, and SQLite's own structure. A damaged snapshot is not used. One kind of damage looks like a crash: a damaged
write-ahead log, which exists only while a process has the store open or after a crash, ends for SQLite at the damage.

**Search.** Scores are always exact, in float64; an index only selects the vectors to score, together with all vectors
added after it. `FaissStore(path, index=…, quantization=…)` creates a store with that index; `reindex` changes it.

    auto          flat up to `FLAT_ROWS` vectors, hnsw beyond
    flat          all vectors, or their codes
    hnsw          a graph (FAISS's HNSW)
    ivf           the nearest quarter of the cells (FAISS's IVF)
    quantization  codes searched in place of vectors: `int8`, `binary` (FAISS's RaBitQ), `prefix-<dims>`, or None

If a filter keeps half of the records or less, all of them are scanned, by their codes if there are any. Searches are
exact among up to 10 times k records, for `auto` without codes among up to `FLAT_ROWS`, and under filters that keep up
to 10 000. The call that makes more than a tenth of the vectors newer than the index extends the index, and retrains
cells and codes when there are twice as many vectors as they were trained on. The file is mapped into memory. For recall
and cost of each index see docs/guide/compression.md.

**Text search** uses an FTS5 table (words.py) with the terms of `cde_rag.stores.text_analysis`. Its BM25 is the sum
over the query's terms, repeated ones too, of `idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · l / mean l))`, where f is the
term's frequency in the record, l the record's number of terms, and `idf = ln((N − n + 0.5) / (n + 0.5))`, but at least
1e-6; of N records with any term, n have this one.

**Deleted** records leave SQLite at once; their vectors leave the vector file when they outnumber the others, or by
`compact`; so do traces of their terms.
"""

from cde_rag.stores.faiss.index import FLAT_ROWS
from cde_rag.stores.faiss.store import FaissStore

__all__ = ["FLAT_ROWS", "FaissStore"]
