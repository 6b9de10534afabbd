"""Indexing and recontextualizing on a Ray cluster (extra `ray`).

`index` embeds a Ray dataset on the cluster's workers and writes a collection. `RayPool` is a pool of workers for
`Collection.add` and `Collection.recontextualize`; on one machine `cde_rag.ProcessPool` does the same without Ray.
"""

from cde_rag.distributed.ray_index import Indexed, index
from cde_rag.distributed.ray_pool import RayPool, connect
from cde_rag.distributed.ray_records import read_sources

__all__ = ["Indexed", "RayPool", "connect", "index", "read_sources"]
