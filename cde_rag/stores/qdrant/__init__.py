"""Qdrant: contexts beside any collection.

`read_context` and `write_context` know bytes, not contexts; contexts.py shows both with a `cde_rag.Context`.
"""

from cde_rag.errors import require

require("qdrant_client", "qdrant")

from cde_rag.stores.qdrant.contexts import read_context, vector_name, write_context  # noqa: E402

__all__ = ["read_context", "vector_name", "write_context"]
