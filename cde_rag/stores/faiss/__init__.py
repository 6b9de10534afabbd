"""The embedded store: a folder, no server. Many processes read while one writes.

    papers.faiss/
        collection.sqlite     the truth: records, filter fields, which vector belongs to which record, the manifest
        store-id              written once, so that files copied over an open store are noticed
        vectors-1-3f09c2aa    float32 vectors of generation 1, only ever appended to; the end of the name is random
        context-1-…           the bytes of generation 1's Context
        index-1-…             snapshot of the vectors for approximate search; derived, may be missing
        checked-index-1-…     size and time of a snapshot that was compared with its checksum

**Atomic.** A call is one SQLite transaction (WAL, synchronous=FULL). What a transaction refers to in other files is
on the disk before it is committed; what was never committed is cut off or swept later. Its write lock is the writers'
lock.

**Damage.** Each record, each vector with its digest, each block of vectors, the manifest, contexts and snapshots have
checksums. They are compared when a block or file is first read and whenever a row is returned; `verify` compares all
of them, and SQLite's own structure. A snapshot that is damaged is not used. One thing cannot be told from a kill: a
damaged write-ahead log, which exists only while a process has the store open or after a kill, ends for SQLite where
the damage is.

**Search.** Scores are always exact, in float64; an index only says which vectors are scored, together with all that
came after it. `FaissStore(path, index=…, quantization=…)` makes a store, which keeps the choice; `reindex` changes it.

    auto          flat up to `FLAT_ROWS` vectors, hnsw beyond
    flat          all vectors, or their codes
    hnsw          a graph (FAISS's HNSW)
    ivf           the nearest quarter of the cells that the vectors were put into (FAISS's IVF)
    quantization  what is looked at in place of vectors: `int8`, `binary` (FAISS's RaBitQ), `prefix-<dims>`, or None

Where a filter keeps half of the records or less, they are all looked at, by their codes if there are, wherever they
lie. Exact are searches among up to 10 times k records, for `auto` without codes among up to `FLAT_ROWS`, and under
filters that keep up to 10 000. When more than a tenth of the vectors came after the index, the call that made it so
extends it, and fits cells and codes anew when there are twice as many as they were fitted to. The file is mapped into
memory. docs/faiss.md says what each finds and costs.

**Words** are in a table of FTS5 (fts_index.py), fed with those of `cde_rag.stores.text_analysis`. Its BM25: for each
word of the query, as often as it comes, `idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · l / mean l))`, where f is how
often the record has it, l how many words the record has, and `idf = ln((N − n + 0.5) / (n + 0.5))`, but at least 1e-6,
of N records with words and n with this one.

**Deleted** records leave SQLite at once; their vectors leave the vector file when they outnumber the others, or by
`compact`; so do traces of their words.
"""

from cde_rag.stores.faiss.indexing import FLAT_ROWS
from cde_rag.stores.faiss.store import FaissStore

__all__ = ["FLAT_ROWS", "FaissStore"]
