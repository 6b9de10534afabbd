"""A collection of Qdrant, on a server (1.18 or newer) or in the client's local mode.

    papers                    a point for each record; qdrant_base/payload.py says what is in its payload
        cde_<fingerprint>_<token>
                              a named vector for each generation, compared by dot product, as it was given; older
                              versions gave that of the first generation no token;
                              with `quantization="prefix-128"` also its first dimensions, as cde_…_128
        cde_words             a sparse vector with the modifier IDF: the record's words; see qdrant_base/words.py
        metadata              {"cde": …}: where the manifest is
    papers__cde_contexts      the manifest, a point with a version: settings, generations and which is active, with a
                              checksum; the bytes of each generation's Context, in chunks; the lease of a run

The collection can belong to another application, with points and vectors of its own: they stay, and are no records.
Make it before `create` to choose shards and replicas. Qdrant itself refuses a reader whose vectors are gone, since
every read and write names them. Where they become records, too, the store is adopted
(`cde_rag.adoption`): a record's id is the point's, and what is ours in a payload begins with `cde_`.

**Atomic.** A point is written completely, and the manifest in one write, so a record is the old or the new one and a
generation is active or not. `add`, `delete` and `update_metadata` of many records are one request each up to about
8 MB, which one shard writes to its log at once (for `update_metadata` record by record); beyond that a kill leaves
the first requests done, and the same call again does the rest. A vector of an inactive generation counts once it is
noted in the payload, which comes last. A generation that is being made or dropped counts as not there; the next call
that makes or drops one cleans up. Threads with the same client object see every call wholly or not at all; readers in
other processes can see a part of a batch for a moment. Two processes may add at once, but one run at a time (`lease`)
makes, activates or drops generations. A run that was suspended for longer than its lease changes nothing more, since
the manifest is compared and swapped (docs/decisions/qdrant.md).

**Filters** become Qdrant's conditions on `metadata` (docs/decisions/qdrant.md), for equality, `in`, `exists` and
ranges; for the rest Qdrant keeps more than the filter does, and the filter is evaluated here.

**Damage.** Each record, its metadata, each vector with its digest, the manifest and each Context have checksums,
compared when they are returned; `verify` compares all. A point that is gone completely leaves no trace.

**Search** is by Qdrant's index, over codes or prefixes where the store has such (a new generation is indexed as the
active one), scored again in float64; exact where that finds fewer than k. The first record with a value at a path makes
a payload index there, up to 64. Requests to a server that is busy or away are repeated for about six seconds; all
writes may be made twice. There is no async client (docs/decisions/qdrant.md says why).

`read_context` and `write_context` store contexts next to any collection; they know bytes, not contexts, and contexts.py
shows both with a `cde_rag.Context`.
"""

from cde_rag.errors import require

require("qdrant_client", "qdrant")

from cde_rag.stores.qdrant.contexts import read_context, write_context  # noqa: E402
from cde_rag.stores.qdrant.store import QdrantStore  # noqa: E402
from cde_rag.stores.qdrant_base.index import Hnsw  # noqa: E402
from cde_rag.stores.qdrant_base.manifest import vector_name  # noqa: E402

__all__ = ["Hnsw", "QdrantStore", "read_context", "vector_name", "write_context"]
