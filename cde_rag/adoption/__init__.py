"""Adoption of texts that other applications keep in Qdrant or PostgreSQL; `sources` has the calls."""

from cde_rag.adoption.outcome import Adoption
from cde_rag.adoption.sources import PostgresTable, QdrantCollection, adopt, catch_up, release

__all__ = ["Adoption", "PostgresTable", "QdrantCollection", "adopt", "catch_up", "release"]
