"""Deprecated: names of 0.2. `cde_rag.adoption` has one `adopt` for all sources."""

from cde_rag.errors import old_names

__getattr__ = old_names(
    __name__,
    {
        "TableChanges": ("cde_rag.adoption", "Adoption"),
        "adopt": ("cde_rag.adoption.postgres", "adopt_table"),
        "catch_up": ("cde_rag.adoption", "catch_up"),
        "release": ("cde_rag.adoption", "release"),
    },
    instead={"adopt": "cde_rag.adoption.adopt(PostgresTable(store, table, columns))"},
)
