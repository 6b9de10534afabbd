"""Collections in PostgreSQL with pgvector: one schema for each.

A writer locks the manifest's row, so that writers of one collection follow each other; readers see one state of all
tables and wait for nobody. A generation is switched in one transaction. The lease is the advisory lock of a
transaction; the server gives it free when that connection ends, and a token in the manifest fences off a run that lost
it. No call depends on the state of a session, so that a transaction pooler may be in between.
"""

from cde_rag.stores.postgres.store import PgVectorStore
from cde_rag.stores.postgres.tenants import PgTenants

__all__ = ["PgTenants", "PgVectorStore"]
