"""Rights of roles: GRANTs on a collection's schema, and row-level security as a second lock.

Without a GRANT a role cannot name a table. With row-level security it sees the rows only if a policy names it, too, so
that a GRANT by mistake, such as one to PUBLIC or of `pg_read_all_data`, shows nothing. A policy is `USING (true)` for
one role, which costs nothing: PostgreSQL drops the condition when it plans. The owner of the tables and superusers
bypass policies.
"""

from cde_rag.stores.postgres.pg_tables import PgTables
from cde_rag.stores.postgres.schema import quoted

_TABLES = "SELECT relname::text FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"


def grant_read(tables: PgTables, schema: str, role: str) -> None:
    """Let a role read all tables of a schema, later ones too."""
    name = quoted(role)
    tables.run(f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {name}")
    tables.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {quoted(schema)} TO {name}")
    tables.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {quoted(schema)} GRANT SELECT ON TABLES TO {name}")
    if tables.restricted():
        for (table,) in tables.rows(_TABLES, quoted(schema)):
            tables.run(f"DROP POLICY IF EXISTS {name} ON {table}")
            tables.allow(table, role)


def revoke_read(tables: PgTables, schema: str, role: str) -> None:
    """Revoke the grants of `grant_read` from a role."""
    name = quoted(role)
    tables.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {quoted(schema)} REVOKE SELECT ON TABLES FROM {name}")  # noqa: S608
    tables.run(f"REVOKE SELECT ON ALL TABLES IN SCHEMA {quoted(schema)} FROM {name}")  # noqa: S608
    tables.run(f"REVOKE USAGE ON SCHEMA {quoted(schema)} FROM {name}")
    for (table,) in tables.rows(_TABLES, quoted(schema)):
        tables.run(f"DROP POLICY IF EXISTS {name} ON {table}")


def restrict(tables: PgTables, schema: str) -> None:
    """Turn row-level security on for all tables of a schema; those of later generations get it when they are made."""
    for (table,) in tables.rows(_TABLES, quoted(schema)):
        tables.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
