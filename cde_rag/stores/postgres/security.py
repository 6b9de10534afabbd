"""Rights of roles: GRANTs on a collection's schema, and row-level security as a second lock.

Without a GRANT a role cannot name a table. With row-level security it sees the rows only if a policy names it, too, so
that a GRANT by mistake, such as one to PUBLIC or of `pg_read_all_data`, shows nothing. A policy is `USING (true)` for
one role, which costs nothing: PostgreSQL drops the condition when it plans. The owner of the tables and superusers
bypass policies.
"""

from cde_rag.stores.postgres.schema import quoted
from cde_rag.stores.postgres.tables import PgTables

_TABLES = "SELECT relname::text FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"


def grant_read(tables: PgTables, role: str) -> None:
    """Let a role read all tables of a collection, later ones too."""
    name, schema = quoted(role), tables.names.schema
    tables.run(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
    tables.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    tables.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {name}")
    if tables.restricted():
        for table in _tables(tables):
            tables.run(f"DROP POLICY IF EXISTS {name} ON {table}")
            tables.allow(table, role)


def revoke_read(tables: PgTables, role: str) -> None:
    """Revoke the grants of `grant_read` from a role."""
    name, schema = quoted(role), tables.names.schema
    tables.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} REVOKE SELECT ON TABLES FROM {name}")  # noqa: S608
    tables.run(f"REVOKE SELECT ON ALL TABLES IN SCHEMA {schema} FROM {name}")  # noqa: S608
    tables.run(f"REVOKE USAGE ON SCHEMA {schema} FROM {name}")
    for table in _tables(tables):
        tables.run(f"DROP POLICY IF EXISTS {name} ON {table}")


def restrict(tables: PgTables) -> None:
    """Turn row-level security on for all tables of a collection; later generations get it when they are made."""
    for table in _tables(tables):
        tables.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")


def _tables(tables: PgTables) -> list[str]:
    """Return the names of all tables in the collection's schema."""
    return [tables.names.table(name) for (name,) in tables.rows(_TABLES, tables.names.schema)]
