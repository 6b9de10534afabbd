"""Adoption of texts that other applications keep in Qdrant or PostgreSQL, and audits of their vectors."""
