"""Embedded store on Qdrant's engine (Qdrant Edge): a folder, no server. One process at a time has it open, to read too.

    papers.qdrant/
        cde.json                  the manifest: settings, generations and which is active, with a checksum
        context-1.safetensors     the bytes of generation 1's Context
        shard-1-words/            the engine's: a point for each record (see qdrant_base/payload.py), a log, indexes;
                                  named by its generations (shard-1-2-words)
            cde_<fingerprint>     a named vector for each generation, compared by dot product, as it was given
        shard.json                checksums of the engine's files, while nobody has the store open
        cde.lock                  held by the process that has it open

**Atomic.** `add`, `delete`, `update_metadata` and `add_to_generation` are one entry of the engine's log each, whatever
their size; after a kill the engine finishes what is in it. To activate a generation is to rename a file. To make or
drop one takes a copy of the shard, in which named vectors are added or removed, and which is used once the manifest
names it. A call returns when the engine has synced it; power loss was not tested (docs/durability.md). Threads see
every call completely or not at all.

**Filters** become Qdrant's conditions on `metadata` (docs/decisions/qdrant.md), for equality, `in`, `exists` and
ranges; for the rest Qdrant keeps more than the filter does, and the filter is evaluated here.

**Damage.** Each record, its metadata, each vector with its digest, the manifest and each Context have checksums,
compared when they are returned. The engine checks hardly anything of its own, so its files are compared with theirs
before it opens them (the content of files above 64 MiB by `verify` only). After a kill there are no checksums of files
until the store is closed once.

**Search** is exact up to `flat_rows` vectors, and for filters that keep few; beyond that by HNSW, built by the call
that makes it due (about a minute for 100 000 vectors), and exact for what came since. HNSW walks over codes or over
prefixes, which are stored next to the vectors (`cde_<fingerprint>_128`), if `quantization` says so. Found vectors are
scored again in float64. The first record with a value at a path makes a payload index there, up to 64.
"""

from cde_rag.errors import require

require("qdrant_edge", "edge")

from cde_rag.stores.qdrant_base.index import Hnsw  # noqa: E402
from cde_rag.stores.qdrant_edge.store import FLAT_ROWS, QdrantEdgeStore  # noqa: E402

__all__ = ["FLAT_ROWS", "Hnsw", "QdrantEdgeStore"]
