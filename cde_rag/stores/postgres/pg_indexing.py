"""Vector index of a generation: conditions and build."""

from cde_rag.stores.postgres.pg_tables import PgManifest, PgTables
from cde_rag.stores.postgres.pgvector_index import LEAST_ROWS


def presence(generation: int) -> str:
    """Return the SQL for the presence of a generation's index, next to the manifest `m`."""
    return (
        "EXISTS (SELECT FROM pg_class i JOIN pg_class t USING (relnamespace) "
        f"WHERE t.oid = m.tableoid AND i.relname = 'nearest_{generation}')"
    )


def built(tables: PgTables, generation: int) -> bool:
    """Return True if a generation has its index."""
    return tables.rows(f"SELECT {presence(generation)} FROM {tables.names.manifest} m")[0][0]  # noqa: S608


def build(tables: PgTables, manifest: PgManifest, generation: int) -> None:
    """Build the index of a generation unless it is there or the generation small, and count for the planner."""
    if manifest.index.kind is None or built(tables, generation):
        return
    if (rows := tables.count(generation)) >= LEAST_ROWS:
        names = tables.names
        tables.run(manifest.index.creation(names, generation, manifest.dim, rows))
        tables.run(  # columns without texts and arrays
            f"ANALYZE {names.manifest}, {names.fields}, {names.records} (place, batch), {names.words} (term, batch), "
            f"{names.vectors(generation)} (place)"
        )
