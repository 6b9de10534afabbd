"""Deprecated: names of 0.2. `cde_rag.adoption` has one `adopt` for all sources."""

from cde_rag.errors import old_names

__getattr__ = old_names(
    __name__,
    {
        "Adoption": ("cde_rag.adoption", "Adoption"),
        "adopt": ("cde_rag.adoption.qdrant", "adopt_points"),
        "catch_up": ("cde_rag.adoption.qdrant", "catch_up_points"),
        "foreign_records": ("cde_rag.adoption.qdrant", "foreign_records"),
        "only_here": ("cde_rag.adoption.qdrant_points", "only_here"),
        "release": ("cde_rag.adoption.qdrant_points", "release_points"),
    },
    instead={
        "adopt": "cde_rag.adoption.adopt(QdrantCollection(client, collection, texts=…))",
        "catch_up": "cde_rag.adoption.catch_up(collection), or of a function catch_up(collection, QdrantCollection(…))",
        "release": "cde_rag.adoption.release(collection)",
    },
)
