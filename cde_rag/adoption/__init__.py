"""Stores of other applications: adopted texts (`sources`), and vectors moved to another model (`reembedding`)."""

from cde_rag.adoption.outcome import Adoption
from cde_rag.adoption.reembedding import reembedding
from cde_rag.adoption.sources import PostgresTable, QdrantCollection, adopt, catch_up, release

__all__ = ["Adoption", "PostgresTable", "QdrantCollection", "adopt", "catch_up", "reembedding", "release"]
